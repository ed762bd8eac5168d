"""posbench claims: the documents' eleven claims on the terminal and in claims.md."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.claims import measured, properties, show
from posbench.hydra_app.command import command
from posbench.machine.files import write_text
from posbench.report.reading import collect


@command("claims")
def main(node: DictConfig) -> None:
    asked = schemas.load(node, schemas.ClaimsCommand)
    console = Console()
    for place in asked.runs:
        if not collect.folders([place]):
            console.print(f"runs=[{place}]: no run folder there", style="yellow", markup=False)
    runs = collect.runs(collect.folders(asked.runs))
    verdicts = show.in_order([*properties.properties(), *measured.measured(runs)])
    console.print(show.terminal(verdicts))
    folder = Path(asked.folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "claims.md", show.markdown(verdicts))
    console.print(f"written: {folder / 'claims.md'}", style="dim", markup=False)
