"""Measure one encoding beside the baseline, at one mode and length."""

from __future__ import annotations

import dataclasses

import torch

from posbench.config import SpeedCommand
from posbench.model import from_config
from posbench.model.transformer import Transformer
from posbench.speed import limits, memory, work
from posbench.speed.cost import Cost, Pass, cost
from posbench.speed.failure import FAILED, Failed
from posbench.speed.memory import Memory
from posbench.speed.rounds import Best, Measure, Rounds, Steady, alternate
from posbench.speed.settings import Subject, same


@dataclasses.dataclass(frozen=True)
class Side:
    """What was measured of one encoding; reason: why something could not be.

    memory is RAM, rates are tokens/s, cost is that of a whole pass.
    """

    name: str
    kernel: str
    reason: str | None = None
    memory: Memory | None = None
    cost: Cost | None = None
    rates: Rounds | None = None

    @property
    def defect(self) -> bool:
        """Whether the reason is an unexpected error, not lack of RAM or of positions."""
        return self.reason is not None and self.reason.startswith(FAILED)


@dataclasses.dataclass(frozen=True)
class Cell:
    """An encoding and the baseline (may be the same object), and the machine's limits measured
    beside them: matmul in operations/s, copy in bytes/s."""

    mode: str
    length: int
    windows: int
    dtype: str  # of matrix products
    encoding: Side
    baseline: Side
    matmul: Rounds | None
    copy: Rounds | None

    @property
    def tokens(self) -> int:
        """How many tokens a pass has."""
        return self.windows * self.length

    @property
    def sides(self) -> list[Side]:
        """Baseline and encoding; only one of them where they are the same."""
        alone = self.encoding is self.baseline
        return [self.encoding] if alone else [self.baseline, self.encoding]

    def speed_ratio(self, side: Side) -> Rounds | None:
        """The side's rate over the baseline's, round by round; above 1 is faster."""
        if side.rates is None or self.baseline.rates is None:
            return None
        return side.rates.over(self.baseline.rates)

    def memory_ratio(self, side: Side) -> float | None:
        if side.memory is None or self.baseline.memory is None or not self.baseline.memory.used:
            return None
        return side.memory.used / self.baseline.memory.used

    def share_of_matmul(self, side: Side) -> Rounds | None:
        """Necessary operations done per second, as a share of the matrix product's rate."""
        if side.rates is None or side.cost is None or self.matmul is None:
            return None
        return side.rates.times(side.cost.operations / self.tokens).over(self.matmul)

    def share_of_copy(self, side: Side) -> Rounds | None:
        """Necessary bytes moved per second, as a share of the copy's rate."""
        if side.rates is None or side.cost is None or self.copy is None:
            return None
        return side.rates.times(side.cost.bytes / self.tokens).over(self.copy)


def measure(
    subject: Subject, baseline: Subject, mode: str, length: int, device: torch.device
) -> Cell:
    """Peak RAM of each, then the rates of both and of the machine in turn. Raises UserError."""
    config, its = subject.at(mode, length), baseline.at(mode, length)
    alone = same(config, its)
    encoding = _before(subject.name, config, mode, length, device)
    other = encoding if alone else _before(baseline.name, its, mode, length, device)
    asked = {"baseline": (other, its), "encoding": (encoding, config)}
    if alone:
        del asked["baseline"]
    timed = {key: config for key, (side, config) in asked.items() if side.reason is None}
    found = _rates(timed, mode, length, device)
    encoding = _with_rates(encoding, found.get("encoding"))
    other = encoding if alone else _with_rates(other, found.get("baseline"))
    return Cell(
        mode,
        length,
        work.windows(config, length),
        str(work.dtype(config, mode, device)).removeprefix("torch."),
        encoding,
        other,
        _limit(found.get("matmul")),
        _limit(found.get("copy")),
    )


def _before(name: str, config: SpeedCommand, mode: str, length: int, device: torch.device) -> Side:
    """A Side with everything but its rates. RAM is measured in a process of its own."""
    model = from_config.model(config, config.speed.vocabulary).to(device)
    side = Side(name, model.kernel)
    if (reason := _too_long(model, mode, length)) is not None:
        return dataclasses.replace(side, reason=reason)
    one = Pass(
        training=mode == "train",
        windows=work.windows(config, length),
        length=length,
        scored=length if mode == "train" else work.scored(config, length),
        itemsize=work.dtype(config, mode, device).itemsize,
    )
    try:
        used = memory.measure(config, mode, length, device)
    except Failed as failed:
        return dataclasses.replace(side, reason=str(failed))
    return dataclasses.replace(side, memory=used, cost=cost(model, config.model, one))


def _too_long(model: Transformer, mode: str, length: int) -> str | None:
    encoding = model.encoding
    past = encoding.memory_length if mode == "train" else 0
    if encoding.max_length is None or past + length <= encoding.max_length:
        return None
    return f"no position past {encoding.max_length}"


def _rates(
    timed: dict[str, SpeedCommand], mode: str, length: int, device: torch.device
) -> dict[str, Rounds | str]:
    """Rates, or the reason for none, of each side that can run, and of "matmul" and "copy"."""
    if not timed:
        return {}

    def steady(config: SpeedCommand) -> Measure:
        return Steady(lambda: work.MODES[mode](config, length, device), config.speed.seconds)

    any_one = next(iter(timed.values()))
    dtype = work.dtype(any_one, mode, device)
    measures = {side: steady(config) for side, config in timed.items()} | {
        "matmul": Best(lambda: limits.matmul(dtype, device), limits.TRIES),
        "copy": Best(lambda: limits.copy(device), limits.TRIES),
    }
    return alternate(measures, any_one.speed.rounds)


def _with_rates(side: Side, found: Rounds | str | None) -> Side:
    if isinstance(found, str):
        return dataclasses.replace(side, reason=found)
    return dataclasses.replace(side, rates=found)


def _limit(found: Rounds | str | None) -> Rounds | None:
    return found if isinstance(found, Rounds) else None
