"""The relative shift, without a copy: from distances to columns as a strided view.

Of a piece with C queries and K columns, entry (i, c) has distance n = first + i + c. So a table
over the W = C + K - 1 distances becomes [C, K] by its strides:

    one row for all queries, bias(n)       (1, 1)
    a row per query, q_i . R(n)            (W + 1, 1)
    a row per column, k_c . Q(n)           (1, W + 1)

Shapes: H heads, B batch, C queries, K columns, W distances, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def by_row(table: Tensor, height: int, width: int) -> Tensor:
    """table [H, B, C or 1, W] -> a view [H, B, C, K]."""
    *outer, rows, _ = table.shape
    *steps, down, across = table.stride()
    down = across if rows == 1 else down + across
    return table.as_strided(
        (*outer, height, width), (*steps, down, across), table.storage_offset()
    )


def by_column(table: Tensor, height: int, width: int) -> Tensor:
    """table [H, B, K, W], a row per column -> a view [H, B, C, K]."""
    *outer, _, _ = table.shape
    *steps, down, across = table.stride()
    shape, strides = (*outer, height, width), (*steps, across, down + across)
    return table.as_strided(shape, strides, table.storage_offset())


def unskewed(x: Tensor) -> Tensor:
    """x [H, B, C, K] -> [H, B, C, W]: each entry at its distance, zero elsewhere."""
    height, width = x.shape[-2:]
    table = x.new_zeros(*x.shape[:-1], height + width - 1)
    by_row(table, height, width).copy_(x)
    return table


def cut(table: Tensor, first: int, count: int, fill: float = 0.0) -> Tensor:
    """table [H, M, ...] at the `count` distances from `first` on; `fill` where they are < 0."""
    inside = table[:, max(first, 0) : first + count]
    if first >= 0:
        return inside
    padding = (0, 0) * (table.dim() - 2) + (-first, 0)
    return F.pad(inside, padding, value=fill)


def add_cut(total: Tensor, part: Tensor, first: int) -> None:
    """Add part [H, W, ...], the distances from `first` on, to total [H, M, ...]."""
    negative = max(-first, 0)
    start = max(first, 0)
    total[:, start : first + part.shape[1]] += part[:, negative:]


def causal(first: int, count: int, window: int | None, like: Tensor) -> Tensor:
    """[1, W]: 0 at distances that a query sees, -inf at others."""
    distance = torch.arange(first, first + count, device=like.device)
    unseen = distance < 0
    if window is not None:
        unseen |= distance >= window
    return like.new_zeros(1, count).masked_fill_(unseen, -torch.inf)
