"""What FlexAttention looks up for a pair of query and key.

With n the distance from query i back to key j, its logit has beside q' . k'

    bias(n)          from a table [B, H, M]
    q_i . R(n)       from products [B, H, T, M]
    k_j . Q(n)       from products [B, H, S, T + SIDE - 1], for the distances that a key can meet
    bias(i, j)       from a matrix [H, T, S]
    decay j+1 .. i   as the difference of two sums, [B, H, T] and [B, H, S]

Products and matrices are written out for a block of queries at a time.

Shapes: B batch, H heads, T queries, S keys, M distances, d head width, G groups of SIDE keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from posbench.attention.decay import decays
from posbench.encodings import Encoding, Span

SIDE = 128  # queries and keys of a block of the mask: all sizes are padded to multiples
LARGEST = 2**27  # numbers written out, about; its indices overflowed at 2^31 (pytorch#145869)


class Lookup(NamedTuple):
    """For one block of queries; None where the encoding says nothing."""

    queries: Tensor  # [T] positions
    keys: Tensor  # [S] and the tables' lowest distance: queries - keys is a place in a table
    hidden: Tensor | None  # [B, S]
    bias: Tensor | None  # [B, H, M]
    by_query: Tensor | None  # [B, H, T, M]
    by_key: Tensor | None  # [B, H, S, T + SIDE - 1]
    pairs: Tensor | None  # [H, T, S]
    to_query: Tensor | None  # [B, H, T] the decays' sum up to it, in two numbers
    to_query_rest: Tensor | None
    to_key: Tensor | None  # [B, H, S]
    to_key_rest: Tensor | None

    def added(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The logit of one pair, all of it scalars, from scale q' . k'."""
        n = (self.queries[i] - self.keys[j]).clamp(min=0)  # below: a causal model's future, masked
        if self.bias is not None:
            score = score + self.bias[b, h, n]
        if self.by_query is not None:
            score = score + self.by_query[b, h, i, n]
        if self.by_key is not None:
            score = score + self.by_key[b, h, j, i - j % SIDE + SIDE - 1]
        if self.pairs is not None:
            score = score + self.pairs[h, i, j]
        if self.to_key is not None:
            assert self.to_query is not None
            assert self.to_query_rest is not None
            assert self.to_key_rest is not None
            rest = self.to_query_rest[b, h, i] - self.to_key_rest[b, h, j]
            score = score + (self.to_query[b, h, i] - self.to_key[b, h, j] + rest)
        if self.hidden is not None:
            score = torch.where(self.hidden[b, j], -torch.inf, score)
        return score


class Tables:
    """What one layer's encoding says of a whole span; what is looked up is of dtype exact."""

    def __init__(
        self, encoding: Encoding, layer: int, span: Span, x: Tensor | None, exact: torch.dtype
    ) -> None:
        distance, self.exact = span.distances, exact
        self.lowest = (1 - len(distance)) // 2 if span.two_sided else 0  # distance[0]
        self.encoding, self.layer, self.scale = encoding, layer, encoding.scale
        self.bias = encoding.distance_bias(distance, layer)  # [H, M]
        self.keys = encoding.distance_keys(distance, layer)  # [H, M, d]
        self.queries = encoding.distance_queries(distance, layer)  # [H, M, d]
        decay = decays(encoding, x, layer)  # [B, H, S]
        self.upto = None if decay is None else decay.double().cumsum(-1)
        self.for_each_query = encoding.shape.heads * len(distance)  # numbers of a product

    def rows(self, batch: int) -> int | None:
        """The queries of a block; None where nothing is written out for them."""
        written = self.encoding.fills("position_bias")
        if self.keys is None and self.queries is None and not written:
            return None
        return max(SIDE, LARGEST // (batch * self.for_each_query) // SIDE * SIDE)

    def lookup(self, q: Tensor, k: Tensor, block: Span, last: int, own: int) -> Lookup:
        """For un-rotated q [B, H, T, d] and k [B, H, S, d] of a block, padded to whole SIDEs.

        The block's keys are those up to the last'th of the span; own is the number of the first
        query's own among them.
        """
        q, k = (self.scale * whole(each, 2).to(self.exact) for each in (q, k))
        whole_table = block.two_sided or not block.consecutive
        reach = None if whole_table else len(block.keys)  # distances in the block
        pairs = self.encoding.position_bias(block, self.layer)
        return Lookup(
            whole(block.queries, 0).int(),
            whole(block.keys + self.lowest, 0).int(),
            None if block.hidden is None else whole(block.hidden, 1),
            None if self.bias is None else self._bias(self.bias[:, :reach], len(q)),
            None if self.keys is None else q @ self._exact(self.keys[:, :reach]).mT,
            None if self.queries is None else self._by_key(k, len(block.queries), own),
            None if pairs is None else whole(self._exact(pairs), 2),
            *self._sums(block, last),
        )

    def _by_key(self, k: Tensor, queries: int, own: int) -> Tensor:
        """k [B, H, S, d] . Q(n) -> [B, H, S, T + SIDE - 1].

        Key j, the a'th of its group of SIDE, meets query i in column i - a + SIDE - 1.
        """
        assert self.queries is not None
        table = self._exact(self.queries)
        column = torch.arange(queries + -queries % SIDE + SIDE - 1, device=k.device)
        first = torch.arange(0, k.shape[2], SIDE, device=k.device)[:, None]  # [G, 1]
        distance = column - (SIDE - 1) + own - first
        place = (distance - self.lowest).clamp(0, table.shape[1] - 1)
        return (k.unflatten(2, (-1, SIDE)) @ table[:, place].mT).flatten(2, 3)

    def _bias(self, bias: Tensor, batch: int) -> Tensor:
        """[H, M] -> [B, H, M]: in one that all rows shared, their gradients would queue."""
        return self._exact(bias).expand(batch, -1, -1).contiguous()

    def _exact(self, table: Tensor) -> Tensor:
        return whole(table.to(self.exact), 1)

    def _sums(self, block: Span, last: int) -> list[Tensor | None]:
        """Decays summed up to each query and each key: rounded, and what rounding left.

        So differences are as exact at the end of a long window as at its start. Both sums have
        gradients, though those of a query's own add up to nought: what rounding makes of that
        cancels only between the two.
        """
        if self.upto is None:
            return [None] * 4
        rounded = self.upto.to(self.exact)
        rest = (self.upto - rounded).to(self.exact).detach()
        queries, keys = (slice(last - len(part), last) for part in (block.queries, block.keys))
        sums = (each[..., part] for part in (queries, keys) for each in (rounded, rest))
        return [whole(each, 2) for each in sums]


def whole(x: Tensor, dim: int) -> Tensor:
    """x with the last entry along a dimension repeated up to a multiple of SIDE."""
    count = x.shape[dim]
    if count % SIDE == 0:
        return x
    index = torch.arange(count + -count % SIDE, device=x.device).clamp(max=count - 1)
    return x.index_select(dim, index)
