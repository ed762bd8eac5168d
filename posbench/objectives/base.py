"""The protocol of an objective.

Shapes: B lanes of a batch, T tokens of a window, N targets of a lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Example(NamedTuple):
    """What the model reads, and what it is to predict at which of its states.

    places None: the targets belong to all T states in order, and N is T.
    """

    inputs: Ids  # [B, T]
    targets: Ids  # [B, N]
    places: Ids | None  # [B, N] numbers of states


@dataclass(frozen=True)
class Vocabulary:
    """Of a tokenizer: V ids, the last of them BOS, or MASK with BOS before it."""

    size: int
    masks: bool = False

    @property
    def bos(self) -> int:
        return self.size - 1 - self.masks

    @property
    def mask(self) -> int:
        assert self.masks, "there is no MASK"
        return self.size - 1


@dataclass(frozen=True)
class DecoderSettings:
    """Of the enhanced mask decoder, model/decoder.py."""

    passes: int
    query: str
    positions: str
    max_length: int
    beyond: str


class Objective(ABC):
    """From windows to examples, and whether a token may see what comes after it."""

    two_sided: bool = False

    masks: bool = False
    """Whether the vocabulary needs a MASK token."""

    decoder: DecoderSettings | None = None
    """Of the model's enhanced mask decoder, if it has one."""

    def require(self, length: int, vocabulary: Vocabulary) -> None:  # noqa: B027 (all can be used)
        """Raise UserError where windows of so many tokens, or such tokens, cannot be used."""

    @abstractmethod
    def example(
        self,
        inputs: Ids,
        following: Ids,
        seed: int,
        number: int,
        lanes: range,
        vocabulary: Vocabulary,
    ) -> Example:
        """Of some lanes in the number'th batch of a run, inputs [B, T] and the tokens after each.

        A pure function of its arguments, and of each lane alone: so training resumes without a
        state, and several processes make what one would.
        """
