"""Whether there is RAM, or memory of a GPU, for what was asked, said before it is taken.

What is counted is the least that a thing can do with, so that nothing is refused that would fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from posbench.errors import UserError

CGROUP = Path("/sys/fs/cgroup")


class NotEnough(UserError, MemoryError):
    """More RAM, or memory of a GPU, is needed than is free."""


def require(what: str, needed: int, device: torch.device | None = None) -> None:
    """Raise NotEnough if less than `needed` bytes are free on a device; None: a CPU."""
    there = available(device)
    if there is not None and needed > there:
        kind = "cpu" if device is None else device.type
        raise NotEnough(
            f"{what} needs at least {gib(needed)} of memory, and {gib(there)} are free "
            f"({kind}); lower the sizes"
        )


def available(device: torch.device | None = None) -> int | None:
    """Free bytes of a CUDA device, else RAM of this machine or container; None: unknown."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = []
    with contextlib.suppress(OSError):  # not Linux
        kilobytes = dict(map(str.split, _lines("/proc/meminfo", "MemAvailable:", "SwapFree:")))
        found.append(1024 * sum(int(number) for number in kilobytes.values()))
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        limit, used = (CGROUP / f"memory.{name}" for name in ("max", "current"))
        found.append(max(0, int(limit.read_bytes()) - int(used.read_bytes())))
    return min(found, default=None)


def _lines(path: str, *keys: str) -> list[str]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [line.removesuffix("kB") for line in lines if line.startswith(keys)]


def gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


def require_module(what: str, make: Callable[[], nn.Module]) -> None:
    """Raise NotEnough where what `make` makes would not fit, from its shapes alone.

    A constructor that reads values of its tensors cannot be checked, and passes.
    """
    try:
        with torch.device("meta"):
            made = make()
    except (NotImplementedError, RuntimeError):
        return
    tensors: list[Tensor] = [*made.parameters(), *made.buffers()]
    require(what, sum(tensor.numel() * tensor.itemsize for tensor in tensors))
