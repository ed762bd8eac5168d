"""Each token from those before it."""

from __future__ import annotations

from posbench.objectives.base import Example, Ids, Objective, Vocabulary


class Causal(Objective):
    """Every state predicts the next token."""

    def example(
        self,
        inputs: Ids,
        following: Ids,
        seed: int,
        number: int,
        lanes: range,
        vocabulary: Vocabulary,
    ) -> Example:
        return Example(inputs, following, None)
