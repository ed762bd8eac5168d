"""posbench train: train, evaluate at every length, print the row."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench import sweep
from posbench.report.show import show_runs
from posbench.run import run


@hydra.main(version_base="1.3", config_path="pkg://posbench.conf", config_name="train")
def _main(config: DictConfig) -> None:
    console = Console()
    folder = run(schemas.load(config, schemas.Config), console)
    if not sweep.current.multirun:
        show_runs([folder.path], console)


def main() -> None:
    with sweep.finishing():
        _main()
