"""Losses by document and seed, read from the run folders: what a table's rows are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from posbench.errors import UserError
from posbench.evaluation.results import Result, TokenLosses, read_losses
from posbench.evaluation.statistics import Losses
from posbench.machine import paths
from posbench.report.reading.collect import Run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One run's losses at one length: sums in nats and counts of tokens, by document [D].

    Without a file of losses, all tokens together count as one document.
    """

    documents: NDArray[np.int64]
    sums: Array
    counts: Array

    @property
    def as_one_document(self) -> Score:
        """All documents merged into one."""
        one = np.array([self.sums.sum()]), np.array([self.counts.sum()])
        return Score(np.zeros(1, np.int64), *one)


@dataclass
class Entry:
    """A future row: the runs of one encoding, and their results at each length."""

    name: str
    runs: list[Run]
    extension: str | None
    results: dict[int, dict[int, Result]] = field(default_factory=dict)  # by length, then seed
    scores: dict[int, dict[int, Score]] = field(default_factory=dict)  # where there is a number

    @property
    def as_trained(self) -> bool:
        return self.extension is None

    def tokens(self, length: int) -> dict[int, TokenLosses]:
        """The loss of every token, by seed, for runs that kept them."""
        folders = {run.seed: run.folder for run in self.runs}
        found = {
            seed: _read(folders[seed], result)
            for seed, result in self.results.get(length, {}).items()
            if result.nll is not None
        }
        return {seed: losses for seed, losses in found.items() if losses is not None}


def entry(
    name: str, runs: list[Run], extension: str | None, protocol: str, targets: str | None
) -> Entry:
    """The Entry of a row's runs, with their losses. Raises UserError for a damaged file."""
    made = Entry(name, runs, extension)
    for run in runs:
        for result in run.results:
            if (result.protocol, result.targets, result.extension) != (
                protocol,
                targets,
                extension,
            ):
                continue
            made.results.setdefault(result.length, {})[run.seed] = result
            if result.nll is not None:
                made.scores.setdefault(result.length, {})[run.seed] = _score(run, result)
    for length, scores in made.scores.items():
        if len({score.documents.tobytes() for score in scores.values()}) > 1:
            made.scores[length] = {seed: each.as_one_document for seed, each in scores.items()}
    return made


def pooled(scores: Mapping[int, Score]) -> Losses:
    """The losses of all seeds, which scored the same tokens."""
    by_seed = [scores[seed] for seed in sorted(scores)]
    return Losses(np.stack([score.sums for score in by_seed]), by_seed[0].counts)


def difference(these: Mapping[int, Score], those: Mapping[int, Score]) -> Losses | None:
    """Paired differences by document and seed; None without common seeds or with other tokens."""
    common = these.keys() & those.keys()
    if not common:
        return None
    one, other = (pooled({seed: scores[seed] for seed in common}) for scores in (these, those))
    return one.minus(other) if np.array_equal(one.counts, other.counts) else None


def by_document(documents: NDArray[np.int64], losses: Array) -> Score:
    """The Score of tokens [N]: their losses summed by document."""
    names, places = np.unique(documents, return_inverse=True)
    sums = np.bincount(places, losses).astype(np.float64)
    return Score(names, sums, np.bincount(places).astype(np.float64))


def _score(run: Run, result: Result) -> Score:
    kept = _read(run.folder, result)
    if kept is None:
        assert result.nll is not None
        assert result.tokens
        whole = np.array([result.nll]), np.array([float(result.tokens)])
        return Score(np.zeros(1, np.int64), *whole)
    return by_document(kept.documents, kept.losses)


def _read(folder: Path, result: Result) -> TokenLosses | None:
    try:
        return read_losses(folder, result)
    except ValueError as error:
        again = f"score it again with posbench eval {paths.shell_word(folder)}"
        raise UserError(f"{error}; {again}") from error
