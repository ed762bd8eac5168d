"""Helpers that keep logits in float32 or better, whatever the autocast dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Kernel = TypeVar("Kernel", bound=Callable[..., Tensor])


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type of logits and biases for inputs of dtype: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(attend: Kernel) -> Kernel:
    """Run a kernel, and the encoding's hooks in it, with autocast off.

    Autocast would round positions, biases and logits to bfloat16: at distance 4,096 its step is
    16, and neighbouring distances become one.
    """

    @functools.wraps(attend)
    def exact(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            return attend(q, *args, **kwargs)

    return cast(Kernel, exact)
