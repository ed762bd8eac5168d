"""The same table for a terminal, for Markdown and, as tidy rows, for CSV."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from posbench.report.collect import Run
from posbench.report.tables import Cell, Row, Table
from posbench.results import Result

PLAIN: Any = {"box": box.SIMPLE, "collapse_padding": True, "pad_edge": False}
KEPT, WORSE = 1.03, 1.25  # ratios to the training length: holds up to, fails beyond
RUN_COLUMNS = ["experiment", "encoding", "seed", "commit", "corpus", "corpus_hash", "device"]
RUN_COLUMNS += ["dtype", "lr_multiplier", "positional_parameters", "parameters", "tokens_trained"]
RUN_COLUMNS += ["train_length", "train_tokens_per_second", "train_peak_memory"]
RESULT_COLUMNS = [field.name for field in dataclasses.fields(Result)]
CSV_COLUMNS = [*RUN_COLUMNS, "perplexity", "bits_per_byte", *RESULT_COLUMNS]
COSTS = (
    "params: positional ones, with their learning-rate multiplier; "
    "tok/s, MiB: speed and peak process memory of training"
)
LEGEND = "×: ratio to the value at the training length; bold: lowest of its column"


def terminal(table: Table, width: int) -> rich_table.Table:
    """A rich table: encodings down, lengths across, coloured by what extrapolation costs.

    What a run cost stands beside it where width, in columns, has room.
    """
    whole = _terminal(table, costs=True)
    console = Console(width=10_000)
    fits = Measurement.get(console, console.options, whole).maximum <= width
    return whole if fits else _terminal(table, costs=False)


def _terminal(table: Table, costs: bool) -> rich_table.Table:
    legend = LEGEND + (f"; {COSTS}" if costs else "")
    made = rich_table.Table(title=table.title, caption=f"{legend}\n{table.caption}", **PLAIN)
    made.add_column("encoding", overflow="fold")  # where it is narrow, names break, not numbers
    for header in _headers(table, costs):
        made.add_column(header, justify="right", no_wrap=True)
    for row in table.rows:
        cells = [_styled(row.cells[length]) for length in table.lengths]
        made.add_row(Text(row.name, style="bold"), *cells, *(_costs(row) if costs else []))
    return made


def markdown(tables: Sequence[Table]) -> str:
    """Tables that GitHub renders."""
    return "\n".join(_markdown(table) for table in tables)


def csv(runs: Sequence[Run]) -> str:
    """One row for each run, protocol and length; runs without results have a row with a reason."""
    text = io.StringIO()
    writer = csv_module.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for run in runs:
        place = _run_columns(run)
        if run.trouble:
            writer.writerow({**place, "reason": run.trouble})
        for result in run.results:
            figures = {"perplexity": result.perplexity, "bits_per_byte": result.bits_per_byte}
            writer.writerow({**place, **dataclasses.asdict(result), **figures})
    return text.getvalue()


def _run_columns(run: Run) -> dict[str, object]:
    known = {
        **run.summary,
        **run.provenance,
        "experiment": run.experiment,
        "encoding": run.name,
        "seed": run.seed,
        "train_length": run.config["train"]["length"],
        "lr_multiplier": run.lr_multiplier,
    }
    return {column: known.get(column) for column in RUN_COLUMNS}


def _markdown(table: Table) -> str:
    headers = ["encoding", *_headers(table)]
    lines = [f"### {_escape(table.title)}", "", _line(headers)]
    lines.append("|---" + "|---:" * (len(headers) - 1) + "|")
    for row in table.rows:
        cells = [row.cells[length] for length in table.lengths]
        shown = [f"**{_plain(c)}**" if c.best else _plain(c) for c in cells]
        lines.append(_line([_escape(row.name), *shown, *_costs(row)]))
    notes = [f"- {_escape(note)}" for note in table.notes]
    return "\n".join([*lines, "", f"{LEGEND}; {COSTS}. {_escape(table.caption)}.", "", *notes, ""])


def _headers(table: Table, costs: bool = True) -> list[str]:
    lengths = [f"{n:,} ({n / table.train_length:g}×)" for n in table.lengths]
    return [*lengths, *(["params", "tok/s", "MiB"] if costs else [])]


def _costs(row: Row) -> list[str]:
    rate = "" if row.lr_multiplier == 1 else f" lr×{row.lr_multiplier:g}"
    memory = None if row.peak_memory is None else row.peak_memory / 2**20
    return [
        "" if row.positional_parameters is None else f"{row.positional_parameters:,}{rate}",
        "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        "" if memory is None else f"{memory:,.0f}",
    ]


def _plain(cell: Cell) -> str:
    if cell.perplexity is None:
        return "n/a" if cell.reason else "–"
    spread = "" if cell.spread is None else f" ±{cell.spread:.2f}"
    ratio = "" if cell.ratio is None else f" ×{cell.ratio:.2f}"
    return f"{cell.perplexity:.2f}{spread}{ratio}"


def _styled(cell: Cell) -> Text:
    if cell.perplexity is None:
        return Text(_plain(cell), style="dim")
    ratio = cell.ratio or 1.0
    colour = "green" if ratio <= KEPT else "yellow" if ratio <= WORSE else "red"
    style = "default" if cell.ratio is None else colour
    return Text(_plain(cell), style=f"bold {style}" if cell.best else style)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    """Text from a run, harmless in a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
