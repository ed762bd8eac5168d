"""The stream of training segments: a pure function of the step, so that a resume needs no state.

B lanes of a batch, T tokens of a segment, N segments of an epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posbench.errors import UserError


@dataclass(frozen=True)
class Batch:
    """A step's input. `fresh` is False where a segment continues its lane's previous one."""

    inputs: NDArray[np.int64]  # [B, T]
    targets: NDArray[np.int64]  # [B, T], the tokens after the inputs
    fresh: NDArray[np.bool_]  # [B]


@dataclass(frozen=True)
class Epoch:
    """The order of one pass over the documents."""

    documents: NDArray[np.int64]  # shuffled indices
    offsets: NDArray[np.int64]  # first token used of each, in that order
    starts: NDArray[np.int64]  # number of each one's first segment, in that order
    steps: int


class Segments:
    """Endless batches of segments of T inputs, in which no window crosses a document.

    Every epoch shuffles the documents. A document of n tokens gives floor((n - 1 - offset) / T)
    segments in a row; its offset is 0 in the first epoch and drawn from [0, T) in later ones,
    clipped so that one segment is left. Lane b reads segments b * (N // B) onwards; the N % B
    last ones are left out of the epoch.

    Raises UserError if no document has T + 1 tokens, or there are fewer segments than lanes.
    """

    def __init__(
        self, documents: Sequence[NDArray[Any]], length: int, batch: int, seed: int
    ) -> None:
        self.length = length
        self.batch_size = batch
        self.seed = seed
        usable = [np.asarray(document) for document in documents if len(document) > length]
        if not usable:
            longest = max(map(len, documents), default=0)
            raise UserError(
                f"train.length={length} needs a document of {length + 1} tokens; "
                f"the longest of {len(documents)} has {longest}"
            )
        self.documents = usable
        self.sizes = np.array([len(document) for document in usable], dtype=np.int64)
        segments = int(((self.sizes - 1) // length).sum())
        if segments < batch:
            raise UserError(
                f"train.batch={batch} needs as many segments of train.length={length} tokens; "
                f"the training documents have {segments}"
            )
        self._epoch = lru_cache(maxsize=2)(self._plan)
        self._ends: list[int] = []  # the step each epoch ends before

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        epoch, k = self._locate(step)
        plan = self._epoch(epoch)
        numbers = np.arange(self.batch_size) * plan.steps + k  # of the segments [B]
        places = np.searchsorted(plan.starts, numbers, side="right") - 1
        within = numbers - plan.starts[places]
        firsts = plan.offsets[places] + within * self.length
        windows = np.empty((self.batch_size, self.length + 1), dtype=np.int64)
        for lane, (document, first) in enumerate(zip(plan.documents[places], firsts, strict=True)):
            windows[lane] = self.documents[document][first : first + self.length + 1]
        return Batch(windows[:, :-1], windows[:, 1:], (within == 0) | (k == 0))

    def _locate(self, step: int) -> tuple[int, int]:
        """Step -> epoch, step within it."""
        while not self._ends or self._ends[-1] <= step:
            start = self._ends[-1] if self._ends else 0
            self._ends.append(start + self._epoch(len(self._ends)).steps)
        epoch = bisect_right(self._ends, step)
        return epoch, step - (self._ends[epoch - 1] if epoch else 0)

    def _plan(self, epoch: int) -> Epoch:
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))
        documents = generator.permutation(len(self.documents))
        sizes = self.sizes[documents]
        drawn = generator.integers(0, self.length, size=len(sizes))
        offsets = np.minimum(drawn, sizes - 1 - self.length) if epoch else np.zeros_like(drawn)
        if ((sizes - 1 - offsets) // self.length).sum() < self.batch_size:
            offsets = np.zeros_like(drawn)  # so little text that every segment is needed
        counts = (sizes - 1 - offsets) // self.length
        starts = np.cumsum(counts) - counts
        return Epoch(documents, offsets, starts, int(counts.sum()) // self.batch_size)


def left_out(documents: Sequence[NDArray[Any]], length: int) -> dict[str, int]:
    """How much of the documents is in no segment, by kind; less than a hundredth in tails is none.

    A tail is what a document's last whole segment leaves.
    """
    sizes = np.array([len(document) for document in documents if len(document) > length])
    tails, total = int(((sizes - 1) % length).sum()), sum(map(len, documents))
    counted = {
        f"training documents under {length + 1:,} tokens left out": len(documents) - len(sizes)
    }
    if tails * 100 > total:
        counted[f"tokens in tails of training documents left out (of {total:,})"] = tails
    return counted
