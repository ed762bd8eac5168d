"""Verdict: whether a claim holds, and the numbers behind that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from posbench.claims.texts import Claim

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured"


@dataclass(frozen=True)
class Verdict:
    """A part of a claim, judged. runs are the folders that a measurement rests on."""

    number: int
    claim: str
    kind: str  # property, measured
    verdict: str  # holds, does not hold, not measured
    figure: str
    runs: tuple[str, ...] = ()


class Finding(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    holds: bool
    figure: str


def judged(claim: Claim, finding: Finding, runs: tuple[str, ...] = ()) -> Verdict:
    verdict = HOLDS if finding.holds else FAILS
    return Verdict(claim.number, claim.text, claim.kind, verdict, finding.figure, runs)


def unmeasured(claim: Claim, how: str) -> Verdict:
    """how: what would measure it, or why nothing can."""
    return Verdict(claim.number, claim.text, claim.kind, NOT_MEASURED, how)
