"""Masked language models (Devlin et al. 2019, arXiv 1810.04805, section 3.1), masks drawn anew for
each batch, as RoBERTa's (Liu et al. 2019, arXiv 1907.11692).

Of a window of T tokens round(share T), never BOS, are chosen and predicted from both sides: most
become MASK, some another token, some stay. With spans > 1 neighbours are chosen together, n of
them with a probability that falls as 1/n up to `spans` (DeBERTa has 3, He et al. 2021, appendix
A.3), anywhere in the window: DeBERTa's code seldom comes to the end of one.

Shapes: B lanes of a batch, T tokens of a window, N targets of a lane.
"""

from __future__ import annotations

import numpy as np

from posbench.errors import UserError
from posbench.objectives.base import DecoderSettings, Example, Ids, Objective, Vocabulary

TAG = 0x6D61736B  # "mask": apart from other seeds
BYTES = 258  # 256, BOS and MASK: of a vocabulary of bytes


class Masked(Objective):
    """share of the tokens are chosen; of these `masked` become MASK, `random` another token.

    decoder="enhanced" and the keys after it are of model/decoder.py.
    """

    two_sided = True
    masks = True

    def __init__(
        self,
        share: float = 0.15,
        masked: float = 0.8,
        random: float = 0.1,
        spans: int = 1,
        decoder: str = "plain",
        passes: int = 2,
        query: str = "positions",
        positions: str = "learned",
        max_length: int = 512,
        beyond: str = "refuse",
    ) -> None:
        if not 0 < share < 1:
            raise ValueError(f"objective.share={share} must lie between 0 and 1")
        if not 0 <= masked <= 1 or not 0 <= random <= 1 or masked + random > 1:
            raise ValueError(
                f"objective.masked={masked} and objective.random={random} must be parts of 1"
            )
        if spans < 1:
            raise ValueError(f"objective.spans={spans} must be at least 1")
        for key, value, choices in (
            ("decoder", decoder, ("plain", "enhanced")),
            ("query", query, ("positions", "both")),
            ("positions", positions, ("learned", "sinusoidal", "none")),
        ):
            if value not in choices:
                raise ValueError(f"objective.{key}={value}: choose {', '.join(choices)}")
        if not 1 <= passes <= 16:
            raise ValueError(f"objective.passes={passes} must lie in 1 .. 16")
        if decoder == "enhanced":
            self.decoder = DecoderSettings(passes, query, positions, max_length, beyond)
        self.share, self.masked, self.random, self.spans = share, masked, random, spans

    def count(self, length: int) -> int:
        """The targets of a window: the same for each, so that every step weighs the same."""
        return max(1, round(self.share * length))

    def require(self, length: int, vocabulary: Vocabulary) -> None:
        if self.count(length) >= length:
            raise UserError(
                f"objective.share={self.share}: a window of train.length={length} tokens would be "
                "masked as a whole"
            )
        if self.spans == 1 and vocabulary.size <= BYTES:
            raise UserError(
                "objective.spans=1: a single byte is read off its neighbours; give "
                "objective.spans=3 or more, or tokenizer=bpe"
            )

    def example(
        self,
        inputs: Ids,
        following: Ids,
        seed: int,
        number: int,
        lanes: range,
        vocabulary: Vocabulary,
    ) -> Example:
        inputs = inputs.copy()
        count = self.count(inputs.shape[1])
        places = np.empty((len(inputs), count), dtype=np.int64)
        targets = np.empty_like(places)
        for row, lane in enumerate(lanes):
            generator = np.random.default_rng(np.random.SeedSequence([seed, TAG, number, lane]))
            chosen = self._chosen(inputs[row] != vocabulary.bos, count, generator)
            places[row], targets[row] = chosen, inputs[row, chosen]
            inputs[row, chosen] = self._replaced(targets[row], vocabulary, generator)
        return Example(inputs, targets, places)

    def _chosen(self, free: np.ndarray, count: int, generator: np.random.Generator) -> Ids:
        """count places of a lane among those that are free, in order."""
        candidates = np.flatnonzero(free)
        if self.spans == 1:
            return np.sort(generator.permutation(candidates)[:count])
        sizes = np.arange(1, self.spans + 1)
        chances = (1 / sizes) / (1 / sizes).sum()
        chosen = set[int]()
        while len(chosen) < count:
            size = int(generator.choice(sizes, p=chances))
            first = int(generator.choice(candidates))
            span = [place for place in range(first, first + size) if place < len(free)]
            new = [place for place in span if free[place] and place not in chosen]
            chosen.update(new[: count - len(chosen)])
        return np.array(sorted(chosen), dtype=np.int64)

    def _replaced(
        self, tokens: Ids, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> Ids:
        """What stands in place of chosen tokens."""
        kind = generator.random(len(tokens))
        others = generator.integers(0, vocabulary.size - 2, size=len(tokens))  # no BOS, no MASK
        others += others >= vocabulary.bos
        replaced = np.where(kind < self.masked + self.random, others, tokens)
        return np.where(kind < self.masked, vocabulary.mask, replaced)
