"""Intervals for perplexities whose tokens come in documents, and whose runs come in seeds.

Tokens of one document resemble each other, so documents are what is resampled: a block bootstrap
(Künsch 1989) with a document as a block, the same draws for every encoding and length, so that
differences are paired. Two things are mended for small numbers, both measured by
tests/evaluation/test_statistics.py on losses of known truth:

- n documents make a bootstrap distribution sqrt((n-1)/n) too narrow, and a normal one where
  Student's t is due (Hesterberg 2015, arXiv 1411.5279, "expanded percentiles"): deviations from
  the estimate are stretched by sqrt(n/(n-1)) t/z.
- A handful of seeds cannot be resampled: three have ten different draws. Their part of the error
  is drawn from Student's t with s-1 degrees of freedom and the variance between them. That
  holds what a seed does to some documents and not to others, so the documents' part is shrunk by
  as much.

S seeds, D documents, R draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

Array = NDArray[np.float64]
MOST_DRAWS = 1_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate, and the ends of its interval; None where there cannot be one."""

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, function: Callable[[float], float]) -> Interval:
        """Through a function that does not fall, e.g. exp."""
        ends = [None if end is None else function(end) for end in (self.low, self.high)]
        return Interval(function(self.value), *ends)

    def holds(self, value: float) -> bool:
        """Whether a value lies inside. Raises ValueError where there is no interval."""
        if self.low is None or self.high is None:
            raise ValueError("no interval")
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Losses:
    """Sums of losses in nats [S, D] over the same tokens of the same documents, counts [D]."""

    sums: Array
    counts: Array

    @property
    def mean(self) -> float:
        """The mean loss of a token, over all seeds."""
        return float(self.sums.sum() / (len(self.sums) * self.counts.sum()))

    def minus(self, other: Losses) -> Losses:
        """The paired difference. Raises ValueError for other tokens, or other seeds."""
        if self.sums.shape != other.sums.shape or not np.array_equal(self.counts, other.counts):
            raise ValueError("only losses of the same tokens and as many seeds make pairs")
        return Losses(self.sums - other.sums, self.counts)


class Bootstrap:
    """The draws that all intervals of a report share."""

    def __init__(self, level: float = 0.95, draws: int = 2000, seed: int = 0) -> None:
        if not 0 < level < 1 or not 100 <= draws <= MOST_DRAWS or seed < 0:
            raise ValueError(
                f"level must lie in (0, 1), draws in 100 .. {MOST_DRAWS}, seed be at least 0"
            )
        self.level, self.draws, self.seed = level, draws, seed
        self._weights: dict[int, Array] = {}
        self._quantiles: dict[int, Array] = {}
        self._stretches: dict[int, float] = {}

    def interval(self, losses: Losses) -> Interval:
        """Of the mean loss of a token, or of a mean difference; no ends for a single document.

        With one seed it says how much other documents would change, not another seed.
        """
        mean = losses.mean
        if losses.sums.shape[1] < 2:
            return Interval(mean)
        off, between = self._off(losses)
        if len(losses.sums) > 1:
            off = off + math.sqrt(between) * self._student(len(losses.sums))
        low, high = np.quantile(off, [1 - self._tail, self._tail])
        return Interval(mean, mean + float(low), mean + float(high))

    def joint(self, losses: Losses, seeds: Sequence[int]) -> Array | None:
        """Draws [R] of the mean loss, as `interval` has them; None for a single document.

        Draws of several losses over the same documents belong together, one by one: what a seed,
        by its number, does to two of them stays paired, so that an order can be drawn.
        """
        if losses.sums.shape[1] < 2:
            return None
        off, _ = self._off(losses)
        if (count := len(seeds)) > 1:
            means = losses.sums.sum(1) / losses.counts.sum()
            normal = np.stack([self._generator(seed, 2).normal(size=self.draws) for seed in seeds])
            squares = self._generator(count, 3).chisquare(count - 1, self.draws)
            off = off + (means - means.mean()) @ normal / np.sqrt(count * squares)
        return off + losses.mean

    def _generator(self, *place: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *place])

    def _off(self, losses: Losses) -> tuple[Array, float]:
        """The documents' part of the error [R], and the squared error of the mean by seeds."""
        documents = losses.sums.shape[1]
        weights = self._drawn(documents)
        drawn = (weights @ losses.sums.mean(0)) / (weights @ losses.counts)
        off = (drawn - losses.mean) * self._stretch(documents)
        if len(losses.sums) == 1:
            return off, 0.0
        between, shared = _seed_errors(losses)
        apart = float(off.var())
        own = 1 - shared / apart if shared < apart else 0.0
        return math.sqrt(own) * off, between

    @cached_property
    def _tail(self) -> float:
        return (1 + self.level) / 2

    def _drawn(self, documents: int) -> Array:
        """How often each document is drawn [R, D]."""
        if documents not in self._weights:
            generator = np.random.default_rng([self.seed, documents])
            even = np.full(documents, 1 / documents)
            drawn = generator.multinomial(documents, even, self.draws)
            self._weights[documents] = drawn.astype(np.float64)
        return self._weights[documents]

    def _student(self, seeds: int) -> Array:
        """Draws of Student's t with seeds - 1 degrees of freedom [R]: its quantiles, shuffled."""
        if seeds not in self._quantiles:
            places = (np.arange(self.draws) + 0.5) / self.draws
            generator = np.random.default_rng([self.seed, seeds, 1])
            self._quantiles[seeds] = generator.permutation(stdtrit(seeds - 1, places))
        return self._quantiles[seeds]

    def _stretch(self, documents: int) -> float:
        if documents not in self._stretches:
            ratio = stdtrit(documents - 1, self._tail) / ndtri(self._tail)
            self._stretches[documents] = math.sqrt(documents / (documents - 1)) * float(ratio)
        return self._stretches[documents]


def _seed_errors(losses: Losses) -> tuple[float, float]:
    """The squared standard errors of the mean: between seeds, and what of it is also in documents.

    The second is the interaction: the residue of the table of mean losses by seed and document.
    """
    seeds, documents = losses.sums.shape
    share = losses.counts / losses.counts.sum()
    rates = losses.sums / losses.counts
    means = rates @ share
    residue = rates - means[:, None] - (rates - means[:, None]).mean(0)
    freedom = (seeds - 1) * (documents - 1) / documents
    interaction = float((residue**2 @ share**2).sum()) / freedom
    return float(means.var(ddof=1)) / seeds, interaction / seeds
