"""Whether there is memory for what was asked, said before it is taken.

What is counted is the least that a thing can do with, so that nothing is refused that would fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from posbench.config import ModelConfig, TrainConfig
from posbench.errors import UserError

NUMBER = 4  # bytes: float32
TRAINED = 4  # numbers a parameter: itself, its gradient, AdamW's two moments
LAYER = 20_000  # bytes of a layer that are not numbers
CGROUP = Path("/sys/fs/cgroup")


class NotEnough(UserError, MemoryError):
    """More memory is needed than there is."""


def require(what: str, needed: int, device: torch.device | None = None) -> None:
    """Raise NotEnough if less than `needed` bytes are free on a device; None: a CPU."""
    there = available(device)
    if there is not None and needed > there:
        kind = "cpu" if device is None else device.type
        raise NotEnough(
            f"{what} needs at least {_size(needed)} of memory, and {_size(there)} are free "
            f"({kind}); lower the sizes"
        )


def available(device: torch.device | None = None) -> int | None:
    """Free bytes: of a CUDA device, or of this machine or container; None: not to be known."""
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


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


def weights(model: ModelConfig, vocabulary: int) -> int:
    """Parameters outside the encoding: the tokens' vectors, matrices and norms."""
    width = model.width
    layer = width * (4 * width + 2 * model.feed_forward + 4)
    return vocabulary * width + model.layers * layer + 2 * width


def require_model(model: ModelConfig, vocabulary: int) -> None:
    """Raise NotEnough where the weights alone would not fit, before any of them is made."""
    needed = NUMBER * weights(model, vocabulary) + LAYER * model.layers
    require(f"model (width {model.width}, {model.layers} layers)", needed)


def require_training(
    model: nn.Module, sizes: ModelConfig, train: TrainConfig, device: torch.device, bytes_: int
) -> None:
    """Raise NotEnough where optimizer and activations, of so many bytes a number, would not fit.

    Of each token and layer at least the inputs of two norms, three projections, the attention,
    its output and the two sides of the feed-forward's GELU wait for the way back.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    there = parameters if device.type == "cpu" else 0  # made already
    tokens = train.batch * train.length
    kept = tokens * sizes.layers * (8 * sizes.width + 2 * sizes.feed_forward)
    needed = NUMBER * (TRAINED * parameters - there) + bytes_ * kept
    asked = f"train.batch={train.batch}, train.length={train.length}"
    require(f"training ({parameters:,} parameters, {asked})", needed, device)


def require_pass(
    what: str,
    tokens: int,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> None:
    """Raise NotEnough where one layer could not hand so many tokens to the next."""
    require(what, dtype.itemsize * tokens * model.width, device)


def require_module(what: str, make: Callable[[], nn.Module]) -> None:
    """Raise NotEnough where what `make` makes would not fit, from its shapes alone.

    Nothing is said of a constructor that looks at its numbers.
    """
    try:
        with torch.device("meta"):
            made = make()
    except (NotImplementedError, RuntimeError):
        return
    tensors: list[Tensor] = [*made.parameters(), *made.buffers()]
    require(what, sum(tensor.numel() * tensor.itemsize for tensor in tensors))
