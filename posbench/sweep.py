"""What a multirun adds to single runs: a count, failures that do not stop the others, one table.

Hydra calls the callback; the commands read `current`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from posbench.errors import UserError
from posbench.explain import complain, one_line
from posbench.report import collect
from posbench.report.show import show_runs


@dataclasses.dataclass
class Sweep:
    """Jobs of this multirun; total is None where the sweeper does not tell."""

    total: int | None = 1
    job: int = 0
    started: float = dataclasses.field(default_factory=time.monotonic)
    failed: list[str] = dataclasses.field(default_factory=list)
    folder: Path | None = None
    multirun: bool = False


current = Sweep()


class SweepCallback(Callback):
    """Keeps `current` true, says at once why a job failed, and prints the table at the end."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global current
        folder = Path(config.run.root) / config.run.experiment
        current = Sweep(total=_count(config), multirun=True, folder=folder)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        current.job = int(config.hydra.job.get("num", 0)) + 1 if current.multirun else 1

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is JobStatus.FAILED and current.multirun:
            name = f"{config.run.name} seed {config.seed}"
            reason = one_line(job_return._return_value)
            current.failed.append(name)
            complain(f"{name}: {reason}")


@contextmanager
def finishing() -> Iterator[None]:
    """Around a multirun: the table of its experiment at the end, and an error if a job failed."""
    try:
        yield
    except Exception:
        if not current.failed:
            raise
    if current.multirun:
        show_runs(collect.folders([str(current.folder)]), Console())
    if current.failed:
        total = current.total or current.job
        names = ", ".join(current.failed)
        raise UserError(f"{len(current.failed)} of {total} runs failed: {names}")


def _count(config: DictConfig) -> int | None:
    """How many jobs Hydra's basic sweeper will make of this command line."""
    if not config.hydra.sweeper._target_.endswith(".BasicSweeper"):
        return None
    params = config.hydra.sweeper.get("params") or {}
    words = [f"{key}={value}" for key, value in params.items()] + list(config.hydra.overrides.task)
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(words)
    return sum(len(batch) for batch in BasicSweeper.split_arguments(overrides, None))
