"""The jobs of a multirun: known before the first one starts, and what became of each at the end.

Hydra calls the callback; the commands read `current`. A job may run in another process or on
another host (hydra/launcher): what became of it is therefore read from what it left on disk.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.errors import UserError, one_line
from posbench.hydra_app import launcher, unsupported
from posbench.machine import job, paths


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One job of a multirun: its place in it, from 1, and its resolved configuration."""

    number: int
    overrides: tuple[str, ...]
    node: DictConfig

    @property
    def name(self) -> str:
        return job_name(self.node)

    @property
    def repeat(self) -> str:
        """The command line that runs this job alone."""
        kept = [word for word in sys.argv[1:] if word.startswith("--") or _is_hydras(word)]
        kept = [word for word in kept if word not in ("--multirun", "--run")]
        return f"{sys.argv[0]} {shlex.join([*kept, *self.overrides])}"


@dataclasses.dataclass(frozen=True)
class SweepHooks:
    """What a command adds to a sweep.

    before: is given all jobs before the first one starts, and returns False if none is to start.
    Raises UserError. why_unfinished: reads from disk why a job is not finished, None if it is; a
    command without it runs its jobs in this process only.
    """

    before: Callable[[Sequence[Job]], bool] = lambda jobs: True
    why_unfinished: Callable[[DictConfig], str | None] | None = None


@dataclasses.dataclass
class Sweep:
    """The jobs of a multirun, and which failed; without a multirun one job that is not listed."""

    hooks: SweepHooks = dataclasses.field(default_factory=SweepHooks)
    multirun: bool = False
    folder: Path | None = None  # of the experiment, once there are jobs to start
    jobs: list[Job] = dataclasses.field(default_factory=list)  # as far as the sweeper tells
    failed: dict[int, str] = dataclasses.field(default_factory=dict)  # in this process, by number

    @property
    def total(self) -> int | None:
        return len(self.jobs) or None


current = Sweep()


class NothingToRun(BaseException):
    """Raised by the callback to start no job; error: why, None for a dry run.

    A BaseException, because Hydra swallows the Exceptions of a callback.
    """

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error


class SweepCallback(Callback):
    """Hydra's callback: fills `current` and refuses what posbench does not support."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            unsupported.require_ours(config.hydra)
        except UserError as error:
            raise NothingToRun(error) from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        current.multirun = True
        try:
            unsupported.require_ours(config.hydra)
            current.jobs = _jobs(config)
            if (
                launcher.uses_other_processes(config.hydra)
                and current.hooks.why_unfinished is None
            ):
                raise UserError(
                    "only the jobs of posbench train and posbench tune can run in other "
                    "processes; leave hydra/launcher out"
                )
            go_on = current.hooks.before(current.jobs)
        except Exception as error:
            raise NothingToRun(error) from error
        if not go_on:
            raise NothingToRun
        if isinstance(config.get("run"), DictConfig):  # else that of posbench eval, a folder
            root = Path(paths.expanded("run.root", config.run.root))
            current.folder = root / config.run.experiment


def begin_job() -> None:
    """Set machine/job.py to the job that this process now begins."""
    job.current = launcher.job(current.total)


def job_name(node: DictConfig) -> str:
    """The name of a job in messages, e.g. "rope seed 1"."""
    run = node.get("run")  # posbench eval's is a folder; posbench report has none
    if isinstance(run, DictConfig):
        return f"{run.name} seed {node.seed}"
    return f"job {job.current.number}" if run is None else str(run)


def failures() -> list[str]:
    """For each unfinished job its name, the reason, and the command that repeats it."""
    told, why_unfinished = current.failed, current.hooks.why_unfinished
    if why_unfinished is None or not current.jobs:
        return [told[number] for number in sorted(told)]
    found = {each: why_unfinished(each.node) for each in current.jobs}
    return [
        f"  {told.get(each.number, f'{each.name}: {reason}')}\n    {each.repeat}"
        for each, reason in found.items()
        if reason is not None
    ]


def _jobs(config: DictConfig) -> list[Job]:
    """The jobs that Hydra's basic sweeper will make of this command line; none for other sweepers.

    Raises UserError where some of the jobs cannot be composed.
    """
    if not config.hydra.sweeper._target_.endswith(".BasicSweeper"):
        return []
    plain: Any = OmegaConf.to_container(config.hydra, resolve=False)  # ${..} is each job's own
    params = plain["sweeper"].get("params") or {}
    words = [f"{key}={value}" for key, value in params.items()] + plain["overrides"]["task"]
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(words)
    (batch,) = BasicSweeper.split_arguments(overrides, None)
    jobs, problems = list[Job](), dict[str, str]()
    for number, words in enumerate(batch, start=1):
        try:
            jobs.append(
                Job(number, tuple(words), _resolved(loader.load_sweep_config(config, words)))
            )
        except (HydraException, OmegaConfBaseException, UserError) as error:
            swept = [word for word in words if not all(word in each for each in batch)]
            problems[" ".join(swept) or f"job {number}"] = one_line(error)
    refuse(problems, len(batch))
    return jobs


def check(jobs: Sequence[Job], ready: Callable[[DictConfig], object]) -> None:
    """Raise one UserError that names every job for which `ready` raises one."""
    problems = {}
    for each in jobs:
        try:
            ready(each.node)
        except (UserError, OmegaConfBaseException) as error:
            problems[each.name] = one_line(error)
    refuse(problems, len(jobs))


def check_places(jobs: Sequence[Job], place: Callable[[DictConfig], Path]) -> None:
    """Raise UserError where two jobs would write to the same folder."""
    found = Counter(place(each.node) for each in jobs)
    if shared := [path for path, count in found.items() if count > 1]:
        raise UserError(
            f"{found[shared[0]]} jobs share the folder {shared[0]}, none was started: give them "
            "names, e.g. 'run.name=${hydra:runtime.choices.encoding}-lr${optim.lr}'"
        )


def refuse(problems: Mapping[str, str], total: int) -> None:
    """Raise one UserError with the problem of each job, if there are any; no job is then started.

    problems: by the name of the job.
    """
    if not problems:
        return
    jobs_with = {
        what: [job for job in problems if problems[job] == what] for what in problems.values()
    }
    told = "; ".join(f"{what} ({', '.join(jobs)})" for what, jobs in jobs_with.items())
    raise UserError(f"{len(problems)} of {total} jobs cannot run, none was started: {told}")


def _resolved(node: DictConfig) -> DictConfig:
    """A job's configuration without Hydra's own part, with ${hydra:...} resolved."""
    state = HydraConfig.instance()
    before = state.cfg
    state.set_config(node)
    try:
        unsupported.require_placed(node)
        own = OmegaConf.masked_copy(node, [str(key) for key in node if key != "hydra"])
        OmegaConf.resolve(own)
    finally:
        state.cfg = before
    return own


def _is_hydras(word: str) -> bool:
    """Whether an override is Hydra's own, but not of sweeper, launcher or mode."""
    key = word.lstrip("+~")
    return key.startswith(("hydra.", "hydra/")) and not key[6:].startswith(
        ("mode", "launcher", "sweep")
    )
