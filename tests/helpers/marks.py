"""Which parameters of a test `make test` runs; `make test-slow` runs the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Parameters for `make test-slow`; a tuple is of several."""
    together = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=pytest.mark.slow) for each in together]


def a_few(values: Sequence[Any], count: int) -> list[Any]:
    """All of them; but for `count`, spread evenly, they are for `make test-slow`."""
    few = {number * len(values) // count for number in range(count)}
    return [value if at in few else slow(value)[0] for at, value in enumerate(values)]
