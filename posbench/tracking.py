"""Weights & Biases beside a run, and never in its way.

A run's own files are the record; this mirrors them. Nothing here asks a question, needs a
network or a key, or raises because of W&B: what fails is said in one line and training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from posbench.config import TrackingConfig
from posbench.errors import UserError

if TYPE_CHECKING:
    from wandb import Settings
    from wandb.sdk.wandb_run import Run

MODES = ("auto", "online", "offline", "disabled")
ID_FILE = "wandb_id.txt"

# Seconds. Once for a run where the network is dead, then the run is offline.
INIT_TIMEOUT = 8.0
# Seconds. What is not uploaded by then lies in <run folder>/wandb for `wandb sync`.
FINISH_TIMEOUT = 30.0

# A curve and a config are all that is mirrored: no console, code, git, host or hardware.
SETTINGS: dict[str, Any] = {
    "init_timeout": INIT_TIMEOUT,
    "finish_timeout": FINISH_TIMEOUT,
    "console": "off",
    "silent": True,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "label_disable": True,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

Row = Mapping[str, float | int]
Values = Mapping[str, float | int | str | None]

log = logging.getLogger("posbench")


class Tracker(Protocol):
    """Where a run's rows go besides its own files."""

    def log(self, row: Row, step: int) -> None: ...  # what was measured at an optimizer step

    def summary(self, values: Values) -> None: ...  # what the run came to

    def finish(self, exit_code: int) -> None: ...  # 0: finished, else failed; in a finally


class Nothing:
    """Tracking disabled, or impossible."""

    def log(self, row: Row, step: int) -> None: ...

    def summary(self, values: Values) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class WandB:
    """One W&B run. After the first failure only finish still reaches it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._failed = False

    def log(self, row: Row, step: int) -> None:
        if not self._failed:
            self._attempt(lambda: self._run.log(dict(row), step=step))

    def summary(self, values: Values) -> None:
        if not self._failed:
            self._attempt(lambda: self._run.summary.update(dict(values)))

    def finish(self, exit_code: int) -> None:
        self._attempt(lambda: self._run.finish(exit_code=exit_code))

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            if not self._failed:
                log.warning("W&B stopped, training goes on: %s", _line(error))
            self._failed = True


def start(
    config: TrackingConfig,
    *,
    folder: Path,
    name: str,
    group: str,
    settings: dict[str, object],
    resume_id: str | None,
) -> Tracker:
    """A tracker for the run in folder, whose W&B files go to folder/wandb.

    settings is the run's configuration as plain nested values. resume_id is `saved_id(folder)`
    to continue the run that was there, None for a new one. Raises UserError for an unknown mode.
    """
    if config.wandb not in MODES:
        raise UserError(f"tracking.wandb={config.wandb}: choose one of {', '.join(MODES)}")
    run = {
        "project": config.project,
        "dir": str(folder),
        "name": name,
        "group": group,
        "config": settings,
        "id": resume_id or secrets.token_hex(8),
    }
    try:
        with _interpreter_hooks_kept():
            return _connected(_chosen(config.wandb), folder, run)
    except Exception as error:
        log.warning("W&B is off for this run: %s", _line(error))
        return Nothing()


def saved_id(folder: Path) -> str | None:
    """The id of the W&B run that start() opened in folder, if there was one."""
    path = folder / ID_FILE
    return path.read_text().strip() if path.exists() else None


def _chosen(mode: str) -> str:
    """mode, or what WANDB_MODE or `wandb offline` made of auto."""
    if mode != "auto":
        return mode
    said = os.environ.get("WANDB_MODE") or _global_settings().mode
    return {"disabled": "disabled", "offline": "offline", "dryrun": "offline"}.get(said, "auto")


def _connected(mode: str, folder: Path, run: dict[str, Any]) -> Tracker:
    if mode == "disabled":
        return Nothing()
    (folder / ID_FILE).write_text(f"{run['id']}\n")
    return WandB(_open("offline", run) if mode == "offline" else _online(mode, run))


def _online(mode: str, run: dict[str, Any]) -> Run:
    """An online run, or an offline one where there is no key or no network."""
    try:
        if _has_key():
            return _open("online", run)
        problem = "" if mode == "auto" else "no API key; `wandb login` saves one"
    except Exception as error:
        problem = _line(error)
        _abandon()
    offline = _open("offline", run)
    if problem:
        log.warning("W&B is offline for this run: %s", problem)
    return offline


def _open(mode: Literal["online", "offline"], run: dict[str, Any]) -> Run:
    import wandb  # here and below, not above: it takes a second

    _global_settings()
    return wandb.init(
        **run,
        mode=mode,
        resume="allow",
        reinit="create_new",  # never the unfinished run of an earlier job
        save_code=False,
        settings=wandb.Settings(**SETTINGS),
    )


def _global_settings() -> Settings:
    import wandb

    return wandb.setup(wandb.Settings(silent=True)).settings


def _has_key() -> bool:
    """Whether the user has configured W&B, by environment or netrc; asks nobody."""
    from wandb.sdk.lib import wbauth

    host = _global_settings().base_url
    return bool(wbauth.authenticate_session(host=host, source="posbench", prompt=False))


def _abandon() -> None:
    """Let go of a run that did not open; until then W&B holds its id to be in use."""
    import wandb

    with contextlib.suppress(SystemExit):
        wandb.teardown()


@contextlib.contextmanager
def _interpreter_hooks_kept() -> Iterator[None]:
    """W&B patches these at every start and puts them back never: k runs, k tracebacks."""
    kept = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = kept


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
