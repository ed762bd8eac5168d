"""The figures that measured claims rest on, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from posbench.claims.evidence import Evidence, Measured
from posbench.report.writing.wording import number


class Answer(NamedTuple):
    """Whether a claim holds, the numbers that say so, and what they were measured on."""

    holds: bool
    figure: str
    used: Sequence[Measured]


def far(found: Evidence, measured: Measured) -> str:
    """e.g. "alibi 36.78 at 128 → 36.75 at 2,048, ×1.00" for an encoding that got there."""
    ratio = found.ratio(measured) or 0.0
    first, last = trained(found, measured), measured.perplexity[found.longest]
    return f"{first} → {number(last)} at {found.longest:,}, ×{number(ratio)}"


def trained(found: Evidence, measured: Measured) -> str:
    """e.g. "alibi 36.78 at 128"."""
    return f"{measured.name} {number(found.trained(measured))} at {found.train_length:,}"


def versus(found: Evidence, compared: Sequence[Measured]) -> str:
    """e.g. "t5 30.74, shaw 31.57 at 128"."""
    values = ", ".join(f"{m.name} {number(found.trained(m))}" for m in compared)
    return f"{values} at {found.train_length:,}"


def seeds(used: Iterable[Measured]) -> str:
    """How many runs stand behind each number; one has no spread."""
    counts = sorted({measured.seeds for measured in used})
    if counts == [1]:
        return "one seed: no spread"
    return f"{' or '.join(map(str, counts))} seeds"
