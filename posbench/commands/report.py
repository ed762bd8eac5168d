"""posbench report: every run as a table on the terminal, in report.md and in report.csv."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.entry import command
from posbench.errors import UserError
from posbench.files import write_text
from posbench.report import collect, tables, writers
from posbench.report.show import show


@command("report")
def main(node: DictConfig) -> None:
    asked = schemas.load(node, schemas.ReportCommand)
    console = Console()
    runs = collect.runs(collect.folders(asked.runs))
    if not runs:
        raise UserError(f"runs={asked.runs}: no run folder there; posbench train makes one")
    made = tables.tables(runs)
    for table in made:
        show(table, console)
    folder = Path(asked.folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "report.md", writers.markdown(made))
    write_text(folder / "report.csv", writers.csv(runs))
    console.print(f"written: {folder / 'report.md'}, {folder / 'report.csv'}", style="dim")
