"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from posbench.report import wording
from posbench.report.comparison import Cell, Comparison, ProbeTable, Report
from posbench.report.wording import Extra

PLAIN: Any = {"box": box.SIMPLE, "collapse_padding": True, "pad_edge": False}
KEPT, WORSE = 1.03, 1.25  # ratios to the training length: holds up to, fails beyond


def show(report: Report, console: Console, extra: Sequence[Extra] = ()) -> None:
    """Print every table, and below each why there is no number."""
    for comparison in report.comparisons:
        show_perplexities(comparison, console)
        if any(row.longest.perplexity for row in comparison.rows):
            console.print(reaches(comparison, console.width))
    for probe in report.probes:
        _print(recall(probe), probe.notes, console)
    for title, headers, rows, caption in extra:
        table = rich_table.Table(title=Text(title), caption=Text(caption), **PLAIN)
        for header in headers:
            table.add_column(Text(header), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


def show_perplexities(comparison: Comparison, console: Console) -> None:
    notes = [*comparison.notes, *comparison.apart]
    _print(perplexities(comparison, console.width), notes, console)


def _print(table: rich_table.Table, notes: Sequence[str], console: Console) -> None:
    console.print(table)
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)


def perplexities(comparison: Comparison, width: int) -> rich_table.Table:
    """Encodings down, lengths across, coloured by what extrapolation costs.

    What a run cost stands beside it where width, in columns, has room.
    """
    whole = _perplexities(comparison, costs=True)
    return whole if _width(whole) <= width else _perplexities(comparison, costs=False)


def _width(table: rich_table.Table) -> int:
    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).maximum


def _perplexities(comparison: Comparison, costs: bool) -> rich_table.Table:
    legend = wording.legend(comparison) + (f"; {wording.COSTS}" if costs else "")
    caption = Text(f"{legend}\n{comparison.caption}")
    made = rich_table.Table(title=Text(comparison.title), caption=caption, **PLAIN)
    made.add_column("encoding", overflow="fold")  # where it is narrow, names break, not numbers
    for header in wording.headers(comparison, costs):
        made.add_column(header, justify="right", no_wrap=True)
    for row in comparison.rows:
        cells = [_styled(row.cells[length]) for length in comparison.lengths]
        made.add_row(Text(row.name, style="bold"), *cells, *(wording.costs(row) if costs else []))
    return made


def _styled(cell: Cell) -> Text:
    text = wording.cell(cell)
    if cell.perplexity is None:
        return Text(text, style="dim")
    ratio = cell.ratio.value if cell.ratio else 1.0
    colour = "green" if ratio <= KEPT else "yellow" if ratio <= WORSE else "red"
    style = "default" if cell.ratio is None else colour
    return Text(text, style=f"bold {style}" if cell.best else style)


def reaches(comparison: Comparison, width: int) -> rich_table.Table:
    """How far context helps, and what the intervals say; what a narrow terminal has room for."""
    headers, rows = wording.reaches(comparison)
    shown = list(range(len(headers)))
    made = _reaches(headers, rows)
    for less in wording.DISPENSABLE:
        if _width(made) <= width:
            break
        shown = [n for n in shown if not headers[n].startswith(less)]
        made = _reaches([headers[n] for n in shown], [[row[n] for n in shown] for row in rows])
    return made


def _reaches(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> rich_table.Table:
    made = rich_table.Table(title=Text(wording.REACH_TITLE), caption=wording.REACH, **PLAIN)
    made.add_column(headers[0], overflow="fold")
    for header in headers[1:]:
        made.add_column(Text(header), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def recall(probe: ProbeTable) -> rich_table.Table:
    """A probe by encoding and distance; what is no better than chance is dim."""
    made = rich_table.Table(title=Text(probe.title), caption=Text(wording.probe(probe)), **PLAIN)
    made.add_column("encoding", overflow="fold")
    for distance in probe.distances:
        made.add_column(f"{distance:,}", justify="right", no_wrap=True)
    for row in probe.rows:
        cells = []
        for distance in probe.distances:
            share = row.recall.get(distance)
            style = "bold" if wording.beats_chance(share, probe) else "dim"
            cells.append(Text(wording.share(row, distance), style=style))
        made.add_row(Text(row.name), *cells)
    return made
