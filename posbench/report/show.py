"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from posbench.report import collect, tables, writers


def show_runs(folders: Iterable[Path], console: Console, targets: set[str] | None = None) -> None:
    """Print the tables of these run folders, and why a length is n/a."""
    for table in tables.tables(collect.runs(folders), targets):
        console.print(writers.terminal(table))
        reasons = {
            f"{row.name}: n/a, {cell.reason}"
            for row in table.rows
            for cell in row.cells.values()
            if cell.reason
        }
        for reason in sorted(reasons):
            console.print(reason, style="dim", markup=False, highlight=False)
