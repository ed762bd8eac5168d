"""Protocols for causal models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posbench.config import EvalConfig
from posbench.errors import UserError
from posbench.evaluation.windows import Documents, Window, too_short

GOLDEN = 0.6180339887498949


class FixedTargets:
    """The same target tokens at every length; only the context to their left grows.

    Blocks of `targets` tokens, spread evenly over all places of all documents where the longest
    window fits. A window of length L predicts each target from at least L - targets + 1 tokens.
    """

    label = "fixed_targets"

    def __init__(self, config: EvalConfig) -> None:
        self.size, self.blocks = config.targets, config.blocks
        self.longest, self.shortest = max(config.lengths), min(config.lengths)
        if not 0 < self.size <= self.shortest:
            raise UserError(
                f"eval.targets={self.size} must lie between 1 and the shortest of eval.lengths, "
                f"{self.shortest}"
            )
        if self.blocks < 1:
            raise UserError(f"eval.blocks={self.blocks} must be at least 1")

    def windows(self, documents: Documents, length: int) -> list[Window]:
        ends = [
            (number, end)
            for number, document in enumerate(documents)
            for end in range(self.longest + 1, len(document) + 1, self.size)
        ]
        if not ends:
            raise too_short(documents, self.longest)
        return [
            Window(number, end - 1 - length, length, self.size)
            for number, end in self.spread(ends)
        ]

    def spread(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """As many as there are to be blocks, spread evenly."""
        count = min(self.blocks, len(places))
        chosen = np.unique(np.linspace(0, len(places) - 1, count).round().astype(int))
        return [places[index] for index in chosen]


class _EveryToken:
    """Every token but BOS scored once, of documents long enough for the longest window.

    One stretch of each document is scored, up to `tokens` tokens in all: documents take turns of
    as many tokens as the longest window, until none has more. A stretch shorter than its document
    starts at a place chosen by the golden ratio, as beginnings of texts are easy to predict. A
    window ends every step(length) tokens, the first once it is full; the last may have fewer
    targets.
    """

    label: str

    def __init__(self, config: EvalConfig) -> None:
        self.tokens, self.longest = config.tokens, max(config.lengths)
        self.shortest = min(config.lengths)
        if self.tokens <= self.longest:
            raise UserError(
                f"eval.tokens={self.tokens} must exceed the longest of eval.lengths, "
                f"{self.longest}"
            )

    def step(self, length: int) -> int:
        raise NotImplementedError

    def memory(self, length: int) -> int:
        """How many tokens of a length are segment memory."""
        return 0

    def windows(self, documents: Documents, length: int) -> list[Window]:
        windows = []
        step, memory = self.step(length), self.memory(length)
        size = length - memory
        for number, count in self._shares(documents).items():
            first = int((len(documents[number]) - 1 - count) * (number * GOLDEN % 1))
            windows.append(Window(number, first, min(size, count), min(size, count)))
            for end in range(size, count, step):
                scored = min(step, count - end)
                start = end - size + step
                inputs, kept = end + scored - start, min(memory, start)
                windows.append(Window(number, first + start, inputs, scored, kept))
        if not windows:
            raise too_short(documents, self.longest)
        return windows

    def _shares(self, documents: Documents) -> dict[int, int]:
        """Tokens scored of each document."""
        long = {n: len(text) - 1 for n, text in enumerate(documents) if len(text) > self.longest}
        shares, left = dict.fromkeys(long, 0), self.tokens
        while left and shares != long:
            for number, most in long.items():
                turn = min(self.longest, most - shares[number], left)
                shares[number] += turn
                left -= turn
        return {number: share for number, share in shares.items() if share}

    def _require(self, key: str, value: int) -> None:
        if not 0 < value <= self.shortest:
            raise UserError(
                f"{key}={value} must lie between 1 and the shortest of eval.lengths, "
                f"{self.shortest}"
            )


class Nonoverlapping(_EveryToken):
    """Consecutive windows, what most published tables use.

    Perplexity falls with length merely because fewer tokens have a short context.
    """

    label = "nonoverlapping"

    def step(self, length: int) -> int:
        return length


class Sliding(_EveryToken):
    """Windows that move on by `stride` tokens, of which the new ones are scored.

    A token has at least length - stride tokens of context, but for a document's first window.
    With stride = length it is `nonoverlapping`.
    """

    def __init__(self, config: EvalConfig) -> None:
        super().__init__(config)
        self._require("eval.stride", config.stride)
        self.stride = config.stride
        self.label = f"sliding stride {self.stride}"

    def step(self, length: int) -> int:
        return self.stride


class Stream(_EveryToken):
    """Consecutive segments; the layers' inputs of the length - segment tokens before are memory.

    Transformer-XL's evaluation (Dai et al. 2019), and for every encoding what a rolling cache of
    keys and values does. A length of one segment has no memory: it is `nonoverlapping`. What an
    encoding adds at the input stays as it was in the memory: positions repeat.
    """

    def __init__(self, config: EvalConfig) -> None:
        super().__init__(config)
        self._require("eval.segment", config.segment)
        self.segment = config.segment
        self.label = f"stream segment {self.segment}"

    def step(self, length: int) -> int:
        return self.segment

    def memory(self, length: int) -> int:
        return length - self.segment
