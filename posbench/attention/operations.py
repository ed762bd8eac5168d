"""Floating-point operations of a call, counted while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

MOVES = {"clone", "where", "masked_fill", "copy_", "fill_"}  # which PyTorch calls pointwise
FOLDS = {"cumsum", "sum", "mean", "log_sigmoid_forward", "_softmax"}  # which it does not
MULTIPLY_ADDS = {"addcmul"}  # pointwise, two operations a number


def operations(call: Callable[[], object]) -> int:
    """Floating-point operations of a call: two for each multiply-add, otherwise one for each
    number, whatever the function (an addition, a cosine). Moving numbers is free."""
    with torch.no_grad(), _Counter() as counter:
        call()
    return counter.total


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the answer True, PyTorch's own, imports torch._dynamo, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            self.total += flop_registry[packet](*args, **kwargs, out_val=out)
        elif _is_arithmetic(func, packet.__name__):
            self.total += _numbers((args, out)) * (1 + (packet.__name__ in MULTIPLY_ADDS))
        return out


def _is_arithmetic(func: Any, name: str) -> bool:
    return name in FOLDS or (torch.Tag.pointwise in func.tags and name not in MOVES)


def _numbers(values: object) -> int:
    """The size of the largest floating-point tensor read or written; 0 without one."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return max((t.numel() for t in tensors if t.is_floating_point()), default=0)
