"""Tables that GitHub renders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posbench.report.comparing.comparison import Comparison, ProbeTable, Report
from posbench.report.writing import wording
from posbench.report.writing.wording import Extra


def markdown(report: Report, extra: Sequence[Extra] = ()) -> str:
    parts = [_comparison(comparison) for comparison in report.comparisons]
    parts += [_probe(probe) for probe in report.probes]
    parts += [_section(*each) for each in extra]
    return "\n".join(parts)


def _comparison(comparison: Comparison) -> str:
    rows = []
    for row in comparison.rows:
        cells = [row.cells[length] for length in comparison.lengths]
        shown = [f"**{wording.cell(c)}**" if c.best else wording.cell(c) for c in cells]
        rows.append([escape(row.name), *shown, *wording.costs(row)])
    head = ["encoding", *wording.headers(comparison)]
    legend = "; ".join([wording.legend(comparison), *wording.COSTS.values()])
    caption = f"{legend}. {comparison.caption}."
    notes = [*comparison.notes, *comparison.apart]
    listed = "\n".join(f"- {escape(note)}" for note in notes)
    reach_head, reaches = wording.reaches(comparison)
    below = _table(reach_head, [[escape(c) for c in line] for line in reaches])
    return (
        f"### {escape(comparison.title)}\n\n{_table(head, rows)}\n{escape(caption)}\n\n"
        f"{listed}\n\n{below}\n{wording.REACH}.\n"
    )


def _probe(probe: ProbeTable) -> str:
    rows = []
    for row in probe.rows:
        shown = []
        for distance in probe.distances:
            said = wording.share(row, distance)
            better = wording.beats_chance(row.recall.get(distance), probe)
            shown.append(f"**{said}**" if better else said)
        rows.append([escape(row.name), *shown])
    head = ["encoding", *(f"{distance:,}" for distance in probe.distances)]
    listed = "\n".join(f"- {escape(note)}" for note in probe.notes)
    caption = escape(wording.probe(probe))
    return f"### {escape(probe.title)}\n\n{_table(head, rows)}\n{caption}.\n\n{listed}\n"


def _section(title: str, headers: list[str], rows: list[list[str]], caption: str) -> str:
    escaped = [[escape(cell) for cell in row] for row in rows]
    return f"### {escape(title)}\n\n{_table(headers, escaped)}\n{escape(caption)}\n"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_line([escape(h) for h in headers]), "|---" + "|---:" * (len(headers) - 1) + "|"]
    return "\n".join([*lines, *map(_line, rows), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: str) -> str:
    """Text from a run, made safe: no HTML, link, picture, emphasis or new table cell."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", " ".join(text.split("\n"))).replace("<", "&lt;")
