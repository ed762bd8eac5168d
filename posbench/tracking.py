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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from posbench.config import TrackingConfig
from posbench.errors import UserError

if TYPE_CHECKING:  # at run time inside the functions: the import takes a second
    from wandb import Settings
    from wandb.sdk.wandb_run import Run

Values = Mapping[str, float | int | str | None]
Table = tuple[Sequence[str], Sequence[Sequence[str | float | None]]]  # headers and rows
MODES = ("auto", "online", "offline", "disabled")
ID_FILE = "wandb_id.txt"

# A curve and a config are all that is mirrored: no console, code, git, host or hardware.
SETTINGS: dict[str, Any] = {
    "init_timeout": 8.0,  # seconds, spent once a run where the network is dead
    "finish_timeout": 30.0,  # seconds; what is not uploaded by then is left to `wandb sync`
    "finish_timeout_raises": True,
    "console": "off",
    "host": "",
    "silent": True,
    "disable_git": True,
    "save_code": False,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

log = logging.getLogger("posbench")


class Tracker(Protocol):
    """Where a run's rows go besides its own files."""

    def log(self, row: Values, step: int) -> None: ...  # what was measured at an optimizer step
    def summary(self, values: Values) -> None: ...  # what the run came to
    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None: ...  # a report
    def finish(self, exit_code: int) -> None: ...  # 0: finished, else failed; in a finally


class Nothing:
    """Tracking disabled, or impossible."""

    def log(self, row: Values, step: int) -> None: ...
    def summary(self, values: Values) -> None: ...
    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class WandB:
    """One W&B run. After the first failure only finish still reaches it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._failed = False

    def log(self, row: Values, step: int) -> None:
        if not self._failed:
            self._attempt(lambda: self._run.log(dict(row), step=step))

    def summary(self, values: Values) -> None:
        if not self._failed:
            self._attempt(lambda: self._run.summary.update(dict(values)))

    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        """Tables, pictures as images, HTML as a page; every file as part of one artifact."""
        if not self._failed:
            self._attempt(lambda: self._publish(tables, files))

    def _publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        import wandb

        shown: dict[str, Any] = {
            title: wandb.Table(columns=list(headers), data=[list(row) for row in rows])
            for title, (headers, rows) in tables.items()
        }
        shown |= {path.name: wandb.Image(str(path)) for path in files if path.suffix == ".png"}
        shown |= {path.name: wandb.Html(str(path)) for path in files if path.suffix == ".html"}
        self._run.log(shown)
        artifact = wandb.Artifact("report", type="report")
        for path in files:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self, exit_code: int) -> None:
        self._attempt(lambda: self._run.finish(exit_code=exit_code))
        if self._failed:
            _reset()

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            if not self._failed:
                log.warning("W&B stopped, the run goes on: %s", _line(error))
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
    check(config)
    run = {"project": config.project, "name": name, "group": group, "config": settings}
    run |= {"id": resume_id or secrets.token_hex(8), "dir": str(folder.absolute())}
    try:
        with _interpreter_kept():
            mode = _chosen(config.wandb)
            if mode == "disabled":
                return Nothing()
            (folder / ID_FILE).write_text(f"{run['id']}\n")
            return WandB(_open("offline", run) if mode == "offline" else _online(mode, run))
    except Exception as error:
        log.warning("W&B is off for this run: %s", _line(error))
        return Nothing()


def check(config: TrackingConfig) -> None:
    """Raises UserError for an unknown mode."""
    if config.wandb not in MODES:
        raise UserError(f"tracking.wandb={config.wandb}: choose one of {', '.join(MODES)}")


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


def _online(mode: str, run: dict[str, Any]) -> Run:
    """An online run, or an offline one where there is no key or no network."""
    try:
        if _has_key():
            return _open("online", run)
        problem = "" if mode == "auto" else "no API key; `wandb login` saves one"
    except Exception as error:
        problem = _line(error)
    offline = _open("offline", run)
    if problem:
        log.warning("W&B is offline for this run: %s", problem)
    return offline


def _open(mode: Literal["online", "offline"], run: dict[str, Any]) -> Run:
    import wandb

    _global_settings()
    settings = wandb.Settings(**SETTINGS)
    try:
        return wandb.init(**run, mode=mode, resume="allow", reinit="create_new", settings=settings)
    except Exception:
        _reset()
        raise


def _has_key() -> bool:
    """Whether the user has configured W&B, by environment or netrc; asks nobody."""
    from wandb.sdk.lib import wbauth

    host = _global_settings().base_url
    return bool(wbauth.authenticate_session(host=host, source="posbench", prompt=False))


def _global_settings() -> Settings:
    import wandb

    return wandb.setup(wandb.Settings(silent=True)).settings


def _reset() -> None:
    """Drop W&B's process and what it holds: the id of a run that failed, or its own death."""
    import wandb

    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown()


@contextlib.contextmanager
def _interpreter_kept() -> Iterator[None]:
    """W&B hooks sys.exit and sys.excepthook at every start for good: k runs, k tracebacks."""
    # Its reports of its own errors hold the process for 20 seconds where the network is dead.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    kept = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = kept


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
