"""Tables that papers published, as data: posbench/data/published, a file a paper.

A row of a file is one number and says where it was printed. Encodings have posbench's names.
Perplexities of two papers compare only as ratios, each to its own training length.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise

from posbench.errors import UserError, nearest

NONOVERLAPPING = "nonoverlapping"
CURVE_COLUMNS = {"train_length", "eval_length", "perplexity", "protocol"}


@dataclass(frozen=True)
class Curve:
    """Perplexity of one encoding by evaluation length in tokens; None: out of memory there."""

    source: str  # the paper and its table
    corpus: str
    split: str
    protocol: str  # "nonoverlapping", or "sliding, stride 1"
    train_length: int
    parameters: int  # of the model
    encoding: str
    perplexities: dict[int, float | None]

    @property
    def table(self) -> str:
        """Where in the paper: "Table 2", or nothing if the source does not say."""
        return _split(self.source)[1]

    @property
    def ratios(self) -> dict[int, float | None]:
        """By length, the ratio to the perplexity at the training length; None: out of RAM.

        Raises ValueError if there is none at the training length.
        """
        base = self.perplexities.get(self.train_length)
        if base is None:
            raise ValueError(f"{self.source}: {self.encoding} lacks its training length")
        return {n: None if ppl is None else ppl / base for n, ppl in self.perplexities.items()}

    def ratio_at(self, length: int) -> float | None:
        """The ratio at any length: log ratio is taken as linear in log length between neighbours.

        None outside the lengths that have a perplexity: nothing is extrapolated.
        """
        if (printed := self.ratios.get(length)) is not None:
            return printed
        points = sorted((n, ratio) for n, ratio in self.ratios.items() if ratio is not None)
        for (left, low), (right, high) in pairwise(points):
            if left < length < right:
                share = math.log(length / left) / math.log(right / left)
                return low ** (1 - share) * high**share
        return None


@dataclass(frozen=True)
class Publication:
    """One file: its rows as they stand there, and the curves they make.

    curves is empty where the columns are not perplexities by length.
    """

    name: str
    source: str  # the paper
    rows: tuple[dict[str, str], ...]
    curves: tuple[Curve, ...]

    @property
    def extrapolates(self) -> bool:
        """Whether a nonoverlapping curve leaves its training length."""
        return any(c.protocol == NONOVERLAPPING and len(c.perplexities) > 1 for c in self.curves)

    def values(self, column: str) -> list[str]:
        """A column's distinct values, in order; empty if there is no such column."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))

    def lengths(self) -> list[int]:
        """Evaluation lengths in tokens."""
        return sorted({length for curve in self.curves for length in curve.perplexities})


def names() -> list[str]:
    """The names of all publications, in alphabetical order."""
    files = (file.name for file in _folder().iterdir())
    return sorted(name.removesuffix(".csv") for name in files if name.endswith(".csv"))


def load(name: str) -> Publication:
    """A publication by its name. Raises UserError for one that is not there."""
    if name not in names():
        hint = nearest(name, names())
        raise UserError(f"{name}: there is no such publication{hint} ({', '.join(names())})")
    text = (_folder() / f"{name}.csv").read_text(encoding="utf-8")
    rows = tuple(csv.DictReader(text.splitlines()))
    curves = _curves(rows) if rows[0].keys() >= CURVE_COLUMNS else ()
    return Publication(name, _split(rows[0]["source"])[0], rows, curves)


def _folder() -> Traversable:
    return resources.files("posbench") / "data" / "published"


def _split(source: str) -> tuple[str, str]:
    """The paper, which ends with its (arXiv number), and the place in it."""
    paper, _, place = source.partition(")")
    return f"{paper})", place.strip(" ,")


def _curves(rows: Iterable[dict[str, str]]) -> tuple[Curve, ...]:
    """Rows that differ in nothing but length and perplexity make a curve.

    Raises ValueError for a length given twice.
    """
    told = ("source", "corpus", "split", "protocol", "train_length", "model_parameters")
    curves: dict[tuple[str, ...], dict[int, float | None]] = defaultdict(dict)
    for row in rows:
        perplexities = curves[tuple(row[column] for column in (*told, "encoding"))]
        length, number = int(row["eval_length"]), row["perplexity"]
        if length in perplexities:
            raise ValueError(f"{row['source']}: {row['encoding']} has length {length} twice")
        perplexities[length] = float(number) if number else None
    return tuple(
        Curve(source, corpus, split, protocol, int(trained), int(parameters), encoding, found)
        for (source, corpus, split, protocol, trained, parameters, encoding), found in (
            curves.items()
        )
    )
