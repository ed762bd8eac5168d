"""What an encoding adds to attention: operations, and bytes of tables and masks.

What a cell computes itself is counted by running its code, how attention uses it by formula. All
pairs of a query and a key count, even those that the mask hides. "Memory" is segment memory.

H heads, d head width, D = H d, T queries, S keys (memory and T), M distances, C queries a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from posbench import attention
from posbench.attention import blocked, cells, fused
from posbench.attention.cells import Served, served
from posbench.attention.operations import operations
from posbench.encodings import Encoding, Span

BYTES = 4  # of a float32
VECTORS = ("distance_keys", "distance_queries", "distance_values")
OF_PAIRS = (*VECTORS, "distance_bias", "position_bias", "decay", "scores")
BY_PAIR = ("position_bias", "scores")  # whose answer is a matrix over pairs
ADDED = {"distance_bias": 1, "position_bias": 1, "decay": 2}  # a decay is a difference, and added


@dataclasses.dataclass(frozen=True)
class Cost:
    """Operations in all layers; bytes in one, as the kernel runs or with [T, S] written out."""

    what: str
    operations: int
    running: int
    written: int


def costs(encoding: Encoding, length: int, kernel: str = "auto") -> list[Cost]:
    """Plain attention, then each filled cell: one window of `length` tokens, forward, batch 1.

    kernel is model.attention. Raises ValueError for one that cannot serve the encoding.
    """
    layers = [(Layer(each, length, kernel), len(each.layers)) for each in served(encoding)]
    filled = [cell for cell in cells.CELLS if cells.fills(encoding, cell)]
    return [_plain(layers), *(_cell(cell, layers) for cell in filled)]


def _plain(layers: list[tuple[Layer, int]]) -> Cost:
    """The two matrix products of plain attention; a fused kernel never holds logits."""
    return Cost(
        "plain attention",
        sum(2 * layer.product * count for layer, count in layers),
        max(0 if layer.fused else layer.block_pairs for layer, _ in layers) * BYTES,
        max(layer.pairs for layer, _ in layers) * BYTES,
    )


def _cell(cell: str, layers: list[tuple[Layer, int]]) -> Cost:
    filling = [(layer, n) for layer, n in layers if cells.fills(layer.part, cell)]
    each = [layer.operations(cell) * (1 if cell == "embed" else n) for layer, n in filling]
    return Cost(
        cell,
        sum(each),
        max(layer.running(cell) for layer, _ in filling) * BYTES,
        max(layer.written(cell) for layer, _ in filling) * BYTES,
    )


class Layer:
    """One layer's attention over one window; memory in tokens, None: what the encoding has."""

    def __init__(self, each: Served, length: int, kernel: str, memory: int | None = None) -> None:
        self.part, self.length = each.part, length
        past = each.part.memory_length if memory is None else memory
        two_sided = each.part.shape.two_sided
        self.span = each.part.place(Span.window(length, past, two_sided=two_sided))
        self.keys = len(self.span.keys)
        chosen = attention.choose(each.part, kernel)
        self.fused = chosen == "fused"
        heads, self.d = each.part.shape.heads, each.part.shape.head_width
        self.block, self.distances, columns = length, len(self.span.distances), self.keys
        if self.fused:
            plan = fused.planned(each.part, self.span)
            self.distances = len(fused.distances(plan, self.span))
            plan, _ = fused.by_rows(plan, heads, batch=1)
            near = [piece for pieces in plan.blocks() for piece in pieces if not piece.far]
            self.block, columns = plan.block, max(piece.width for piece in near)
        elif chosen == "blocked":
            self.block = blocked.queries_at_a_time(self.keys)
        self.block = min(length, self.block)
        self.pairs = heads * length * self.keys
        self.block_pairs = heads * self.block * columns
        self.product = 2 * self.pairs * self.d

    def operations(self, cell: str) -> int:
        """Operations to compute the cell and to use it."""
        used = self.product if cell in VECTORS else 0
        added = ADDED.get(cell, 0) + (cell in VECTORS and cell != "distance_values")
        return used + added * self.pairs + self.making(cell)

    def making(self, cell: str) -> int:
        """Operations to compute the cell, for one window."""
        blocks = self.length / self.block if cell in BY_PAIR else 1
        return round(blocks * operations(self._call(cell)))

    def running(self, cell: str) -> int:
        """Numbers held: the tables, and a piece's mask where it is no view of them."""
        if cell not in OF_PAIRS:
            return self._table(cell)
        if self.fused:
            return self._table(cell) + (0 if cell == "distance_bias" else self.block_pairs)
        return self._table(cell) + self.block_pairs * (self.d if cell in VECTORS else 1)

    def written(self, cell: str) -> int:
        """Numbers held where every pair has its own."""
        if cell not in OF_PAIRS:
            return self._table(cell)
        return self._table(cell) + self.pairs * (self.d if cell in VECTORS else 1)

    def _table(self, cell: str) -> int:
        shape = self.part.shape
        by_distance = shape.heads * self.distances
        tables = {
            "embed": self.length * shape.width,
            "rotate": (self.length + self.keys) * shape.width,  # q' and k' beside q and k
            "distance_bias": by_distance,
            "decay": shape.heads * self.keys,
        }
        return by_distance * self.d if cell in VECTORS else tables.get(cell, 0)

    def _call(self, cell: str) -> Callable[[], object]:
        """The cell, called as the kernel does, on zeros."""
        part, span, shape = self.part, self.span, self.part.shape
        block = span.rows(self.length - self.block, self.length)
        q, k = (torch.zeros(1, shape.heads, n, self.d) for n in (self.length, self.keys))
        logits = torch.zeros(1, shape.heads, self.block, self.keys)
        x = torch.zeros(1, self.keys, shape.width)
        calls: dict[str, Callable[[], object]] = {
            "embed": lambda: part.embed(x[:, -self.length :], span.queries),
            "rotate": lambda: part.rotate(q, k, span, 0),
            "position_bias": lambda: part.position_bias(block, 0),
            "decay": lambda: part.decay(x, 0),
            "scores": lambda: part.scores(logits, q[:, :, -self.block :], k, block, 0),
        }
        return calls.get(cell, lambda: getattr(part, cell)(span.distances, 0))
