"""Fused attention, one block of queries at a time, for every cell but `scores`.

Softmax does not care about the order of keys. With keys and values reversed, j' = S - 1 - j, the
distance of query i (of C in the block) and key j' is i + j' - (C - 1): a table over distances
becomes a [C, S] mask as a *strided view*, without a copy.

    bias(n)         one row of W = C - 1 + S numbers, strides (1, 1)
    q_i . R(n)      a row per query,                  strides (W + 1, 1)
    k_j . Q(n)      a row per key, by blocks of keys, strides (1, W' + 1)

The first C - 1 entries of a row belong to negative distances and are -inf: causality. So are
those past the encoding's window.

Positions with gaps (span.consecutive is False) have no such views: what they need beyond
rotations is left to blocked.py.

Shapes: B batch, H heads, T queries, S keys, d head width, C queries in the block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention.blocked import blocked_attention
from posbench.attention.decay import decays, passed_between
from posbench.attention.precision import precise, without_autocast
from posbench.encodings import Encoding, Span

BLOCK = 1024  # queries at a time where a mask is a view: on a CPU [BLOCK, S] is never built
TABLE_BLOCK = 128  # where it is a [B, H, TABLE_BLOCK, S] product: what stays in the cache


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
    if encoding.fills("scores"):
        raise ValueError(f"{type(encoding).__name__} fills the cell `scores`: no fused attention")
    rotated_q, rotated_k = encoding.rotate(q, k, span, layer)
    dtype = torch.promote_types(v.dtype, rotated_q.dtype)
    tables = _Tables(encoding, layer, span, x, precise(dtype))
    if not (tables.empty or span.consecutive):
        return blocked_attention(q, k, v, encoding, layer, span, dropout, x)
    rotated = (rotated_q.to(dtype), rotated_k.to(dtype), v.to(dtype))
    if tables.empty and span.hidden is None and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(
            *rotated, dropout_p=dropout, is_causal=True, scale=encoding.scale
        ).to(v.dtype)
    return _by_blocks(q, k, rotated, tables, span, dropout).to(v.dtype)


def _by_blocks(
    q: Tensor,
    k: Tensor,
    rotated: tuple[Tensor, Tensor, Tensor],
    tables: _Tables,
    span: Span,
    dropout: float,
) -> Tensor:
    """Un-rotated q and k, rotated ones and v -> [B, H, T, d], over reversed keys."""
    length, keys = q.shape[2], k.shape[2]
    rotated_q, rotated_k, v = rotated
    k, rotated_k, v = (each.flip(2) for each in (k, rotated_k, v))
    attend = _plain if tables.values is None else _weighted
    size = BLOCK if tables.views else TABLE_BLOCK
    blocks = []
    for first in range(0, length, size):
        block = span.rows(first, min(first + size, length))
        unseen = keys - len(block.keys)  # of the future: reversed, they come first
        if tables.window is not None:
            block = block.last(len(block.queries) + tables.window - 1)
        rows, seen = slice(first, first + size), slice(unseen, unseen + len(block.keys))
        mask = tables.mask(q[:, :, rows], k[:, :, seen], block, keys - unseen)
        here = (rotated_q[:, :, rows], rotated_k[:, :, seen], v[:, :, seen])
        blocks.append(attend(*here, mask, tables, dropout))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


class _Tables:
    """What one layer's encoding says of the distances 0 .. S - 1; masks are of dtype exact."""

    def __init__(
        self, encoding: Encoding, layer: int, span: Span, x: Tensor | None, exact: torch.dtype
    ) -> None:
        distance, self.exact = span.distances, exact
        self.encoding, self.layer, self.scale = encoding, layer, encoding.scale
        self.bias = encoding.distance_bias(distance, layer)  # [H, S]
        self.keys = encoding.distance_keys(distance, layer)  # [H, S, d]
        self.queries = encoding.distance_queries(distance, layer)  # [H, S, d]
        self.values = encoding.distance_values(distance, layer)  # [H, S, d]
        self.decay = decays(encoding, x, layer)  # [B, H, S]
        narrow = encoding.window is not None and encoding.window < len(span.keys)
        self.window = encoding.window if narrow else None
        tables = (self.keys, self.queries, self.values, self.decay)
        self.views = not encoding.fills("position_bias") and all(t is None for t in tables)
        self.empty = self.views and self.bias is None and self.window is None

    def mask(self, q: Tensor, k: Tensor, block: Span, last: int) -> Tensor:
        """The mask [B or 1, H or 1, C, S] of q [B, H, C, d] over reversed k [B, H, S, d].

        The S keys are those up to the last'th of the whole span.
        """
        exact = self.exact
        row = self._row(q.to(exact), k.shape[2])
        *outer, height, _ = row.shape
        *steps, down, _ = row.stride()
        shape = (*outer, *q.shape[2:3], k.shape[2])
        mask = row.as_strided(shape, (*steps, 1 if height == 1 else down + 1, 1))
        if self.queries is not None:
            queries = self.scale * self.queries[:, : k.shape[2]].to(exact)
            mask = _add_by_keys(mask, k.to(exact), queries)
        if (bias := self.encoding.position_bias(block, self.layer)) is not None:
            mask = mask + bias.to(exact).flip(-1)
        if self.decay is not None:
            passed = self.decay[..., last - k.shape[2] : last]
            mask = mask + passed_between(passed.to(exact), block).flip(-1)
        if block.hidden is not None:
            mask = mask.masked_fill(block.hidden.flip(-1)[:, None, None], -torch.inf)
        return mask

    def _row(self, q: Tensor, keys: int) -> Tensor:
        """scale q_i . R(n) + bias(n) [B or 1, H or 1, C or 1, W] for n = -(C - 1) .. S - 1."""
        negative = q.shape[2] - 1
        bias = q.new_zeros(1, keys) if self.bias is None else self.bias[:, :keys].to(q.dtype)
        if self.window is not None:
            far = torch.arange(keys, device=q.device) >= self.window
            bias = bias.masked_fill(far, -torch.inf)
        bias = F.pad(bias, (negative, 0), value=-torch.inf)
        bias = bias.contiguous()[:, None]  # [H or 1, 1, W]; with nothing to pad it is as it came
        if self.keys is None:
            return bias[None]
        table = F.pad(self.keys[:, :keys].to(q.dtype), (0, 0, negative, 0))  # [H, W, d]
        flat = (self.scale * q).flatten(0, 1)  # [B H, C, d]
        table = table.expand(len(q), -1, -1, -1).flatten(0, 1)
        bias = bias.expand(len(q), q.shape[1], -1, -1).flatten(0, 1)
        return torch.baddbmm(bias, flat, table.mT).unflatten(0, q.shape[:2])


def _add_by_keys(mask: Tensor, k: Tensor, queries: Tensor) -> Tensor:
    """mask [B or 1, H or 1, C, S] + k_j' . Q(i + j' - (C - 1)), from [C, 2C] products."""
    count = mask.shape[2]
    padded = F.pad(queries, (0, 0, count - 1, 0))  # distance n in row n + count - 1
    pieces = []
    for first in range(0, k.shape[2], count):
        part = k[:, :, first : first + count]  # [B, H, K, d]
        size = part.shape[2]
        products = part @ padded[:, first : first + size + count - 1].mT  # [B, H, K, K + C - 1]
        batch, head, down, _ = products.stride()
        shape = (*products.shape[:2], count, size)
        view = products.as_strided(shape, (batch, head, 1, down + 1))
        pieces.append(mask[..., first : first + size] + view)
    return torch.cat(pieces, dim=-1)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, tables: _Tables, dropout: float
) -> Tensor:
    if q.device.type == "cuda":  # its kernels want whole rows, and one dtype: the mask's
        mask = mask.contiguous()
        q, k, v = (each.to(mask.dtype) for each in (q, k, v))
    mask = mask.expand(q.shape[0], q.shape[1], -1, -1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=tables.scale
    )


def _weighted(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, tables: _Tables, dropout: float
) -> Tensor:
    """With V(n): the weights are needed, shifted back from keys to distances."""
    assert tables.values is not None
    count, keys = q.shape[2], k.shape[2]
    logits = (tables.scale * q.to(mask.dtype)) @ k.to(mask.dtype).mT + mask
    weights = logits.softmax(dim=-1)
    weights = (F.dropout(weights, dropout) if dropout else weights).to(v.dtype)
    skewed = F.pad(weights, (0, count)).flatten(2)[..., :-count]
    by_distance = skewed.unflatten(2, (count, -1))[..., count - 1 :]
    return weights @ v + by_distance @ tables.values[:, :keys].to(v.dtype)
