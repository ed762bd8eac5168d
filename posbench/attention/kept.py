"""Attention in short windows: the few weights are kept for backward instead of recomputed.

Each block of queries is one near piece, with all keys that its queries see.

Shapes: H heads, B batch, T queries, C queries and K columns of a piece, d head width.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posbench.attention.backward import Sums, returned
from posbench.attention.forward import valued
from posbench.attention.pieces import Plan
from posbench.attention.terms import Terms, logits, mask


def attend_keeping(plan: Plan, rows: list[slice], terms: Terms) -> Tensor:
    """Outputs [H, B, T, d], some rows of the batch at a time."""
    out: Tensor = _Kept.apply(plan, rows, *terms)  # type: ignore[no-untyped-call]
    return out


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, rows: list[slice], *tensors: Tensor | None) -> Tensor:
        t = Terms._make(tensors).contiguous()
        ctx.plan, ctx.rows = plan, rows
        outs, kept = zip(*(_attend(t.batch(b).exact(), plan.batch(b)) for b in rows), strict=True)
        ctx.save_for_backward(*t, *itertools.chain(*kept))
        return torch.cat(outs, dim=1).to(t.v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        count = len(Terms._fields)
        t, kept = Terms._make(ctx.saved_tensors[:count]), iter(ctx.saved_tensors[count:])
        parts = []
        for b in ctx.rows:
            plan = ctx.plan.batch(b)
            weights = [next(kept) for _ in plan.blocks()]
            parts.append(_gradients(t.batch(b), weights, grad[:, b].contiguous(), plan))
        return None, None, *returned(t, ctx.needs_input_grad[2:], parts)


def _attend(t: Terms, plan: Plan) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and each block's weights [H, B, C, K]."""
    outs, kept = [], []
    for (piece,) in plan.blocks():
        weights = logits(t, piece, plan.scale, mask(t, piece, plan)).softmax(-1)
        outs.append(valued(t, piece, plan, weights))
        kept.append(weights)
    return torch.cat(outs, dim=2), kept


def _gradients(t: Terms, kept: list[Tensor], grad: Tensor, plan: Plan) -> dict[str, Tensor]:
    sums = Sums(t, grad, plan, learned=True)
    for (piece,), weights in zip(sums.blocks(), reversed(kept), strict=True):
        dp = sums.by_weight(piece)
        delta = torch.linalg.vecdot(weights, dp)[..., None]
        sums.near(piece, weights, dp.sub_(delta).mul_(weights))
    return sums.sums
