"""This process's job among those of a sweep: its number, and what of the machine is its own.

The Hydra room says it when a job begins; it stays as it is here where there is no sweep.
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
    """The cores that are this job's: all that the process may use, or its share of them."""
    usable = usable_cores()
    return usable if current.share is None else max(1, min(usable, int(current.share)))


def usable_cores() -> int:
    """All that the process may use; under SLURM those of the allocation."""
    return len(os.sched_getaffinity(0))
