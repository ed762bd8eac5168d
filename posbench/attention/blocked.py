"""The definition, one block of queries at a time: memory for [BLOCK, S], not for [T, S].

For whatever no fused kernel can take: the cell `scores`, and positions with gaps.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.attention.reference import reference_attention
from posbench.encodings import Encoding, Span

BLOCK = 128  # queries


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
    blocks = []
    for first in range(0, q.shape[2], BLOCK):
        block = span.rows(first, min(first + BLOCK, q.shape[2]))
        seen = len(block.keys)
        here = (q[:, :, first : first + BLOCK], k[:, :, :seen], v[:, :, :seen])
        passed = None if x is None else x[:, :seen]
        blocks.append(reference_attention(*here, encoding, layer, block, dropout, passed))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]
