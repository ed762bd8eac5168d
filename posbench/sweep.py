"""Where in a multirun the process is. Hydra calls the callback; the commands read `current`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig


@dataclasses.dataclass
class Sweep:
    """A multirun, or the single job that is not one."""

    multirun: bool = False
    folder: Path | None = None  # of the experiment
    total: int | None = None  # jobs, where the sweeper tells
    job: int = 0  # the one at work, from 1
    failed: list[str] = dataclasses.field(default_factory=list)


current = Sweep()


class SweepCallback(Callback):
    """Keeps `current` true."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global current
        folder = Path(config.run.root) / config.run.experiment
        current = Sweep(multirun=True, folder=folder, total=_count(config))

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if current.multirun:
            current.job = int(config.hydra.job.num) + 1


def _count(config: DictConfig) -> int | None:
    """How many jobs Hydra's basic sweeper will make of this command line."""
    if not config.hydra.sweeper._target_.endswith(".BasicSweeper"):
        return None
    params = config.hydra.sweeper.get("params") or {}
    words = [f"{key}={value}" for key, value in params.items()] + list(config.hydra.overrides.task)
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(words)
    return sum(len(batch) for batch in BasicSweeper.split_arguments(overrides, None))
