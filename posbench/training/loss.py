"""The training loss, from states to nats, without the logits of all tokens at once.

Shapes: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 1024  # tokens at a time


def cross_entropy(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean over N tokens of -log softmax(W x)[target], in nats: a scalar, float32 at least.

    states [N, D], weight [V, D], targets [N]. Products are in autocast's dtype, all else is
    exact. Gradients are made on the way, ROWS tokens at a time: no [N, V] is ever there.
    """
    loss: Tensor = _CrossEntropy.apply(states, weight, targets)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        exact = torch.promote_types(states.dtype, torch.float32)
        total = states.new_zeros((), dtype=exact)
        by_states = torch.empty_like(states, dtype=exact)
        by_weight = torch.zeros_like(weight, dtype=exact)
        for part, wanted, out in zip(
            states.split(ROWS), targets.split(ROWS), by_states.split(ROWS), strict=True
        ):
            logits = F.linear(part, weight).to(exact)
            wanted = wanted[:, None]
            size = logits.logsumexp(dim=1, keepdim=True)
            total += (size - logits.gather(1, wanted)).sum()
            slope = logits.sub_(size).exp_()  # softmax
            slope.scatter_add_(1, wanted, slope.new_full((), -1.0).expand_as(wanted))
            slope /= len(states)
            out.copy_(slope @ weight.to(exact))
            by_weight += slope.T @ part.to(exact)
        ctx.save_for_backward(by_states, by_weight)
        ctx.dtypes = states.dtype, weight.dtype
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        by_states, by_weight = (
            (grad * x).to(dtype) for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return by_states, by_weight, None
