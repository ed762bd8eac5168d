"""posbench train: train, evaluate at every length, print the row; the table after a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.config import Config
from posbench.hydra_app import launcher, sweep
from posbench.hydra_app.command import command
from posbench.hydra_app.sweep import Job, SweepHooks
from posbench.machine import distributed, torchrun
from posbench.report.reading import collect
from posbench.report.show import show_runs
from posbench.runs import dry_run
from posbench.runs.run import record_failure, run, validated, why_unfinished
from posbench.runs.run_folder import RunFolder


def _before(jobs: Sequence[Job]) -> bool:
    """Refuse jobs that would fail later. Shows a dry run's jobs, and returns False for it."""
    sweep.check(jobs, lambda node: validated(_config(node)))
    sweep.check_places(jobs, lambda node: RunFolder.of(_config(node)).path)
    if dry := any(job.node.dry_run for job in jobs):
        configs = [_config(job.node) for job in jobs]
        distributed.world().on_first(lambda: dry_run.show(configs, Console()))
    return not dry


@command("train", SweepHooks(_before, lambda node: why_unfinished(_config(node))))
def train(node: DictConfig) -> None:
    launcher.enter_folder()
    console, config = distributed.world().console(), _config(node)
    if node.dry_run:
        return distributed.world().on_first(lambda: dry_run.show([config], console))
    try:
        folder = run(config, console)
    except Exception as error:
        if launcher.in_multirun() and torchrun.rank() == 0:
            record_failure(config, error)
        raise
    if not launcher.in_multirun() and torchrun.rank() == 0:
        show_runs([folder.path], console)
    return None


def main() -> None:
    with distributed.joined():
        try:
            train()
        finally:
            if sweep.current.folder is not None and torchrun.rank() == 0:
                show_runs(collect.run_folders_below([sweep.current.folder]), Console())


def _config(node: DictConfig) -> Config:
    return dataclasses.replace(schemas.load(node, Config), dry_run=False)
