"""The tables of some run folders, on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from posbench.report import collect, compare, terminal
from posbench.statistics import Bootstrap


def show_runs(folders: Iterable[Path], console: Console, targets: set[str] | None = None) -> None:
    """targets, where given, keeps the tables over these sets of scored tokens."""
    settings = compare.Settings(Bootstrap())
    for comparison in compare.compare(collect.runs(folders), settings, targets):
        terminal.show_perplexities(comparison, console)
