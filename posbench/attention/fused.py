"""Fused attention for every cell but `scores` and `position_bias`, in memory for one piece.

Where distance alone decides, a mask is a strided view (skew.py); where it says nothing beyond a
clip, there is no mask at all (pieces.py). What is left to do is torch's fused kernel, forward and
backward, and for the tables' gradients the weights once more, a piece at a time (backward.py).

Positions with gaps (span.consecutive is False) have no such views: what they need beyond
rotations is left to blocked.py, as is dropout of the weights, which the CPU's kernel does not do.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention.backward import Gradients
from posbench.attention.blocked import blocked_attention
from posbench.attention.decay import decays
from posbench.attention.forward import attend
from posbench.attention.pieces import Cut
from posbench.attention.precision import precise, without_autocast
from posbench.attention.terms import Terms
from posbench.encodings import Encoding, Span

TABLES = ("distance_bias", "distance_keys", "distance_queries", "distance_values", "decay")
BLOCK = 1024  # queries at a time where every mask is a view
BLOCKS = 4  # at least so many, of TABLE_BLOCK at least: what the future holds is not computed
TABLE_BLOCK = 128  # queries at a time where masks or weights are built
BUILT = 2**19  # numbers in what is built at a time, about: it stays in the cache


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
    rotated = (rotated_q.to(dtype), rotated_k.to(dtype), v.to(dtype))
    job = _Job.of(encoding, span)
    if not (filled or job.masked):
        return F.scaled_dot_product_attention(
            *rotated, dropout_p=dropout, is_causal=True, scale=encoding.scale
        ).to(v.dtype)
    if dropout:
        return blocked_attention(q, k, v, encoding, layer, span, dropout, x)
    terms = _terms(q, k, rotated, encoding, layer, span, x, job)
    return _Fused.apply(job, *terms).transpose(0, 1).to(v.dtype)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What of an attention has no gradient. hidden [B, S] is of reversed keys."""

    queries: int
    keys: int
    scale: float
    window: int | None
    clip: int | None
    hidden: Tensor | None

    @classmethod
    def of(cls, encoding: Encoding, span: Span) -> _Job:
        keys, window = len(span.keys), encoding.window
        window = window if window is not None and window < keys else None
        hidden = None if span.hidden is None else span.hidden.flip(-1)
        clip = encoding.clip if any(map(encoding.fills, TABLES)) else 0
        mixed = encoding.fills("rotate") and encoding.fills("distance_queries")
        if window is not None or hidden is not None or encoding.fills("decay") or mixed:
            clip = None
        return cls(len(span.queries), keys, encoding.scale, window, clip, hidden)

    @property
    def masked(self) -> bool:
        """Whether anything but the future is out of sight, or the queries are not all the keys."""
        return self.window is not None or self.hidden is not None or self.queries != self.keys

    def forward(self, t: Terms) -> tuple[Tensor, Tensor]:
        """Outputs [H, B, T, d] and logsumexps [H, B, T]."""
        t = t if t.values is None else t.exact()
        cut, rows = self.cut(t, t.built or t.values is not None or self.hidden is not None)
        parts = [attend(t.batch(b), cut, self.scale, self._hidden(b)) for b in rows]
        outs, sums = zip(*parts, strict=True)
        return torch.cat(outs, dim=1), torch.cat(sums, dim=1)

    def backward(self, t: Terms, out: Tensor, total: Tensor, grad: Tensor, learned: bool) -> Terms:
        """The gradients of the terms, in float32 at least."""
        t = t if t.values is None else t.exact()
        cut, rows = self.cut(t, learned or t.values is not None or self.hidden is not None)
        parts = []
        for b in rows:
            here = (t.batch(b), out[:, b], total[:, b], grad[:, b].contiguous())
            sums = Gradients(*here, cut, self.scale, self._hidden(b), learned)
            parts.append(sums.add_all())
        return Terms.joined(parts)

    def cut(self, t: Terms, built: bool) -> tuple[Cut, list[slice]]:
        """How to go through the keys and, a few rows at a time, through the batch."""
        heads, batch = t.q.shape[:2]
        block = max(TABLE_BLOCK, min(BLOCK, -(-self.queries // BLOCKS)))
        tile, size = None, batch
        if built:
            block = TABLE_BLOCK
            width = max(block, BUILT // (heads * block))
            size = max(1, BUILT // (heads * block * min(width, self.keys)))
            tile = width if self.window is None and self.hidden is None else None
        cut = Cut(self.queries, self.keys, self.window, self.clip, block, tile)
        return cut, [slice(b, min(b + size, batch)) for b in range(0, batch, size)]

    def _hidden(self, rows: slice) -> Tensor | None:
        return None if self.hidden is None else self.hidden[rows]


def _terms(
    q: Tensor,
    k: Tensor,
    rotated: tuple[Tensor, Tensor, Tensor],
    encoding: Encoding,
    layer: int,
    span: Span,
    x: Tensor | None,
    job: _Job,
) -> Terms:
    """Un-rotated q and k, rotated ones and v, and what the encoding says of the distances."""
    distance = span.distances
    if job.clip is not None:
        distance = distance[: job.clip + max(BLOCK, TABLE_BLOCK)]  # no near piece has larger ones
    exact = precise(rotated[0].dtype)
    keys = encoding.distance_keys(distance, layer)
    queries = encoding.distance_queries(distance, layer)
    passed = decays(encoding, x, layer)  # [B, H, S]
    first_q, first_k, first_v = (each.transpose(0, 1) for each in rotated)
    return Terms(
        first_q,
        first_k.flip(2),
        first_v.flip(2),
        None if keys is None else encoding.scale * q.transpose(0, 1).to(exact),
        None if queries is None else encoding.scale * k.transpose(0, 1).flip(2).to(exact),
        encoding.distance_bias(distance, layer),
        keys,
        queries,
        encoding.distance_values(distance, layer),
        None if passed is None else passed.transpose(0, 1).double().cumsum(-1).flip(-1),
    )


class _Fused(torch.autograd.Function):
    """Gradients for what torch's fused kernel has none for: whatever is in a mask."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *tensors: Tensor | None) -> Tensor:
        out, total = job.forward(Terms(*tensors))
        ctx.job = job
        ctx.save_for_backward(*tensors, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, total = ctx.saved_tensors
        learned = any(ctx.needs_input_grad[1 + Terms._fields.index("content_q") :])
        found = ctx.job.backward(Terms(*tensors), out, total, grad, learned)
        wanted = ctx.needs_input_grad[1:]
        return None, *(
            None if x is None or g is None or not want else g.to(x.dtype)
            for x, g, want in zip(tensors, found, wanted, strict=True)
        )
