"""Fused attention, one block of queries at a time, for every cell but `scores`.

Softmax does not care about the order of keys. With keys and values reversed, j' = S - 1 - j, the
distance of query i (of C in the block) and key j' is i + j' - (C - 1): a table over distances
becomes a [C, S] mask as a *strided view*, without a copy.

    bias(n)         one row of W = C - 1 + S numbers, strides (1, 1)
    q_i . R(n)      a row per query,                  strides (W + 1, 1)
    k_j . Q(n)      a row per key, by blocks of keys, strides (1, W' + 1)

The first C - 1 entries of a row belong to negative distances and are -inf: causality.

Shapes: B batch, H heads, T queries, S keys, d head width, C queries in the block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention.precision import precise, without_autocast
from posbench.encodings import Encoding, Span

BLOCK = 1024  # queries at a time where a mask is a view; [BLOCK, S] is then never built
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
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], un-rotated -> [B, H, T, d]."""
    if encoding.fills("scores"):
        raise ValueError(f"{type(encoding).__name__} fills the cell `scores`: no fused attention")
    rotated_q, rotated_k = encoding.rotate(q, k, span, layer)
    rotated_q, rotated_k = rotated_q.to(v.dtype), rotated_k.to(v.dtype)
    tables = _Tables(encoding, layer, span)
    length, keys = q.shape[2], k.shape[2]
    if tables.empty and span.hidden is None and length == keys:
        return F.scaled_dot_product_attention(
            rotated_q, rotated_k, v, dropout_p=dropout, is_causal=True, scale=encoding.scale
        )
    k, rotated_k, v = (x.flip(2) for x in (k, rotated_k, v))
    attend = _plain if tables.values is None else _weighted
    size = BLOCK if tables.views else TABLE_BLOCK
    blocks = []
    for first in range(0, length, size):
        block = span.rows(first, min(first + size, length))
        rows = slice(first, first + size)
        seen = slice(keys - block.keys.shape[0], None)  # reversed: what the block can see is last
        mask = tables.mask(q[:, :, rows], k[:, :, seen], block)
        here = (rotated_q[:, :, rows], rotated_k[:, :, seen], v[:, :, seen])
        blocks.append(attend(*here, mask, tables, dropout))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


class _Tables:
    """What one layer's encoding says of the distances 0 .. S - 1."""

    def __init__(self, encoding: Encoding, layer: int, span: Span) -> None:
        distance = torch.arange(span.keys.shape[0], device=span.keys.device)
        self.encoding, self.layer, self.scale = encoding, layer, encoding.scale
        self.bias = encoding.distance_bias(distance, layer)  # [H, S]
        self.keys = encoding.distance_keys(distance, layer)  # [H, S, d]
        self.queries = encoding.distance_queries(distance, layer)  # [H, S, d]
        self.values = encoding.distance_values(distance, layer)  # [H, S, d]
        tables = (self.keys, self.queries, self.values)
        self.views = not encoding.fills("position_bias") and all(t is None for t in tables)
        self.empty = self.views and self.bias is None

    def mask(self, q: Tensor, k: Tensor, block: Span) -> Tensor:
        """The mask [B or 1, H or 1, C, S] of q [B, H, C, d] over reversed k [B, H, S, d]."""
        exact = precise(q.dtype)
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
        if block.hidden is not None:
            mask = mask.masked_fill(block.hidden.flip(-1)[:, None, None], -torch.inf)
        return mask

    def _row(self, q: Tensor, keys: int) -> Tensor:
        """scale q_i . R(n) + bias(n) [B or 1, H or 1, C or 1, W] for n = -(C - 1) .. S - 1."""
        negative = q.shape[2] - 1
        bias = q.new_zeros(1, keys) if self.bias is None else self.bias[:, :keys].to(q.dtype)
        bias = F.pad(bias, (negative, 0), value=-torch.inf)[:, None]  # [H or 1, 1, W]
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
    if q.device.type == "cuda":  # its kernels want aligned rows, and one dtype
        mask = mask.to(q.dtype).contiguous()
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
