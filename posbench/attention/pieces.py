"""How one layer's attention is cut: into blocks of queries, each into pieces of keys.

Keys are in reversed order, c = S - 1 - j, so that the distance of query i and column c is

    n = i + c - (T - 1)

and grows by one with each: a table over distances is a strided view of a piece (skew.py). What a
piece holds is bounded, so RAM use is that of one piece, whatever the lengths. A causal model's
pieces begin at the last query's own key: the columns before it are the future, which only a
two-sided model sees.

Shapes: T queries, S keys, M distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Piece:
    """Queries `rows` and columns `columns`; distance is n of the first of both.

    far: 1 where all keys lie so far in the past that every table has come to its constant there,
    -1 for the future, 0 elsewhere. In a far piece nothing is masked.
    """

    rows: slice
    columns: slice
    distance: int
    far: int = 0

    @property
    def height(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def width(self) -> int:
        return int(self.columns.stop - self.columns.start)

    @property
    def own(self) -> slice:
        """The columns of the queries' own keys, the last query's first."""
        last = self.columns.start - self.distance  # n = 0 for the first query
        return slice(last - self.height + 1, last + 1)

    @property
    def diagonals(self) -> int:
        """How many distances occur: `distance` and the following."""
        return self.height + self.width - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """One layer's attention but for its tensors.

    scale: on all dot products. window: the last keys that a query sees, and in a two-sided model
    as many of the next. hidden [B, S]: True at columns that a row must not see. clip: the distance
    from which on every table is constant, and below its negative in a two-sided model; None if
    there is none or it cannot be used. block: queries at a time; tile: columns at a time, None for
    all, as whole rows need where none of a tile may be seen. lowest: the distance of the tables'
    first entry. ahead: keys after the last query's own, in a block of a two-sided window.
    """

    queries: int
    keys: int
    scale: float
    window: int | None
    clip: int | None
    hidden: Tensor | None
    block: int
    built: int
    tile: int | None = None
    two_sided: bool = False
    lowest: int = 0
    ahead: int = 0

    @property
    def end(self) -> int:
        """n of query 0 and column 0, negated."""
        return self.queries - 1 + self.ahead

    def blocks(self) -> Iterator[list[Piece]]:
        """Each block's pieces: near ones, the first of a causal model with every row's own key,
        then far ones."""
        for first in range(0, self.queries, self.block):
            yield list(self._pieces(first, min(first + self.block, self.queries)))

    def batch(self, rows: slice) -> Plan:
        """This plan for some rows of the batch."""
        return self if self.hidden is None else dataclasses.replace(self, hidden=self.hidden[rows])

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        own = self.end - first  # the column of the first query's own key
        start, end = self.end + 1 - last, self.keys
        nearest = start
        if self.two_sided:
            start = 0 if self.window is None else max(0, start + 1 - self.window)
            nearest = start if self.clip is None else max(0, nearest - self.clip)
        if self.window is not None:
            end = min(end, own + self.window)
        near = end if self.clip is None else min(end, own + 1 + self.clip)
        for column in range(nearest, near, self.tile or self.keys):
            yield self._piece(first, last, column, min(column + (self.tile or near), near))
        if near < end:
            yield self._piece(first, last, near, end, far=1)
        if start < nearest:
            yield self._piece(first, last, start, nearest, far=-1)

    def _piece(self, first: int, last: int, start: int, end: int, far: int = 0) -> Piece:
        distance = first + start - self.end
        return Piece(slice(first, last), slice(start, end), distance, far)
