"""Peak RAM of a few passes, model and optimizer included.

On CUDA the device's allocator knows it. On a CPU the high-water mark is that of a whole process,
so each measurement has a new process (child.py). It first runs a window of a few tokens, so that
libraries and their threads' buffers are loaded before the mark is reset. glibc there returns every
free block of ENOUGH bytes or more: peaks then repeat within 1 %, not 10 %, but a real run's are
somewhat higher.
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

REHEARSED = 8  # tokens of the window before the mark is reset
ENOUGH = 128 * 1024  # glibc's initial threshold, which it otherwise raises as blocks are freed


@dataclasses.dataclass(frozen=True)
class Memory:
    """RAM in bytes: in use just before the passes, and at most during them."""

    before: int
    peak: int

    @property
    def used(self) -> int:
        return self.peak - self.before


def measure(config: SpeedCommand, mode: str, length: int, device: torch.device) -> Memory:
    """Peak RAM of at least two passes, so that optimizer state and gradients are both there.

    Raises Failed where RAM does not suffice, or something else goes wrong.
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
    """Peak RAM, measured in this process."""
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


@functools.cache  # the baseline is measured once for the whole sweep
def _answer(asked: str) -> str:
    return child(asked)


def child(asked: str) -> str:
    """Send JSON to a new process, return the JSON it prints; {"reason": ...} where it died."""
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
