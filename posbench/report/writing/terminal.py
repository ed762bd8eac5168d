"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from posbench.report.comparing.comparison import Cell, Comparison, ProbeTable, Report
from posbench.report.writing import wording
from posbench.report.writing.wording import Extra
from posbench.terminal.tables import Fitted


def show(report: Report, console: Console, extra: Sequence[Extra] = ()) -> None:
    """Print every table, and below each why there is no number."""
    for comparison in report.comparisons:
        show_perplexities(comparison, console)
        if any(row.longest.perplexity for row in comparison.rows):
            console.print(reaches(comparison))
    for probe in report.probes:
        show_recall(probe, console)
    for title, headers, rows, caption in extra:
        console.print(Fitted(headers, [rows], title, caption, prose=headers, left=headers))


def show_perplexities(comparison: Comparison, console: Console) -> None:
    _print(perplexities(comparison), [*comparison.notes, *comparison.apart], console)


def show_recall(probe: ProbeTable, console: Console) -> None:
    _print(recall(probe), probe.notes, console)


def _print(table: Fitted, notes: Sequence[str], console: Console) -> None:
    console.print(table)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def perplexities(comparison: Comparison) -> Fitted:
    """Encodings down, lengths across, coloured by the ratio to the training length; costs.

    Where the terminal is narrow, ratios move below the values, then costs are left out, then the
    table is split.
    """
    variants = []
    for between in (" ", "\n"):
        rows: list[list[str | Text]] = []
        for row in comparison.rows:
            cells = [_styled(row.cells[length], between) for length in comparison.lengths]
            rows.append([Text(row.name, style="bold"), *cells, *wording.costs(row)])
        variants.append(rows)
    headers, legend = ["encoding", *wording.headers(comparison)], wording.legend(comparison)
    return Fitted(
        headers,
        variants,
        comparison.title,
        comparison.caption,
        legend={"encoding": legend} | wording.COSTS,
        spare=("tok/s", "MiB", "params"),
    )


def _styled(cell: Cell, between: str) -> Text:
    text = wording.cell(cell, between)
    if cell.perplexity is None:
        return Text(text, style="dim")
    ratio = cell.ratio.value if cell.ratio else 1.0
    colour = "green" if ratio <= wording.KEPT else "yellow" if ratio <= wording.WORSE else "red"
    style = "default" if cell.ratio is None else colour
    return Text(text, style=f"bold {style}" if cell.best else style)


def reaches(comparison: Comparison) -> Fitted:
    """How far context helps, and what the intervals say."""
    headers, rows = wording.reaches(comparison)
    spare = wording.DISPENSABLE
    return Fitted(headers, [rows], wording.REACH_TITLE, wording.REACH, spare=spare)


def recall(probe: ProbeTable) -> Fitted:
    """A probe by encoding and distance; what is no better than chance is dim."""
    headers = ["encoding", *(f"{distance:,}" for distance in probe.distances)]
    rows: list[list[str | Text]] = []
    for row in probe.rows:
        cells: list[str | Text] = [row.name]
        for distance in probe.distances:
            share = row.recall.get(distance)
            style = "bold" if wording.beats_chance(share, probe) else "dim"
            cells.append(Text(wording.share(row, distance), style=style))
        rows.append(cells)
    return Fitted(headers, [rows], probe.title, wording.probe(probe))
