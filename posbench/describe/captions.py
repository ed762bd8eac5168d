"""What a picture shows, in words; for the terminal and the figures alike."""

from __future__ import annotations

from posbench.describe.probe import BATCH, QUERIES, Picture

ALIKE = (
    "Each window repeats one token, and keys are projected as queries are, so that nothing but "
    f"position tells keys apart. Mean of {BATCH} windows, no memory."
)
RANDOM = f"Random tokens, mean of {BATCH} windows, no memory."
BIAS = "What is added to the logit of a query and a key, wherever they stand."
SHARE = (
    "0: no preference, a key gets its equal share; +1: e times as much. Mean of the last "
    f"{QUERIES} queries."
)

RELATIVE = "Queries down, keys across; each weight over that of the query's own token"


def heading(picture: Picture) -> str:
    """Which layer, and whose."""
    return f"Layer {picture.layer}, {picture.served.name}"


def unit(picture: Picture) -> str:
    """Of the values of the curves."""
    return "ln(weight × keys in sight)" if picture.measured else "bias in logits"


def curve(picture: Picture) -> str:
    """How to read the curves."""
    return SHARE if picture.measured else BIAS


def contents(alike: bool) -> str:
    """What the model read."""
    return ALIKE if alike else RANDOM
