"""Protocols for masked language models: which tokens are MASK, and which of them are scored.

Each document is cut into groups of K tokens, whose K folds are a random permutation of its own. In
pass f every token of fold f in a window is MASK, and those of them that the protocol scores are
predicted from both sides. So in K passes each token is scored once, a share 1/K of every window is
MASK at every length, and what is MASK depends on the token's place in the document alone. BOS is
in no window.

exp of the mean loss is a masked perplexity: the losses of one text do not multiply to a
probability of it, and are no measure beside a causal model's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posbench.config import EvalConfig
from posbench.errors import UserError
from posbench.evaluation.causal import FixedTargets, Nonoverlapping
from posbench.evaluation.windows import Documents, Window, too_short

SEED, TAG = 0, 0x666F6C64  # "fold": apart from other seeds


@dataclass(frozen=True)
class Pass(Window):
    """A window document[start : start + length] in one of its passes.

    first, last: the tokens of the document from first to before last are to be scored, those of
    this fold in this pass; size is the document's.
    """

    first: int = 0
    last: int = 0
    fold: int = 0
    folds: int = 1
    size: int = 0

    def tokens(self, document: np.ndarray, mask: int) -> np.ndarray:
        """The model's input [length]."""
        there = slice(self.start, self.start + self.length)
        hidden = folds_of(self.document, self.size, self.folds)[there] == self.fold
        return np.where(hidden, mask, document[there])

    def targets(self) -> np.ndarray:
        return np.array(self.places(), dtype=np.int64)

    def places(self) -> Sequence[int]:
        which = (self.folds, self.fold, self.first, self.last)
        return _scored(self.document, self.size, *which)


@functools.lru_cache(maxsize=64)
def folds_of(document: int, size: int, folds: int) -> np.ndarray:
    """The fold of each token of the document of a number [size]."""
    generator = np.random.default_rng(np.random.SeedSequence([SEED, TAG, document]))
    groups = np.tile(np.arange(folds), (-(-size // folds), 1))
    return generator.permuted(groups, axis=1).ravel()[:size]


@functools.lru_cache(maxsize=4096)
def _scored(
    document: int, size: int, folds: int, fold: int, first: int, last: int
) -> tuple[int, ...]:
    places = folds_of(document, size, folds)[first:last] == fold
    return tuple((np.flatnonzero(places) + first).tolist())


def passes(window: Window, first: int, last: int, size: int, folds: int) -> list[Window]:
    """A window's passes in which a token from first to before last is scored."""
    made = list[Window]()
    for fold in range(folds):
        count = len(_scored(window.document, size, folds, fold, first, last))
        if count:
            where = (window.document, window.start, window.length, count)
            made.append(Pass(*where, 0, first, last, fold, folds, size))
    return made


class MaskedFixedTargets(FixedTargets):
    """The same targets at every length; the context on both sides of their block grows."""

    def __init__(self, config: EvalConfig) -> None:
        super().__init__(config)
        self.folds = _folds(config)
        self.label = f"masked fixed_targets 1/{self.folds}"

    def windows(self, documents: Documents, length: int) -> list[Window]:
        before, after = self._around(self.longest)
        blocks = [
            (number, first)
            for number, document in enumerate(documents)
            for first in range(1 + before, len(document) - after - self.size + 1, self.size)
        ]
        if not blocks:
            raise too_short(documents, self.longest)
        before, _ = self._around(length)
        return [
            each
            for number, first in self.spread(blocks)
            for each in passes(
                Window(number, first - before, length, 0),
                first,
                first + self.size,
                len(documents[number]),
                self.folds,
            )
        ]

    def _around(self, length: int) -> tuple[int, int]:
        """Tokens before and after the block: neither falls as the length grows."""
        before = (length - self.size) // 2
        return before, length - self.size - before


class MaskedNonoverlapping(Nonoverlapping):
    """Consecutive windows, every token scored: masked perplexity falls with length merely because
    fewer tokens are near an edge."""

    def __init__(self, config: EvalConfig) -> None:
        super().__init__(config)
        self.folds = _folds(config)
        self.label = f"masked nonoverlapping 1/{self.folds}"

    def windows(self, documents: Documents, length: int) -> list[Window]:
        """A causal window's targets are this one's inputs."""
        made = []
        for window in super().windows(documents, length):
            first, last = window.places()[0], window.places()[-1] + 1
            moved = Window(window.document, first, window.scored, 0)
            size = len(documents[window.document])
            made += passes(moved, first, last, size, self.folds)
        return made


def _folds(config: EvalConfig) -> int:
    if not 2 <= config.folds <= 1000:
        raise UserError(f"eval.folds={config.folds} must lie in 2 .. 1000")
    return config.folds
