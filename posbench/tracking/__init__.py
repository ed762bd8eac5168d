"""Trackers (W&B, TensorBoard, trackio), which mirror a run's own files.

Nothing here asks a question, needs a network or a key, or stops a run. May import config and
errors. A new tracker is a module here with `opened(job)`, and an entry of TITLES and EXTRAS.
"""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from functools import partial
from pathlib import Path

from posbench.config import TrackingConfig
from posbench.errors import UserError
from posbench.tracking.background import Background
from posbench.tracking.base import ID_FILE, Job, Nothing, Table, Tracker, Values

__all__ = [
    "ID_FILE",
    "Nothing",
    "Table",
    "Tracker",
    "Values",
    "check",
    "saved_id",
    "start",
    "wanted",
]

MODES = ("auto", "online", "offline", "disabled")
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard", "trackio": "trackio"}
FORBIDDEN, LONGEST = frozenset("/\\#?%:"), 128  # in a project's name; W&B refuses it at a sync
EXTRAS = {"tensorboard": "tensorboardX", "trackio": "trackio"}  # what each imports


def start(
    config: TrackingConfig,
    *,
    folder: Path,
    name: str,
    group: str,
    settings: dict[str, object],
    resume_id: str | None,
    tags: tuple[str, ...] = (),
) -> Tracker:
    """A tracker for the run in folder, opened beside whatever goes on.

    settings is the run's configuration as plain nested values. resume_id is `saved_id(folder)`
    to continue the run that was there, None for a new one. Raises UserError as `check` does.
    """
    check(config)
    if not wanted(config):
        return Nothing()
    identity = resume_id or secrets.token_hex(8)
    job = Job(folder, config.project, name, group, tags, settings, identity, config.wandb)
    # Imported in the background too, where it takes its second.
    module = f"posbench.tracking.{config.to}"
    return Background(TITLES[config.to], partial(_opened, module, job))


def _opened(module: str, job: Job) -> Tracker:
    tracker: Tracker = importlib.import_module(module).opened(job)
    return tracker


def wanted(config: TrackingConfig) -> bool:
    """Whether anything is tracked at all."""
    return config.to != "wandb" or config.wandb != "disabled"


def check(config: TrackingConfig) -> None:
    """Raises UserError for a value that no tracker knows, and for one that is not installed."""
    if config.to not in TITLES:
        raise UserError(f"tracking.to={config.to}: choose one of {', '.join(TITLES)}")
    if config.wandb not in MODES:
        raise UserError(f"tracking.wandb={config.wandb}: choose one of {', '.join(MODES)}")
    project = config.project
    named = config.to != "tensorboard" and wanted(config)
    usable = 1 <= len(project) <= LONGEST and project.strip() and not FORBIDDEN & {*project}
    if named and not usable:
        raise UserError(
            f"tracking.project={project[:LONGEST]!r} ({len(project)} characters): "
            f"{TITLES[config.to]} takes 1 to {LONGEST} characters, none of them "
            f"{' '.join(sorted(FORBIDDEN))}"
        )
    if config.to == "wandb":
        return
    if config.wandb != "disabled":
        raise UserError(f"tracking.wandb={config.wandb} is for tracking=wandb, not {config.to}")
    if config.checkpoints:
        raise UserError(f"tracking.checkpoints is for tracking=wandb, not {config.to}")
    if importlib.util.find_spec(EXTRAS[config.to]) is None:
        extra = f"pip install 'posbench[{config.to}]'"
        raise UserError(f"tracking={config.to}: {EXTRAS[config.to]} is not installed; {extra}")


def saved_id(folder: Path) -> str | None:
    """The id of the run that start() opened in folder, if there was one."""
    path = folder / ID_FILE
    return path.read_text(encoding="utf-8").strip() if path.exists() else None
