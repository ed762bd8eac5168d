"""Weights & Biases: online where the user has configured it, else a file for `wandb sync`.

Rows have axes of their own; W&B's internal step is not used, because W&B drops rows with a smaller
one, and a resumed run may log such rows.

An online run can be asked which rows it has. An offline file cannot, so a resumed offline run is
written anew from its first row, and the superseded file is removed unless it was uploaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posbench.tracking.background import line
from posbench.tracking.base import Job, Nothing, Table, Tracker, Values

if TYPE_CHECKING:  # at run time inside the functions: the import takes a second
    from wandb import Settings
    from wandb.sdk.wandb_run import Run

NAME, TAG = 128, 64  # characters, at most

# They say which run it is, and inside a sweep of W&B's they win over what is given to it.
NAMING = [
    *("PROJECT", "RUN_ID", "NAME", "RUN_GROUP", "TAGS", "DIR", "RESUME", "RESUME_FROM"),
    *("FORK_FROM", "SWEEP_ID", "SWEEP_PARAM_PATH", "CONFIG_PATHS"),
]

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


class WandB:
    """One W&B run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._there = dict(run.summary)  # what an online run had before
        self._defined: set[str] = set()

    def log(self, row: Values, axis: str) -> None:
        if self._has(row, axis):
            return
        for key in row.keys() - self._defined:
            self._define(key, axis)
        self._run.log(dict(row))

    def _has(self, row: Values, axis: str) -> bool:
        if axis == "step":
            return int(row["step"] or 0) <= self._there.get("step", 0)
        values = {f"{key}/{row[axis]}": value for key, value in row.items() if key != axis}
        return values.items() <= self._there.items()

    def _define(self, key: str, axis: str) -> None:
        self._defined.add(key)
        if key == axis:
            self._run.define_metric(key, summary=None if axis == "step" else "none")
        elif axis == "step":
            self._run.define_metric(key, step_metric=axis)
        else:  # the summary has one value for each place on the axis: summary()
            self._run.define_metric(key, step_metric=axis, summary="none")

    def summary(self, values: Values) -> None:
        self._run.summary.update(dict(values))

    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        """Tables, pictures as images, HTML as a page; every file as part of one artifact."""
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

    def keep(self, checkpoint: Path) -> None:
        """Upload a checkpoint as an artifact, without a copy."""
        import wandb

        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", type="model")
        artifact.add_dir(str(checkpoint), policy="immutable")
        self._run.log_artifact(artifact, aliases=[checkpoint.name])

    def finish(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except Exception:
            _reset()
            raise


def opened(job: Job) -> Tracker:
    """The job's W&B run, new or resumed; its files go to <folder>/wandb."""
    _forget_names()
    with _interpreter_kept():
        mode = _chosen(job.wandb)
        if mode == "disabled":
            return Nothing()
        job.remember()
        run = _open("offline", job) if mode == "offline" else _online(mode, job)
        _remove_superseded(job, Path(run.dir).parent)
        return WandB(run)


def _forget_names() -> None:
    """Drop WANDB_ variables that would rename the run, with one warning: its folder names it."""
    found = [name for each in NAMING if (name := f"WANDB_{each}") in os.environ]
    if found:
        log.warning("W&B: %s not used; tracking.project and run.* name a run", ", ".join(found))
    for name in found:
        del os.environ[name]


def _chosen(mode: str) -> str:
    """mode, or what WANDB_MODE or `wandb offline` made of auto."""
    if mode != "auto":
        return mode
    said = os.environ.get("WANDB_MODE") or _global_settings().mode
    return {"disabled": "disabled", "offline": "offline", "dryrun": "offline"}.get(said, "auto")


def _online(mode: str, job: Job) -> Run:
    """An online run, or an offline one where there is no key or no network."""
    try:
        if _has_key():
            return _open("online", job)
        problem = "" if mode == "auto" else "no API key; `wandb login` saves one"
    except Exception as error:
        problem = line(error)
    offline = _open("offline", job)
    if problem:
        log.warning("W&B is offline for this run: %s", problem)
    return offline


def _open(mode: Literal["online", "offline"], job: Job) -> Run:
    import wandb

    _global_settings()
    try:
        return wandb.init(
            project=job.project,
            name=job.name[:NAME],
            group=job.group[:NAME],
            tags=[*dict.fromkeys(tag[:TAG] for tag in job.tags if tag)],
            config=job.settings,
            id=job.id,
            dir=str(job.folder.absolute()),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**SETTINGS),
        )
    except Exception:
        _reset()
        raise


def _remove_superseded(job: Job, current: Path) -> None:
    """Offline files of this run that were never uploaded: the current one is to have it all."""
    for old in (job.folder / "wandb").glob(f"offline-run-*-{job.id}*"):
        if old.resolve() != current.resolve() and not list(old.glob("*.synced")):
            shutil.rmtree(old)


def _has_key() -> bool:
    """Whether the user has configured W&B, by environment or netrc; asks nobody."""
    from wandb.sdk.lib import wbauth

    host = _global_settings().base_url
    return bool(wbauth.authenticate_session(host=host, source="posbench", prompt=False))


def _global_settings() -> Settings:
    import wandb

    return wandb.setup(wandb.Settings(silent=True)).settings


def _reset() -> None:
    """End W&B's service process, which may hold a failed run's id or be dead."""
    import wandb

    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown()


@contextlib.contextmanager
def _interpreter_kept() -> Iterator[None]:
    """Restore sys.exit and sys.excepthook, which W&B hooks again at every start."""
    # Its reports of its own errors hold the process for 20 seconds where the network is dead.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    kept = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = kept
