"""What Hydra's launcher does with this process: its job, on what cores, and beside which others.

Only the job's own configuration is read, so a worker process or another machine knows it too.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from posbench.errors import UserError
from posbench.machine.job import Job, usable_cores

# Launchers that need a plugin, and the extra of posbench that brings it.
EXTRAS = {
    "joblib": "joblib",
    "ray": "ray",
    "ray_aws": "ray",
    "submitit_local": "submitit",
    "submitit_slurm": "submitit",
}


def in_multirun() -> bool:
    """Whether this process runs a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def uses_other_processes(hydra: Any) -> bool:
    """Whether the launcher in Hydra's part of a configuration runs jobs in other processes."""
    return not hydra.launcher._target_.endswith(".BasicLauncher")


def job(total: int | None = None) -> Job:
    """The job that this process runs. total: how many jobs the sweep has, if known."""
    asked = _asked()
    if asked is None:
        return Job()
    number, share = int(asked.job.num) + 1, _share(asked, usable_cores())
    return Job(number, total, uses_other_processes(asked), share)


def enter_folder() -> None:
    """Change to the folder where the sweep was started: a cluster's worker starts in another.

    Relative paths, run.root among them, then mean the same everywhere. Raises UserError where
    this machine does not have that folder.
    """
    asked = _asked()
    if asked is None or asked.runtime.cwd == os.getcwd():
        return
    try:
        os.chdir(asked.runtime.cwd)
    except OSError as error:
        raise UserError(
            f"{socket.gethostname()}: {asked.runtime.cwd}, where the sweep was started, cannot be "
            f"entered ({error.strerror}); start it in a folder that all machines share"
        ) from error


def _asked() -> Any:
    """Hydra's own configuration in a job of a sweep, else None."""
    return HydraConfig.get() if in_multirun() else None


def _share(asked: Any, usable: int) -> float:
    launcher = asked.launcher
    if (jobs := launcher.get("n_jobs")) is not None:  # joblib: -1 is a job a core, -2 one less
        return usable / (jobs if jobs > 0 else max(1, usable + 1 + jobs))
    if "ray" in launcher:  # counts one core for a task that says nothing
        return launcher.ray.remote.get("num_cpus") or 1
    if cpus := launcher.get("cpus_per_task"):  # submitit
        return cpus
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":  # starts all jobs of a batch at once
        return usable / (asked.sweeper.get("max_batch_size") or usable)
    return usable
