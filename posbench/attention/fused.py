"""Fused attention for every cell but `scores` and `position_bias`, with RAM for one piece.

Where distance alone decides, a mask is a strided view (skew.py); where it says nothing beyond a
clip, there is no mask at all (pieces.py). What is left to do is torch's fused kernel, forward and
backward, and for the tables' gradients the weights once more, a piece at a time (backward.py).
Short windows have ways of their own: one mask for all of the batch (`_short`), and weights that
are written out and kept for backward (kept.py).

Positions with gaps (span.consecutive is False) have no such views: what they need beyond
rotations is left to blocked.py, as is dropout of the weights, which the CPU's kernel does not do.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from posbench.attention.backward import PLAIN, Gradients, returned
from posbench.attention.blocked import blocked_attention
from posbench.attention.decay import decays
from posbench.attention.forward import attend, takes
from posbench.attention.kept import attend_keeping
from posbench.attention.pieces import Plan
from posbench.attention.precision import precise, without_autocast
from posbench.attention.terms import Terms, whole_mask
from posbench.encodings import Encoding, Span

TABLES = ("distance_bias", "distance_keys", "distance_queries", "distance_values", "decay")
BLOCK = 1024  # queries at a time where every mask is a view: torch's kernel is fastest from 768 on
LEAST_BLOCK = 256  # where BLOCK would be half of all, or more: much of it would be the future
TABLE_BLOCK = 128  # queries at a time where masks or weights are built, fewer of short windows
WIDE = 256  # keys up to which a CPU trains in float32: its backward is slow there in bfloat16
KEPT = 8  # keys, in head widths, up to which a CPU keeps the weights for backward (kept.py)
BUILT = 2**20  # numbers in what is built at a time, about: it stays in the cache


@without_autocast
def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    layer: int,
    span: Span,
    dropout: float = 0.0,
    x: Tensor | None = None,
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], un-rotated -> [B, H, T, d]."""
    encoding, layer = encoding.at(layer)
    for cell in ("scores", "position_bias"):
        if encoding.fills(cell):
            raise ValueError(f"{type(encoding).__name__} fills the cell `{cell}`: no fused path")
    filled = any(map(encoding.fills, TABLES))
    if filled and (dropout or not span.consecutive):
        return blocked_attention(q, k, v, encoding, layer, span, dropout, x)
    rotated_q, rotated_k = encoding.rotate(q, k, span, layer)
    dtype = torch.promote_types(v.dtype, rotated_q.dtype)
    if torch.is_grad_enabled() and k.shape[2] <= WIDE and q.device.type == "cpu":
        dtype = precise(dtype)
    rotated = (rotated_q.to(dtype), rotated_k.to(dtype), v.to(dtype))
    plan = planned(encoding, span)
    masked = plan.window is not None or span.hidden is not None or q.shape[2] != k.shape[2]
    if masked and dropout:
        return blocked_attention(q, k, v, encoding, layer, span, dropout, x)
    tables = _tables(q, k, rotated[0].dtype, encoding, layer, span, x, plan) if filled else {}
    if not (masked or tables):
        return F.scaled_dot_product_attention(
            *rotated, dropout_p=dropout, is_causal=not span.two_sided, scale=encoding.scale
        ).to(v.dtype)
    if _short(plan, rotated, tables):
        mask = whole_mask(tables.get("bias"), plan, rotated[0])
        return F.scaled_dot_product_attention(
            *rotated, attn_mask=mask.expand(*q.shape[:3], -1), scale=encoding.scale
        ).to(v.dtype)
    return _attended(plan, _terms(rotated, tables)).transpose(0, 1).to(v.dtype)


def _short(
    plan: Plan, rotated: tuple[Tensor, Tensor, Tensor], tables: Mapping[str, Tensor]
) -> bool:
    """Whether to write one mask for all of the batch, which wants no gradient: for one block of
    queries, and no larger than the queries are: reversing the keys costs more."""
    q, _, v = rotated
    fixed = all(name == "bias" and not table.requires_grad for name, table in tables.items())
    few = plan.queries <= LEAST_BLOCK and plan.queries * plan.keys <= q[:, 0].numel()
    return fixed and few and _reached(plan) and plan.hidden is None and takes(q, v)


def _reached(plan: Plan) -> bool:
    """Whether `distances` gives all that there are, whatever the clip."""
    return plan.keys <= max(BLOCK, TABLE_BLOCK)


def _attended(plan: Plan, terms: Terms) -> Tensor:
    if _keeps(plan, terms):
        plan, rows = by_rows(dataclasses.replace(plan, clip=None), *terms.q.shape[:2])
        return attend_keeping(dataclasses.replace(plan, tile=None), rows, terms)
    out: Tensor = _Fused.apply(plan, *terms)  # type: ignore[no-untyped-call]
    return out


def _keeps(plan: Plan, terms: Terms) -> bool:
    """Whether to keep the weights for backward: something in the mask learns, and they are few."""
    learns = any(t is not None and t.requires_grad for t in terms[len(PLAIN) :])
    few = plan.keys <= KEPT * terms.q.shape[-1] and terms.q.device.type == "cpu"
    return torch.is_grad_enabled() and learns and few and _reached(plan)


def hide_from_compilers() -> None:
    """Call it before torch.compile: Inductor fails on these views (Shaw's, torch 2.13).

    On demand, because torch's own imports for it take longer than many a run's first step.
    """
    global _attended
    if not hasattr(_attended, "_torchdynamo_disable"):
        _attended = torch.compiler.disable(_attended)


def takes_dropout(encoding: Encoding) -> bool:
    """Whether weights can be dropped without leaving them to blocked.py."""
    return encoding.window is None and not any(map(encoding.fills, TABLES))


def planned(encoding: Encoding, span: Span) -> Plan:
    """The Plan of one layer where all masks are views: large blocks of queries."""
    queries, keys, window = len(span.queries), len(span.keys), encoding.window
    window = window if window is not None and window < keys else None
    hidden = None if span.hidden is None else span.hidden.flip(-1)
    clip = encoding.clip if any(map(encoding.fills, TABLES)) else 0
    turned = encoding.fills("rotate") and encoding.fills("distance_queries")
    if window is not None or hidden is not None or encoding.fills("decay") or turned:
        clip = None
    if span.two_sided and clip is not None and keys <= 2 * clip + LEAST_BLOCK:
        clip = None  # far pieces would be small
    seen = queries if window is None else min(queries, window)
    block = BLOCK if seen >= 2 * BLOCK else LEAST_BLOCK
    built = TABLE_BLOCK
    if not span.two_sided:  # smaller ones leave out more of the future
        built = min(built, max(TABLE_BLOCK // 4, queries // 8))
    elif clip is None and encoding.fills("distance_queries"):
        built *= 2  # k . Q is computed by columns, for one distance a query and some over
    lowest = 1 - _reach(keys, clip) if span.two_sided else 0
    scale = encoding.scale
    return Plan(
        queries,
        keys,
        scale,
        window,
        clip,
        hidden,
        block,
        built,
        two_sided=span.two_sided,
        lowest=lowest,
        ahead=_ahead(span),
    )


def _ahead(span: Span) -> int:
    """Keys after the last query's own: a block of a two-sided window has some."""
    block = span.two_sided and span.whole is not None
    return len(span.keys) - 1 - int(span.own[-1]) if block else 0


def _reach(keys: int, clip: int | None) -> int:
    """How many distances from 0 on a near piece can have, or a far one needs."""
    return keys if clip is None else min(keys, clip + max(BLOCK, TABLE_BLOCK))


def by_rows(plan: Plan, heads: int, batch: int) -> tuple[Plan, list[slice]]:
    """The Plan where masks or weights are built: smaller blocks, a few rows of the batch each."""
    block = plan.built
    tile = max(block, BUILT // (heads * block))
    sides = 2 if plan.two_sided else 1
    near = plan.keys if plan.clip is None else min(plan.keys, block + sides * plan.clip)
    size = max(1, BUILT // (heads * block * min(tile, near)))
    whole = plan.window is not None or plan.hidden is not None
    plan = dataclasses.replace(plan, block=block, tile=None if whole else tile)
    return plan, [slice(b, b + size) for b in range(0, batch, size)]


def distances(plan: Plan, span: Span) -> Tensor:
    """The distances plan.lowest, ... that tables are computed for: all that pieces read."""
    return torch.arange(plan.lowest, _reach(plan.keys, plan.clip), device=span.keys.device)


def _tables(
    q: Tensor,
    k: Tensor,
    dtype: torch.dtype,
    encoding: Encoding,
    layer: int,
    span: Span,
    x: Tensor | None,
    plan: Plan,
) -> dict[str, Tensor]:
    """The terms that the encoding fills; q and k are un-rotated, dtype is that of the rotated."""
    distance, exact = distances(plan, span), precise(dtype)
    given = {
        "bias": encoding.distance_bias(distance, layer),
        "keys": encoding.distance_keys(distance, layer),
        "queries": encoding.distance_queries(distance, layer),
        "values": encoding.distance_values(distance, layer),
    }
    tables = {name: table for name, table in given.items() if table is not None}
    if "keys" in tables:
        tables["content_q"] = encoding.scale * q.transpose(0, 1).to(exact)
    if "queries" in tables:
        tables["content_k"] = encoding.scale * k.transpose(0, 1).flip(2).to(exact)
    passed = decays(encoding, x, layer)  # [B, H, S]
    if passed is not None:
        tables["passed"] = passed.transpose(0, 1).double().cumsum(-1).flip(-1)
    return tables


def _terms(rotated: tuple[Tensor, Tensor, Tensor], tables: Mapping[str, Tensor]) -> Terms:
    q, k, v = (_row_by_row(each).transpose(0, 1) for each in rotated)
    return Terms(q, k.flip(2), v.flip(2), **tables)


def _row_by_row(x: Tensor) -> Tensor:
    """x with contiguous rows, which torch's kernel, called directly, relies on."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Fused(torch.autograd.Function):
    """Gradients for what torch's fused kernel has none for: whatever is in a mask."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor | None) -> Tensor:
        t = Terms._make(tensors)
        t = t.contiguous() if t.built else t  # once, for backward too
        ctx.plan, kept = plan, t
        t = t if t.values is None else t.exact()
        plan, rows = _cut(plan, t, t.built)
        outs, totals = zip(*(attend(t.batch(b), plan.batch(b)) for b in rows), strict=True)
        out = torch.cat(outs, dim=1) if len(rows) > 1 else outs[0]
        ctx.save_for_backward(*kept, out, torch.cat(totals, dim=1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, total = ctx.saved_tensors
        t = Terms._make(tensors)
        wanted = ctx.needs_input_grad[1:]
        learned = any(wanted[len(PLAIN) :])
        t = t if t.values is None else t.exact()
        # Forward's blocks where it built: decays are counted from each block's first query.
        plan, rows = _cut(ctx.plan, t, learned or t.built)
        parts = []
        for b in rows:
            answer, here = (out[:, b], total[:, b]), grad[:, b].contiguous()
            parts.append(Gradients(t.batch(b), answer, here, plan.batch(b), learned).add_all())
        return None, *returned(Terms._make(tensors), wanted, parts)


def _cut(plan: Plan, t: Terms, built: bool) -> tuple[Plan, list[slice]]:
    """built: whether a mask has numbers of its own for each query and key, or weights are written
    out, for other reasons than V(n) and hidden keys."""
    if built or t.values is not None or plan.hidden is not None:
        return by_rows(plan, *t.q.shape[:2])
    return plan, [slice(None)]
