"""posbench train: train, evaluate at every length, print the row; the table after a sweep."""

from __future__ import annotations

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench import sweep
from posbench.entry import command
from posbench.report import collect
from posbench.report.show import show_runs
from posbench.run import run


@command("train")
def train(node: DictConfig) -> None:
    console = Console()
    folder = run(schemas.load(node, schemas.Config), console)
    if not sweep.current.multirun:
        show_runs([folder.path], console)


def main() -> None:
    try:
        train()
    finally:
        if sweep.current.folder is not None:
            show_runs(collect.folders([str(sweep.current.folder)]), Console())
