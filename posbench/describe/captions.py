"""Captions of a Picture, for the terminal and the figures alike."""

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
    """The layer's number and the class of the encoding that serves it."""
    return f"Layer {picture.layer}, {picture.served.name}"


def unit(picture: Picture) -> str:
    """The unit of a curve's values."""
    return "ln(weight × keys in sight)" if picture.measured else "bias in logits"


def curve(picture: Picture) -> str:
    """A sentence on how to read the curves."""
    told = SHARE if picture.measured else BIAS
    if picture.ahead is None:
        return told
    of_which = " of the first." if picture.measured else "."
    return f"{told} ahead: keys after the query{of_which}"


def contents(alike: bool) -> str:
    """A sentence on the tokens that the model was given."""
    return ALIKE if alike else RANDOM
