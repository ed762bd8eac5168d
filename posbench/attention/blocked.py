"""reference.py, one block of queries at a time: RAM for [rows, S], not for [T, S].

Serves what no fused kernel can: the cells `scores` and `position_bias`, positions with gaps,
dropout of the weights. In training with several blocks each is recomputed for its gradient, so
there too only one block is in RAM.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posbench.attention.reference import reference_attention
from posbench.encodings import Encoding, Span

BLOCK = 64  # queries at most
PAIRS = 2**17  # of a query and a key in a block at most, but for one query


def blocked_attention(
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
    length, keys = q.shape[2], k.shape[2]
    attend = reference_attention
    if queries_at_a_time(keys) < length:
        k, v = (
            k.contiguous(),
            v.contiguous(),
        )  # products with few queries take 4 to 7 times as long
        if torch.is_grad_enabled():
            again = functools.partial(
                checkpoint, use_reentrant=False, preserve_rng_state=dropout > 0
            )
            attend = functools.partial(again, reference_attention)
    blocks, first = [], 0
    while first < length:
        seen = keys if span.two_sided else min(keys, keys - length + first + BLOCK)
        rows = queries_at_a_time(seen)
        block = span.rows(first, min(first + rows, length))
        seen = len(block.keys)
        here = (q[:, :, first : first + rows], k[:, :, :seen], v[:, :, :seen])
        passed = None if x is None else x[:, :seen]
        blocks.append(attend(*here, encoding, layer, block, dropout, passed))
        first += rows
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


def queries_at_a_time(keys: int) -> int:
    return max(1, min(BLOCK, PAIRS // keys))
