"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from posbench.report import collect, tables, writers


def show_runs(folders: Iterable[Path], console: Console, targets: set[str] | None = None) -> None:
    """Print the tables of these run folders."""
    for table in tables.tables(collect.runs(folders), targets):
        show(table, console)


def show(table: tables.Table, console: Console) -> None:
    """Print a table, and below it why there is no number."""
    console.print(writers.terminal(table, console.width))
    for note in table.notes:
        console.print(note, style="dim", markup=False, highlight=False)
