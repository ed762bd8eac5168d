"""posbench tune: the same number of trials for each encoding, and what each one chose."""

from __future__ import annotations

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posbench import config as schemas
from posbench import trials, tuning
from posbench.entry import command
from posbench.tuning import Record

_tuned: list[tuple[str, Record]] = []


@command("tune")
def tune(node: DictConfig) -> None:
    config = schemas.load(node, schemas.TuneCommand)
    record = trials.tune(config, Console())
    _tuned.append((config.run.name, record))


def main() -> None:
    _tuned.clear()
    try:
        tune()
    finally:
        if _tuned:
            show(_tuned, Console())


def show(tuned: list[tuple[str, Record]], console: Console) -> None:
    """What each encoding chose, and what that was worth on the validation split."""
    table = Table(
        title="chosen by validation loss at the training length",
        caption="posbench train tuned=true uses these",
        box=box.SIMPLE,
    )
    for header in ("encoding", "chosen", "untuned loss", "tuned loss", "trials"):
        table.add_column(header, justify="left" if header in ("encoding", "chosen") else "right")
    for name, record in tuned:
        chosen = record.chosen
        losses = [record.trials[0].loss, chosen.loss]
        shown = ["diverged" if loss is None else f"{loss:.4f}" for loss in losses]
        table.add_row(
            Text(name), tuning.label(chosen.values), *shown, str(record.budget["trials"])
        )
    console.print(table)
