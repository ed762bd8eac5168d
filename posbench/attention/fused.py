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

BLOCK = 1024  # queries at a time; the largest piece of memory is [B, H, BLOCK, S]


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
    blocks = []
    for first in range(0, length, BLOCK):
        block = span.rows(first, min(first + BLOCK, length))
        rows = slice(first, first + BLOCK)
        seen = slice(keys - block.keys.shape[0], None)  # reversed: what the block can see is last
        mask = tables.mask(q[:, :, rows], k[:, :, seen], block)
        attend = _weighted if tables.values is not None else _plain
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
        self.empty = not encoding.fills("position_bias") and all(
            table is None for table in (self.bias, self.keys, self.queries, self.values)
        )

    def mask(self, q: Tensor, k: Tensor, block: Span) -> Tensor:
        """The mask [B or 1, H or 1, C, S] of q [B, H, C, d] over reversed k [B, H, S, d]."""
        count, seen = q.shape[2], k.shape[2]
        exact = precise(q.dtype)
        row = q.new_zeros(1, 1, 1, seen, dtype=exact)
        if self.bias is not None:
            row = row + self.bias[:, None, :seen].to(exact)
        if self.keys is not None:
            row = row + self.scale * (q.to(exact) @ self.keys[:, :seen].to(exact).mT)
        mask = _shifted(row, count)
        if self.queries is not None:
            queries = self.queries[:, :seen].to(exact)
            mask = mask + self.scale * _by_keys(k.to(exact), queries, count)
        if (bias := self.encoding.position_bias(block, self.layer)) is not None:
            mask = mask + bias.to(exact).flip(-1)
        if block.hidden is not None:
            mask = mask.masked_fill(block.hidden.flip(-1)[:, None, None], -torch.inf)
        return mask


def _shifted(row: Tensor, count: int) -> Tensor:
    """row[..., i or 0, n] over distances n >= 0 -> a view [..., i, j'] for count queries i."""
    keys = row.shape[-1]
    row = F.pad(row, (count - 1, 0), value=-torch.inf)
    *outer, height, _ = row.shape
    *steps, down, _ = row.stride()
    return row.as_strided((*outer, count, keys), (*steps, 1 if height == 1 else down + 1, 1))


def _by_keys(k: Tensor, queries: Tensor, count: int) -> Tensor:
    """k_j' . Q(i + j' - (count - 1)) -> [B, H, count, S], from [C, 2C] products of key blocks."""
    padded = F.pad(queries, (0, 0, count - 1, 0))  # distance n in row n + count - 1
    pieces = []
    for first in range(0, k.shape[2], BLOCK):
        part = k[:, :, first : first + BLOCK]  # [B, H, K, d]
        size = part.shape[2]
        products = part @ padded[:, first : first + size + count - 1].mT  # [B, H, K, K + C - 1]
        batch, head, down, _ = products.stride()
        shape = (*products.shape[:2], count, size)
        pieces.append(products.as_strided(shape, (batch, head, 1, down + 1)))
    return torch.cat(pieces, dim=-1)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, tables: _Tables, dropout: float
) -> Tensor:
    if q.device.type == "cuda":  # its kernels want aligned rows
        mask = mask.contiguous()
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
    logits = tables.scale * (q.to(mask.dtype) @ k.to(mask.dtype).mT) + mask
    weights = F.dropout(logits.softmax(dim=-1), dropout).to(v.dtype)
    skewed = F.pad(weights, (0, count)).flatten(2)[..., :-count]
    by_distance = skewed.unflatten(2, (count, -1))[..., count - 1 :]
    return weights @ v + by_distance @ tables.values[:, :keys].to(v.dtype)
