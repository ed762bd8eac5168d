"""No kernel that is chosen holds a number for each pair of tokens: peak memory of a process."""

from __future__ import annotations

import pytest

from tests.conformance.test_conformance import NAMES
from tests.helpers import peaks

MIB = 2**20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not peaks.possible(), reason="reads and resets a process's peak in /proc"),
]


def test_evaluation_at_8192() -> None:
    """Less than one byte for each pair, as a mask of the whole window would need; two heads."""
    found = peaks.peaks([(name, None, 8192, False) for name in NAMES])
    broken = {n: size / MIB for n, size in zip(NAMES, found, strict=True) if size >= 8192**2}
    assert not broken


TRAINED = ["t5", "shaw", "deberta", "transformer_xl", "fire", "cope", "fox", "kerple_log"]
TRAINED_LIMIT = 4096**2 * 4 + 8 * MIB  # one matrix of float32; all else takes more than 8 MiB


def test_training_at_4096() -> None:
    found = peaks.peaks([(name, None, 4096, True) for name in TRAINED])
    broken = {n: s / MIB for n, s in zip(TRAINED, found, strict=True) if s >= TRAINED_LIMIT}
    assert not broken


TWO_SIDED = ["t5", "shaw", "deberta", "transformer_xl_memoryless"]


def test_two_sided_attention_is_linear_too() -> None:
    """Twice the length takes about twice the memory, in evaluation and in training."""
    lengths = [(8192, False), (16384, False), (4096, True), (8192, True)]
    asked = [(name, None, *each, True) for name in TWO_SIDED for each in lengths]
    found = peaks.peaks(asked)
    for name, start in zip(TWO_SIDED, range(0, len(found), 4), strict=True):
        short, long, trained, twice = found[start : start + 4]
        assert long < 2.5 * short, name
        assert twice < 2.5 * trained, name
        assert short < 8192**2, name
        assert trained < TRAINED_LIMIT, name


def test_the_definition_holds_such_matrices() -> None:
    """So the measurement shows them."""
    least, evaluated, trained = peaks.peaks(
        [
            ("nope", None, 4096, True),
            ("nope", "reference", 4096, False),
            ("nope", "reference", 4096, True),
        ]
    )
    assert 8 * MIB < least < TRAINED_LIMIT
    assert trained > evaluated > 2 * TRAINED_LIMIT
