"""Which job of a sweep this process runs, and its share of the machine.

hydra_app/sweep.py sets `current` when a job begins; without a sweep it stays the default.
"""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Job:
    """number: from 1; 0 where there is no sweep. total: None where it is not known."""

    number: int = 0
    total: int | None = None
    beside_others: bool = False  # whether others may run at the same time
    share: float | None = None  # in cores; None: all that this process may use


current = Job()


def cores() -> int:
    """How many cores this job may use."""
    usable = usable_cores()
    return usable if current.share is None else max(1, min(usable, int(current.share)))


def usable_cores() -> int:
    """How many cores the process may use; under SLURM those of the allocation."""
    return len(os.sched_getaffinity(0))
