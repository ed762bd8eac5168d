"""Attention piece by piece: each piece's output and logsumexp, merged into the whole's.

Shapes: H heads, B batch, C queries and K columns of a piece, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.attention.pieces import Piece, Plan
from posbench.attention.precision import precise
from posbench.attention.skew import cut, unskewed
from posbench.attention.terms import Terms, logits, mask

Part = tuple[Tensor, Tensor]  # output [H, B, C, d], and logsumexp of the logits [H, B, C]


def attend(t: Terms, plan: Plan) -> Part:
    """Outputs [H, B, T, d], and the logsumexp of all logits of a query [H, B, T]."""
    blocks = [_merged([_piece(t, piece, plan) for piece in pieces]) for pieces in plan.blocks()]
    outs, sums = zip(*blocks, strict=True)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def _piece(t: Terms, piece: Piece, plan: Plan) -> Part:
    if piece.far:
        return _far(t, piece, plan)
    here = mask(t, piece, plan)
    if t.values is not None:
        return _weighted(t, piece, plan, here)
    return flash(t.q[:, :, piece.rows], t.k, t.v, piece, plan.scale, here)


def _far(t: Terms, piece: Piece, plan: Plan) -> Part:
    """No mask: past the clip each table is one vector, the same for all keys."""
    q, constant, value = far_terms(t, piece, plan)
    out, total = flash(q, t.k, t.v, piece, plan.scale, None)
    total = total if constant is None else total + constant
    return out if value is None else out + value, total


def far_terms(t: Terms, piece: Piece, plan: Plan) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """For a far piece: queries, what is added to a query's logits [H, B, C], and to all values.

    q . k + k . Q is (q + Q) . k: content_k is k wherever there are far pieces.
    """
    assert plan.clip is not None
    place = piece.far * plan.clip - plan.lowest
    q = t.q[:, :, piece.rows]
    if t.queries is not None:
        q = q + t.queries[:, None, place, None].to(q.dtype)
    constant = None if t.bias is None else t.bias[:, place, None, None]
    if t.keys is not None and t.content_q is not None:
        asked = t.content_q[:, :, piece.rows].to(t.keys.dtype)
        term = (asked @ t.keys[:, None, place, :, None]).squeeze(-1)
        constant = term if constant is None else constant + term
    value = None if t.values is None else t.values[:, None, place, None].to(q.dtype)
    return q, constant, value


def takes(q: Tensor, v: Tensor) -> bool:
    """Whether torch's CPU kernel, which gives the logsumexp too, can be called."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def flash(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, scale: float, mask: Tensor | None
) -> Part:
    """q [H, B, C, d] over the piece's columns of k and v, by the CPU's kernel or written out."""
    k, v = k[:, :, piece.columns], v[:, :, piece.columns]
    if mask is not None:
        mask = mask.expand(*q.shape[:3], -1)
    if takes(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=mask, scale=scale
        )
    exact = precise(q.dtype)
    dots = (scale * q).to(exact) @ k.to(exact).mT
    dots = dots if mask is None else dots + mask
    total = dots.logsumexp(-1)
    return ((dots - total[..., None]).exp().to(v.dtype) @ v), total


def _weighted(t: Terms, piece: Piece, plan: Plan, mask: Tensor) -> Part:
    """With V(n): the weights are needed, shifted from keys to distances."""
    all_logits = logits(t, piece, plan.scale, mask)
    total = all_logits.logsumexp(-1)
    return valued(t, piece, plan, all_logits.sub_(total[..., None]).exp_()), total


def valued(t: Terms, piece: Piece, plan: Plan, weights: Tensor) -> Tensor:
    """The weights' sums of values, V(n) among them."""
    out = weights @ t.v[:, :, piece.columns]
    if t.values is None:
        return out
    values = cut(t.values, plan.lowest, piece.distance, piece.diagonals)  # [H, W, d]
    return out + unskewed(weights) @ values[:, None]


def _merged(parts: list[Part]) -> Part:
    """Softmax over the union of the parts' keys."""
    if len(parts) == 1:
        return parts[0]
    total = torch.stack([each for _, each in parts]).logsumexp(0)
    dtype = parts[0][0].dtype
    out = sum(part * (each - total).exp()[..., None] for part, each in parts)
    assert isinstance(out, Tensor)
    return out.to(dtype), total
