"""Probes of comparable runs as tables: recall by encoding and distance."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from posbench.evaluation.results import ProbeResult
from posbench.evaluation.statistics import Bootstrap, Interval, Losses
from posbench.report.comparing import facts
from posbench.report.comparing.comparison import ProbeRow, ProbeTable
from posbench.report.reading import groups
from posbench.report.reading.collect import Run
from posbench.report.reading.groups import Group

MEASURES = {  # column of ProbeResult.by_document, and what it counts
    "recall": (1, "the planted answer has the highest logit of the candidates"),
    "lift": (2, "it is the candidate whose logit the plant raised most"),
}


def probe_tables(runs: Sequence[Run], bootstrap: Bootstrap) -> list[ProbeTable]:
    """Two tables, recall and lift, for each group of comparable runs, probe and set of trials."""
    made = []
    for group in groups.comparable(runs):
        found = sorted({(r.probe, r.trials_hash) for run in group.runs for r in run.probes})
        made += [
            _table(group, probe, trials, measure, bootstrap)
            for probe, trials in found
            for measure in MEASURES
        ]
    return made


def _table(
    group: Group, probe: str, trials: str, measure: str, bootstrap: Bootstrap
) -> ProbeTable:
    by_row: dict[str, list[ProbeResult]] = defaultdict(list)
    seeds: set[int] = set()
    parts: dict[str, tuple[str, ...]] = {}
    for name, runs in groups.rows(group.runs).items():
        for run, result in [(each, result) for each in runs for result in each.probes]:
            if (result.probe, result.trials_hash) == (probe, trials):
                label = name if result.extension is None else f"{name} + {result.extension}"
                by_row[label].append(result)
                parts[label] = facts.parts(runs)
                seeds.add(run.seed)
    rows = [
        dataclasses.replace(_row(label, found, measure, bootstrap), parts=parts[label])
        for label, found in by_row.items()
    ]
    one = next(iter(by_row.values()))[0]
    return ProbeTable(
        experiment=group.runs[0].experiment,
        probe=probe,
        measure=measure,
        train_length=group.config["train"]["length"],
        distances=tuple(sorted({r.distance for found in by_row.values() for r in found})),
        rows=tuple(sorted(rows, key=_order)),
        trials=trials,
        chance=1 / one.candidates,
        facts={
            **facts.setting(group),
            measure: f"share of trials in which {MEASURES[measure][1]}",
            "trials": f"{one.trials} a distance, {trials}, in {one.documents} documents",
            "candidates": str(one.candidates),
            "seeds": facts.seeds_in_words(seeds),
            "intervals": f"{bootstrap.level:.0%}, block bootstrap over documents and seeds",
            "commit": facts.commits(group.runs),
        },
        notes=_notes(group, rows, by_row),
    )


def _notes(
    group: Group, rows: Sequence[ProbeRow], probed: Mapping[str, list[ProbeResult]]
) -> tuple[str, ...]:
    """Why numbers are missing, which rows were not probed, what a mark on a name means."""
    told = [why for row in rows for why in facts.unmeasured(row.name, row.reasons)]
    told += [f"{row.name}: {said}" for row in rows for said in row.parts]
    for name, runs in groups.rows(group.runs).items():
        failed = [run for run in runs if run.why_incomplete]
        told += [f"{name}: seed {run.seed} {run.why_incomplete}" for run in failed]
        if name not in probed and not failed:
            told.append(f"{name}: not probed")
    return tuple(dict.fromkeys(told))


def _row(label: str, results: list[ProbeResult], measure: str, bootstrap: Bootstrap) -> ProbeRow:
    found: dict[int, list[ProbeResult]] = defaultdict(list)
    for result in results:
        if result.reason is None:
            found[result.distance].append(result)
    reasons = {result.distance: result.reason for result in results if result.reason}
    column = MEASURES[measure][0]
    shares = {distance: _share(each, column, bootstrap) for distance, each in found.items()}
    return ProbeRow(label, shares, reasons)


def _share(results: list[ProbeResult], column: int, bootstrap: Bootstrap) -> Interval:
    """The share of trials with its interval, over documents and seeds; kept within 0 .. 1."""
    table = np.array([result.by_document for result in results], dtype=np.float64)
    interval = bootstrap.interval(Losses(table[:, :, column], table[0, :, -1]))
    return interval.map(lambda share: min(max(share, 0.0), 1.0))


def _order(row: ProbeRow) -> tuple[float, str]:
    """Sort key: most recalled first."""
    return (-sum(interval.value for interval in row.recall.values()), row.name)
