"""Scales from values to places in a picture, and where ticks and labels go on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MANTISSAS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
WIDE = 3.0  # a range of more than this factor is drawn on a logarithmic scale


@dataclass(frozen=True)
class Scale:
    """Maps values low .. high onto places start .. end; log: on a logarithmic scale."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; of one outside, the nearer end."""
        low, high = self._on(self.low), self._on(self.high)
        share = (self._on(max(value, self.low)) - low) / (high - low)
        return self.start + min(share, 1.0) * (self.end - self.start)

    def _on(self, value: float) -> float:
        return math.log2(value) if self.log else value

    @property
    def ticks(self) -> list[float]:
        """Four to eight round values."""
        if not self.log:
            return self._even()
        for mantissas in MANTISSAS:
            found = self._round(mantissas)
            if len(found) >= 4:
                return found[:: math.ceil(len(found) / 8)]
        return self._even()

    def _round(self, mantissas: Sequence[float]) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [float(f"{m}e{e}") for e in exponents for m in mantissas]
        return [value for value in values if self.low <= value <= self.high]

    def _even(self) -> list[float]:
        rough = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * s for s in STEPS if power * s >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(n * step, 12) for n in range(first, last + 1)]


def is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE


def scale(
    values: Sequence[float], start: float, end: float, *, log: bool, margin: float = 0.06
) -> Scale:
    """A Scale over all values, with a margin, a share of their range, on both sides."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** margin if high > low else 1.5
        return Scale(low / room, high * room, start, end, log=True)
    room = (high - low) * margin if high > low else abs(high) / 4 or 1.0
    return Scale(low - room, high + room, start, end)


def thinned(
    values: Sequence[float], at: Callable[[float], float], room: Callable[[float], float]
) -> list[float]:
    """All values (ascending), or every second, third ..., so that labels `room` wide fit."""
    for step in range(1, len(values)):
        kept = list(values[::step])
        if all(at(b) - at(a) >= (room(a) + room(b)) / 2 for a, b in pairwise(kept)):
            return kept
    return list(values[:1])
