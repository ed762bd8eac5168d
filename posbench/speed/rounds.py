"""Rates measured alternately, in rounds, so that a machine that slows down does so for all."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from posbench.speed.failure import Failed, told

Clock = Callable[[], float]  # seconds


@dataclasses.dataclass(frozen=True)
class Rounds:
    """A measured number for each round."""

    each: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.each)

    @property
    def spread(self) -> float | None:
        """Half the interquartile range; None for a single round."""
        if len(self.each) < 2:
            return None
        low, _, high = statistics.quantiles(self.each, n=4, method="inclusive")
        return (high - low) / 2

    def over(self, other: Rounds) -> Rounds:
        """The ratio to `other` in each round."""
        return Rounds([mine / its for mine, its in zip(self.each, other.each, strict=True)])

    def times(self, factor: float) -> Rounds:
        return Rounds([factor * value for value in self.each])


class Measure(Protocol):
    """Something whose rate can be measured again and again."""

    def warm_up(self) -> None: ...

    def rate(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Work:
    """What is timed: a call, the amount it processes (e.g. tokens), and how many calls warm it
    up."""

    call: Callable[[], object]
    amount: float
    warm: int


class Steady:
    """Amount per second, over a call repeated for at least `seconds`."""

    def __init__(
        self, make: Callable[[], Work], seconds: float, clock: Clock = time.perf_counter
    ) -> None:
        self.make, self.seconds, self.clock = make, seconds, clock
        self.work: Work | None = None
        self.calls = 1

    def warm_up(self) -> None:
        self.work = self.make()
        for _ in range(self.work.warm):
            self.work.call()
        self.calls = max(1, math.ceil(self.seconds / self._seconds(1)))

    def rate(self) -> float:
        return self.calls * self._made().amount / self._seconds(self.calls)

    def _seconds(self, calls: int) -> float:
        call = self._made().call
        started = self.clock()
        for _ in range(calls):
            call()
        return self.clock() - started

    def _made(self) -> Work:
        assert self.work is not None, "warm_up comes first"
        return self.work


class Best(Steady):
    """Amount per second, in the fastest of `tries` calls."""

    def __init__(
        self, make: Callable[[], Work], tries: int, clock: Clock = time.perf_counter
    ) -> None:
        super().__init__(make, 0, clock)
        self.tries = tries

    def rate(self) -> float:
        return self._made().amount / min(self._seconds(1) for _ in range(self.tries))


def alternate(measures: Mapping[str, Measure], rounds: int) -> dict[str, Rounds | str]:
    """The rates of each measure, taken in turn: first, second, ..., first, second, ...

    All are warmed up before. A measure that fails has the reason instead; the others go on.
    """
    rates: dict[str, list[float]] = {name: [] for name in measures}
    failed: dict[str, str] = {}
    for number in range(rounds + 1):
        for name in [name for name in measures if name not in failed]:
            try:
                with told():
                    if number == 0:
                        measures[name].warm_up()
                    else:
                        rates[name].append(measures[name].rate())
            except Failed as failure:
                failed[name] = str(failure)
    return {name: failed.get(name) or Rounds(rates[name]) for name in measures}
