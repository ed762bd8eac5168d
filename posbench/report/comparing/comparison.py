"""What a report shows, as data: every writer draws from this and computes nothing itself.

A Comparison is one table: runs that can be compared, one protocol, one set of scored tokens.
Perplexities are exp(sum / count) over all seeds; intervals are those of evaluation/statistics.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posbench.evaluation.statistics import Interval

MASKED = "masked "  # how the protocols of masked models begin
CHANGED = "*"  # after a row's name: a training was resumed on another machine (see the notes)


@dataclass(frozen=True)
class Reach:
    """A length in tokens read off a curve. beyond: it is at least the longest length scored.

    length None: there is none, and reason says why.
    """

    length: float | None = None
    beyond: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        if self.length is None:
            return "–"
        return f"{'≥ ' if self.beyond else ''}{self.length:,.0f}"


@dataclass(frozen=True)
class Cell:
    """One encoding at one length. reason: why there is no perplexity; None: not scored yet."""

    perplexity: Interval | None = None
    ratio: Interval | None = None  # to the perplexity at the training length without extension
    against: Interval | None = None  # ratio to the baseline's perplexity at this length
    bits_per_byte: float | None = None
    word_perplexity: float | None = None  # where the corpus defines words
    rank: int | None = None  # 1: the lowest perplexity of the column
    best: bool = False
    tied: bool = False  # not the best, and cannot be told apart from it
    seeds: int = 0
    documents: int = 0
    reason: str | None = None
    without: tuple[str, ...] = ()  # seeds without a perplexity where other seeds have one, and why
    bend: Interval | None = None  # the perplexity with the interval of `ratio`: bands in figures
    # Draws of ln ratio that belong together with those of other rows (Bootstrap.joint)
    draws: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Bin:
    """Mean loss in nats of the tokens with first .. last tokens of context."""

    first: int
    last: int
    loss: Interval
    tokens: int


@dataclass(frozen=True)
class Cost:
    """What a row's runs cost: medians over the seeds. peak_memory is RAM."""

    parameters: int | None = None
    positional_parameters: int | None = None
    train_tokens_per_second: float | None = None
    eval_tokens_per_second: float | None = None  # at the longest length
    peak_memory: float | None = None  # bytes, training
    seconds: float | None = None  # training and evaluation
    decoder_parameters: int | None = None  # of a masked model's enhanced decoder, besides


@dataclass(frozen=True)
class Row:
    """One encoding, or an extension of its context, over its seeds."""

    label: str  # run.name, and the differing settings where several rows have that name
    encoding: str  # run.name
    extension: str | None
    cells: dict[int, Cell]  # by length
    cost: Cost
    lr_multiplier: float  # of the positional parameters
    tuning: str  # "untuned", or "tuned, 6 trials: lr 0.006, positional ×3.1"
    recl: Reach  # relative effective context length (Dai et al. 2019, appendix C)
    helps: Reach  # the longest length at which more context still helps
    breaks: Reach  # where perplexity exceeds 1.05 times its value at the training length
    by_context: tuple[Bin, ...] = ()  # at the longest length; empty under fixed_targets
    missing: tuple[str, ...] = ()  # seeds that failed or are not there, and why
    parts: tuple[str, ...] = ()  # a note for each training resumed on another machine

    @property
    def name(self) -> str:
        name = self.label if self.extension is None else f"{self.label} + {self.extension}"
        return name + CHANGED if self.parts else name

    @property
    def longest(self) -> Cell:
        return self.cells[max(self.cells)]


@dataclass(frozen=True)
class Comparison:
    """One table. Rows are sorted by perplexity at the longest length, those without one last."""

    experiment: str
    protocol: str  # "fixed_targets", or "sliding stride 64"
    targets: str | None  # hash of the scored tokens; None: nothing scored yet
    train_length: int
    lengths: tuple[int, ...]
    rows: tuple[Row, ...]
    baseline: str | None  # the row that Cell.against is relative to
    level: float  # of the intervals, e.g. 0.95
    facts: dict[str, str]  # the caption: what every number rests on, "corpus" -> "sotu", ...
    apart: tuple[str, ...] = ()  # why other runs of the experiment are not in this table
    notes: tuple[str, ...] = ()  # why numbers are missing, why a name has a mark

    @property
    def title(self) -> str:
        name = self.protocol.removeprefix(MASKED)
        what = "perplexity" if name == self.protocol else f"{MASKED}perplexity"
        return f"{self.experiment}: {what} by length, {name}"

    @property
    def caption(self) -> str:
        return "; ".join(f"{key} {value}" for key, value in self.facts.items())


@dataclass(frozen=True)
class ProbeRow:
    """One encoding, or an extension of its context, in a ProbeTable."""

    label: str
    recall: dict[int, Interval]  # share of trials recalled, by distance in tokens
    reasons: dict[int, str] = field(default_factory=dict)  # distance -> why there is none
    parts: tuple[str, ...] = ()  # as in Row

    @property
    def name(self) -> str:
        return self.label + CHANGED if self.parts else self.label


@dataclass(frozen=True)
class ProbeTable:
    """One probe over comparable runs: recall of a planted token, by distance."""

    experiment: str
    probe: str  # "passkey", "copy"
    train_length: int
    distances: tuple[int, ...]
    rows: tuple[ProbeRow, ...]
    trials: str  # hash of what was planted where
    chance: float  # what guessing among the candidates gets
    facts: dict[str, str]
    notes: tuple[str, ...] = ()  # why there is no number
    measure: str = "recall"  # or "lift"

    @property
    def title(self) -> str:
        return f"{self.experiment}: {self.probe}, {self.measure} by distance"

    @property
    def caption(self) -> str:
        return "; ".join(f"{key} {value}" for key, value in self.facts.items())


@dataclass(frozen=True)
class Report:
    """All tables of a report."""

    comparisons: tuple[Comparison, ...]
    probes: tuple[ProbeTable, ...] = ()
