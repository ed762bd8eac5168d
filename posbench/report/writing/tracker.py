"""The report on W&B: the same tables, and the same files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from posbench import tracking
from posbench.config import ReportCommand
from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Report
from posbench.report.writing import wording
from posbench.tracking import Table


def mirror(report: Report, files: Sequence[Path], asked: ReportCommand) -> None:
    """Publish as a W&B run, grouped with the experiment. A failure of W&B is harmless."""
    experiments = sorted({comparison.experiment for comparison in report.comparisons})
    tracker = tracking.start(
        asked.tracking,
        folder=Path(asked.folder),
        name="report",
        group=", ".join(experiments),
        settings=dataclasses.asdict(asked),
        resume_id=None,
    )
    code = 1
    try:
        tracker.publish(tables(report), files)
        code = 0
    finally:
        tracker.finish(code)


def tables(report: Report) -> dict[str, Table]:
    """Title -> headers and rows; numbers stay numbers."""
    made: dict[str, Table] = {}
    for comparison in report.comparisons:
        head = ["encoding", *(f"{n}" for n in comparison.lengths)]
        rows = [
            [row.name, *(_value(row.cells[n].perplexity) for n in comparison.lengths)]
            for row in comparison.rows
        ]
        made[comparison.title] = (head, rows)
        made[f"{comparison.title}: {wording.REACH_TITLE}"] = wording.reaches(comparison)
    for probe in report.probes:
        head = ["encoding", *(f"{n}" for n in probe.distances)]
        shares = [
            [each.name, *(_value(each.recall.get(n)) for n in probe.distances)]
            for each in probe.rows
        ]
        made[probe.title] = (head, shares)
    return made


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value
