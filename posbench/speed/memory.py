"""Peak memory of a few passes, model and optimizer included: of the device's allocator, or of a
process that does nothing else.

On a CPU the high-water mark is that of a whole process, so each measurement has a new one
(child.py), which first runs a window of a few tokens: libraries and their threads' buffers are
then in memory before the mark is reset. There glibc gives every block of ENOUGH bytes back once it
is free: so measured, peaks repeat within 1 %, not 10 %, but a run's own are somewhat higher.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys

import torch

from posbench.config import SpeedCommand
from posbench.machine import runtime
from posbench.speed import failure
from posbench.speed.failure import Failed, told
from posbench.speed.rounds import Work
from posbench.speed.work import MODES

REHEARSED = 8  # tokens
ENOUGH = 128 * 1024  # glibc's own limit, until it raises it as blocks are freed


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes: what was in use just before, and at most."""

    before: int
    peak: int

    @property
    def used(self) -> int:
        return self.peak - self.before


def measure(config: SpeedCommand, mode: str, length: int, device: torch.device) -> Memory:
    """At least two passes, so that a step has the optimizer's state beside the gradients.

    Raises Failed where memory does not suffice, or something else goes wrong.
    """
    if device.type == "cuda":
        with told():
            return watched(config, mode, length, device)
    asked = {"config": dataclasses.asdict(config), "mode": mode, "length": length}
    said = json.loads(_answer(json.dumps(asked)))
    if "reason" in said:
        raise Failed(said["reason"])
    return Memory(**said)


def watched(config: SpeedCommand, mode: str, length: int, device: torch.device) -> Memory:
    """Measured in this process."""
    one_window = dataclasses.replace(config, speed=dataclasses.replace(config.speed, tokens=1))
    _run(MODES[mode](one_window, min(length, REHEARSED), device), 2)
    runtime.reset_peak_memory(device)
    before = runtime.peak_memory(device)
    work = MODES[mode](config, length, device)
    _run(work, work.warm + 1)
    return Memory(before, runtime.peak_memory(device))


def _run(work: Work, calls: int) -> None:
    for _ in range(calls):
        work.call()


@functools.cache  # the baseline's serves the whole sweep
def _answer(asked: str) -> str:
    return child(asked)


def child(asked: str) -> str:
    """JSON to a new process, JSON from it; {"reason": ...} where it died."""
    paths = os.pathsep.join(filter(None, sys.path))  # where a user's encoding was found
    done = subprocess.run(
        [sys.executable, "-m", "posbench.speed.child"],
        input=asked,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which then ends the new one
        env={**os.environ, "PYTHONPATH": paths, "MALLOC_MMAP_THRESHOLD_": str(ENOUGH)},
    )
    if done.returncode:
        return json.dumps({"reason": failure.died(done.returncode)})
    return done.stdout.splitlines()[-1]
