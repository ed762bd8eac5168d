"""Finished runs as evidence for claims: the encodings of one table, found by their class.

report/reading/groups.py says which runs can be compared. Only the protocol that scores the same
tokens at every length is evidence of extrapolation. Causal and masked models are apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.encodings import Encoding
from posbench.evaluation.results import Result
from posbench.evaluation.statistics import Bootstrap, Interval
from posbench.report.comparing.cells import paired_ratio
from posbench.report.comparing.comparison import MASKED
from posbench.report.comparing.scores import entry
from posbench.report.reading.collect import Run
from posbench.report.reading.groups import Group, comparable, decoder

PROTOCOL = "fixed_targets"


@dataclass(frozen=True)
class Measured:
    """One encoding (and decoder), over its seeds."""

    runs: tuple[Run, ...]
    perplexity: Mapping[int, float]  # by length, the mean
    reasons: Mapping[int, str]  # by length, why there can be no number
    results: tuple[Result, ...]  # of all its runs, in this table

    @property
    def name(self) -> str:
        return self.runs[0].name

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.runs[0].config["encoding"])

    @property
    def decoder(self) -> dict[str, Any]:
        """The settings of its enhanced decoder; empty: it has none."""
        return decoder(self.runs[0])

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    @property
    def train_speed(self) -> float:
        """Tokens a second, the median."""
        return statistics.median(r.summary["train_tokens_per_second"] for r in self.runs)

    @property
    def train_memory(self) -> float:
        """Peak bytes, the median."""
        return statistics.median(run.summary["train_peak_memory"] for run in self.runs)

    def speed(self, length: int) -> float | None:
        """Tokens a second in evaluation at a length, the median."""
        found = [r.tokens_per_second for r in self.results if r.length == length]
        known = [speed for speed in found if speed is not None]
        return statistics.median(known) if known else None

    def memory(self, length: int) -> float | None:
        """Peak bytes in evaluation at a length, the median."""
        found = [r.peak_memory for r in self.results if r.length == length]
        known = [memory for memory in found if memory is not None]
        return statistics.median(known) if known else None

    def made_of(self, kind: type[Encoding], **settings: Any) -> bool:
        """Whether it is of exactly this class and these settings, defaults counted in."""
        if self.settings["_target_"] != f"{kind.__module__}.{kind.__qualname__}":
            return False
        return all(self.setting(kind, key) == value for key, value in settings.items())

    def setting(self, kind: type[Encoding], key: str) -> Any:
        """A constructor's argument, as given or by default."""
        return self.settings.get(key, inspect.signature(kind).parameters[key].default)


@dataclass(frozen=True)
class Evidence:
    """Encodings whose numbers can be compared."""

    train_length: int
    longest: int
    encodings: tuple[Measured, ...]
    protocol: str
    targets: str

    @property
    def masked(self) -> bool:
        return self.protocol.startswith(MASKED)

    def all(self, kind: type[Encoding], **settings: Any) -> list[Measured]:
        """The encodings of that class and settings, with whatever decoder."""
        return [measured for measured in self.encodings if measured.made_of(kind, **settings)]

    def one(self, kind: type[Encoding], **settings: Any) -> Measured | None:
        """The encoding of that class and settings, without enhanced decoder; of several, the best
        at the training length."""
        found = [m for m in self.all(kind, **settings) if self.train_length in m.perplexity]
        found = [m for m in found if not m.decoder]
        return min(found, key=self.trained, default=None)

    def like(self, measured: Measured, **settings: Any) -> Measured | None:
        """The same encoding with the same decoder but for these settings of it."""
        wanted = (measured.settings, measured.decoder | settings)
        found = (each for each in self.encodings if (each.settings, each.decoder) == wanted)
        return next(found, None)

    def paired(self, one: Measured, other: Measured) -> Interval | None:
        """Perplexity over the other's at the training length, paired by document and seed."""
        one_row, other_row = (
            entry(m.name, [*m.runs], None, self.protocol, self.targets) for m in (one, other)
        )
        at = self.train_length
        return paired_ratio(one_row, other_row, at, at, Bootstrap())

    def trained(self, measured: Measured) -> float:
        """Perplexity at the training length."""
        return measured.perplexity[self.train_length]

    def ratio(self, measured: Measured) -> float | None:
        """Perplexity at the longest length over that at the training length."""
        if self.longest <= self.train_length or self.longest not in measured.perplexity:
            return None
        return measured.perplexity[self.longest] / self.trained(measured)


def evidence(runs: Sequence[Run]) -> list[Evidence]:
    """The comparable sets of finished runs, those with the most encodings first."""
    done = {str(run.folder): run for run in runs if run.why_incomplete is None and run.summary}
    rows = [_row(run) for run in done.values()]
    made = [
        _evidence(group, protocol, targets)
        for group in comparable(rows)
        for protocol, targets in sorted(
            {(r.protocol, r.targets) for run in group.runs for r in run.results if r.targets}
        )
    ]
    return sorted(made, key=lambda each: (-len(each.encodings), -each.longest))


def _row(run: Run) -> Run:
    """The run with its results under PROTOCOL, causal or masked, without extension alone."""
    kept = [
        r
        for r in run.results
        if r.protocol.removeprefix(MASKED).split()[0] == PROTOCOL and r.extension is None
    ]
    return dataclasses.replace(run, results=kept)


def _evidence(group: Group, protocol: str, targets: str) -> Evidence:
    kinds: dict[str, list[Run]] = defaultdict(list)
    for run in group.runs:
        if any((r.protocol, r.targets) == (protocol, targets) for r in run.results):
            kind = [run.config["encoding"], decoder(run)]
            kinds[json.dumps(kind, sort_keys=True)].append(run)
    encodings = tuple(_measured(runs, protocol, targets) for runs in kinds.values())
    longest = max(result.length for each in encodings for result in each.results)
    return Evidence(group.config["train"]["length"], longest, encodings, protocol, targets)


def _measured(runs: list[Run], protocol: str, targets: str) -> Measured:
    results = (r for run in runs for r in run.results)
    found = [r for r in results if (r.protocol, r.targets) == (protocol, targets)]
    values: dict[int, list[float]] = defaultdict(list)
    for result in found:
        if result.perplexity is not None:
            values[result.length].append(result.perplexity)
    reasons = {r.length: r.reason for r in found if r.reason and r.length not in values}
    means = {length: statistics.mean(each) for length, each in values.items()}
    return Measured(tuple(runs), means, reasons, tuple(found))
