"""Randomized positions (Ruoss et al. 2023, arXiv 2305.16843, section 3) over other encodings.

For each batch, as many distinct positions as the window has tokens are drawn, sorted, and given to
the encoding as the tokens' positions: in training it meets every distance that evaluation will
need. Evaluation draws too, from a generator with the fixed `seed`: all windows of one length get
the same positions.
"""

from __future__ import annotations

import dataclasses

import torch

from posbench.encodings.alibi import ALiBi
from posbench.encodings.base import Encoding, Shape, Span
from posbench.encodings.learned import Learned
from posbench.encodings.rope import RoPE
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias

MOST = 2**24  # positions: each batch permutes all of them


def at_least_one(positions: int) -> int:
    """positions itself. Raises ValueError where it is below 1 or above MOST."""
    if not 1 <= positions <= MOST:
        raise ValueError(f"encoding.positions={positions} must lie in 1 .. {MOST}")
    return positions


class Randomized(Encoding):
    """A mixin, named before the encoding it changes: positions are drawn at random."""

    paper = "2305.16843"
    formula = "token i stands at p_i,  p_0 < p_1 < ... drawn from 0 .. positions - 1"

    def draw_from(self, positions: int, seed: int) -> None:
        """Set positions and seed; a subclass calls it after the encoding's own constructor."""
        self.max_length = positions
        self.seed = seed

    def place(self, span: Span) -> Span:
        assert self.max_length is not None
        generator = None if self.training else torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(self.max_length, generator=generator)[: len(span.keys)]
        keys = drawn.sort().values.to(span.keys.device)
        memory = len(span.keys) - len(span.queries)
        return dataclasses.replace(span, queries=keys[memory:], keys=keys, consecutive=False)


class RandomizedSinusoidal(Randomized, Sinusoidal):
    """Sinusoids at random positions."""

    def __init__(
        self, shape: Shape, positions: int = 2048, seed: int = 0, base: float = 10_000.0
    ) -> None:
        super().__init__(shape, base)
        self.draw_from(at_least_one(positions), seed)


class RandomizedLearned(Randomized, Learned):
    """A table of `positions` rows, each trained now and then."""

    def __init__(
        self, shape: Shape, positions: int = 2048, seed: int = 0, std: float | None = None
    ) -> None:
        super().__init__(shape, at_least_one(positions), std)
        self.draw_from(at_least_one(positions), seed)


class RandomizedRoPE(Randomized, RoPE):
    """Rotations by random positions."""

    def __init__(
        self,
        shape: Shape,
        positions: int = 2048,
        seed: int = 0,
        base: float = 10_000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(shape, base, layout)
        self.draw_from(at_least_one(positions), seed)


class RandomizedALiBi(Randomized, ALiBi):
    """ALiBi's penalty on random distances."""

    def __init__(
        self,
        shape: Shape,
        positions: int = 2048,
        seed: int = 0,
        slopes: str = "paper",
        sides: str = "symmetric",
    ) -> None:
        super().__init__(shape, slopes, sides)
        self.draw_from(at_least_one(positions), seed)


class RandomizedT5(Randomized, T5Bias):
    """T5's buckets of random distances."""

    def __init__(
        self,
        shape: Shape,
        positions: int = 2048,
        seed: int = 0,
        buckets: int = 32,
        max_distance: int = 128,
    ) -> None:
        super().__init__(shape, buckets, max_distance)
        self.draw_from(at_least_one(positions), seed)
