"""What the logits of one layer are made of, laid out for pieces.

Heads come first and keys are reversed (pieces.py). Tables run over distances from plan.lowest on.

Shapes: H heads, B batch, T queries, S keys, M distances, d head width, C queries and K columns of
a piece, W = C + K - 1 distances in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from posbench.attention.pieces import Piece, Plan
from posbench.attention.precision import precise
from posbench.attention.skew import by_column, by_row, cut, seen_only

KEY_BLOCK = 64  # columns at a time of k . Q: their distances overlap, so few are wasted


ROWS = ("q", "k", "v", "content_q", "content_k", "passed")  # terms with rows of the batch


class Terms(NamedTuple):
    """Rotated q, k, v; content_q and content_k are not rotated, and only there for tables."""

    q: Tensor  # [H, B, T, d]
    k: Tensor  # [H, B, S, d]
    v: Tensor  # [H, B, S, d]
    content_q: Tensor | None = None  # [H, B, T, d], times scale
    content_k: Tensor | None = None  # [H, B, S, d], times scale
    bias: Tensor | None = None  # [H, M]
    keys: Tensor | None = None  # R [H, M, d]
    queries: Tensor | None = None  # Q [H, M, d]
    values: Tensor | None = None  # V [H, M, d]
    passed: Tensor | None = None  # [H, B, S] float64: the sum of decays up to a key

    @property
    def built(self) -> bool:
        """Whether a mask has numbers of its own for each query and key."""
        return any(t is not None for t in (self.keys, self.queries, self.passed))

    def batch(self, rows: slice) -> Terms:
        """Some rows of the batch, contiguous; all of them, slice(None), as they are."""
        return self if rows == slice(None) else self.contiguous(rows)

    def contiguous(self, rows: slice = slice(None)) -> Terms:
        whole = {name: getattr(self, name) for name in ROWS}
        some = {name: x[:, rows].contiguous() for name, x in whole.items() if x is not None}
        return self._replace(**some)

    def exact(self) -> Terms:
        """These terms in float32 at least."""
        return Terms._make(None if t is None else t.to(precise(t.dtype)) for t in self)


def logits(t: Terms, piece: Piece, scale: float, mask: Tensor) -> Tensor:
    """All of a piece's logits [H, B, C, K]; t is exact."""
    q, k = t.q[:, :, piece.rows], t.k[:, :, piece.columns]
    return torch.matmul(scale * q, k.mT).add_(mask)


def whole_mask(bias: Tensor | None, plan: Plan, q: Tensor) -> Tensor:
    """What a bias [H, M], causality and the window add to the dot products of q, keys in their own
    order: [H or 1, T, S]."""
    piece = Piece(slice(0, plan.queries), slice(0, plan.keys), -plan.end)
    return _row(bias, piece, plan, q).unfold(-1, piece.width, 1).flip(-1)


def _row(bias: Tensor | None, piece: Piece, plan: Plan, q: Tensor) -> Tensor:
    """What is the same for all queries, by distance [H or 1, W]."""
    like = q.new_empty(0, dtype=precise(q.dtype))
    row = seen_only(piece.distance, piece.diagonals, plan.window, plan.two_sided, like)
    if bias is not None:
        row = row + cut(bias, plan.lowest, piece.distance, piece.diagonals).to(like.dtype)
    return row.contiguous()


def mask(t: Terms, piece: Piece, plan: Plan) -> Tensor:
    """What a near piece adds to the dot products [H, B or 1, C, K], -inf where nothing is seen."""
    row = _row(t.bias, piece, plan, t.q)
    total = by_row(_by_query(t, piece, plan, row), piece.height, piece.width)
    if t.queries is not None:
        total = _add_by_column(total, t, piece, plan)
    if t.passed is not None or plan.hidden is not None:
        total = total.contiguous()  # with two strides of 1, what is made of it lies by columns
    if t.passed is not None:
        own = t.passed[..., piece.own][..., -1:]  # of the first query: differences from there
        passed = own - t.passed[..., piece.columns]
        total = total + passed[:, :, None].to(total.dtype)
    if plan.hidden is not None:
        total = total.masked_fill(plan.hidden[None, :, None, piece.columns], -torch.inf)
    return total


def _by_query(t: Terms, piece: Piece, plan: Plan, row: Tensor) -> Tensor:
    """row [H or 1, W], plus q . R where there is one: [H or 1, B or 1, C or 1, W]."""
    if t.keys is None or t.content_q is None:
        return row[:, None, None]
    asked = t.content_q[:, :, piece.rows].to(row.dtype)  # [H, B, C, d]
    table = cut(t.keys, plan.lowest, piece.distance, piece.diagonals).to(row.dtype)  # [H, W, d]
    if t.bias is None and plan.two_sided and plan.window is None:
        flat = asked.flatten(1, 2) @ table.mT  # row is 0: nothing is hidden
    else:
        flat = torch.baddbmm(row[:, None], asked.flatten(1, 2), table.mT)
    return flat.unflatten(1, asked.shape[1:3])


def _add_by_column(total: Tensor, t: Terms, piece: Piece, plan: Plan) -> Tensor:
    if t.keys is None:  # all queries share one row
        total = total.expand(*t.q.shape[:2], -1, -1).clone()
    for columns, distance in key_blocks(piece):
        products = _by_column_products(t, piece, plan, columns, distance)
        total[..., columns] += by_column(products, piece.height, products.shape[2])
    return total


def key_blocks(piece: Piece) -> Iterator[tuple[slice, int]]:
    """KEY_BLOCK columns of the piece at a time, and the first distance among them."""
    for first in range(0, piece.width, KEY_BLOCK):
        yield slice(first, min(first + KEY_BLOCK, piece.width)), piece.distance + first


def _by_column_products(
    t: Terms, piece: Piece, plan: Plan, columns: slice, distance: int
) -> Tensor:
    """k_c . Q(n) [H, B, K', C + K' - 1] of some columns of the piece."""
    assert t.queries is not None
    assert t.content_k is not None
    offered = t.content_k[:, :, piece.columns][:, :, columns]
    offered = offered.to(precise(offered.dtype))
    count = piece.height + offered.shape[2] - 1
    table = cut(t.queries, plan.lowest, distance, count).to(offered.dtype)
    return (offered.flatten(1, 2) @ table.mT).unflatten(1, offered.shape[1:3])
