"""Curves and matrices as characters, legible without colour.

Values are logits or logarithms of weights. One more than DEEP below the highest, a weight under
0.04 % of the largest, is drawn as if DEEP below it; a range smaller than FLAT, which is noise, is
drawn as if it were FLAT wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

BARS = "▁▂▃▄▅▆▇█"
SHADES = "·░▒▓█"
DEEP = 8.0
FLAT = 0.1


def bins(length: int, columns: int) -> list[int]:
    """The first distance of each bin of 0 .. length-1, at most `columns` bins.

    A bin's width grows in proportion to its distance: each near distance has a bin of its own.
    """
    return sorted({round(length ** (n / columns)) - 1 for n in range(columns)})


def binned(values: Tensor, starts: list[int]) -> list[float]:
    """values [M] -> their mean in each bin."""
    ends = [*starts[1:], len(values)]
    return [float(values[start:end].mean()) for start, end in zip(starts, ends, strict=True)]


def bars(curves: list[list[float]]) -> list[str]:
    """A line of text for each curve, all on one scale; a blank where a value is -inf."""
    low, high = _range(value for curve in curves for value in curve)
    return ["".join(_step(BARS, value, low, high) for value in curve) for curve in curves]


def ruler(starts: list[int]) -> str:
    """An axis: 0 and powers of two under the bins that hold them, as many as fit."""
    line = "0"
    for distance in (2**n for n in range(starts[-1].bit_length())):
        column = sum(start <= distance for start in starts) - 1
        if column > len(line):
            line = f"{line:<{column}}{distance}"
    return line


def shades(weights: Tensor) -> tuple[list[str], list[float]]:
    """Weights [T, S] -> a line for each query, two characters a key, and a legend.

    The legend is the least weight that each of SHADES stands for. A weight of 0 is blank.
    """
    logs = weights.log().tolist()
    low, high = _range(value for row in logs for value in row)
    lines = ["".join(2 * _step(SHADES, value, low, high) for value in row) for row in logs]
    step = (high - low) / len(SHADES)
    least = [math.exp(low + step * number) for number in range(len(SHADES))]
    return [line.rstrip() for line in lines], [0.0, *least[1:]]


def _range(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    high = max(finite, default=0.0)
    return min(max(min(finite), high - DEEP), high - FLAT), high


def _step(steps: str, value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    number = math.floor((value - low) / (high - low) * len(steps))
    return steps[max(0, min(number, len(steps) - 1))]
