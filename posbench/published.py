"""Tables that papers published, as data: posbench/data/published, a file a paper.

A row of a file is one number and says where it was printed. Encodings have posbench's names.
Perplexities of two papers compare only as ratios, each to its own training length. What each file
is, and how it was read, is in README.md beside them.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise

from posbench.errors import UserError, nearest

NONOVERLAPPING = "nonoverlapping"
CURVE_COLUMNS = {"train_length", "eval_length", "perplexity", "protocol"}
PARTS = ("model", "bucket")  # columns that tell a paper's models and texts apart
FINE_TUNED = ", fine-tuned"


@dataclass(frozen=True)
class Curve:
    """Perplexity of one encoding by evaluation length in tokens; None: no number there.

    An encoding may be one with its context extended, "rope + pi x8", or a model trained further.
    """

    source: str  # the paper and its table
    corpus: str
    split: str
    protocol: str  # "nonoverlapping", "fixed_targets", or "sliding, stride 1"
    train_length: int
    parameters: int  # of the model
    encoding: str
    perplexities: dict[int, float | None]
    part: str = ""  # which of a paper's models or texts, where it has several
    printed: dict[int, str] = field(default_factory=dict)  # what stands there where not a number
    base: float | None = None  # perplexity at the training length, not extended if that is there

    @property
    def extended(self) -> bool:
        """Whether the context of a trained encoding is extended."""
        return " + " in self.encoding

    @property
    def fine_tuned(self) -> bool:
        """Whether it was trained further, which an extension here never is."""
        return FINE_TUNED in self.encoding

    @property
    def table(self) -> str:
        """Where in the paper: "Table 2", or nothing if the source does not say."""
        return _split(self.source)[1]

    @property
    def ratios(self) -> dict[int, float | None]:
        """By length, the ratio to `base`; None: no number there, or none to divide by."""
        return {
            n: None if ppl is None or self.base is None else ppl / self.base
            for n, ppl in self.perplexities.items()
        }

    def ratio_at(self, length: int) -> float | None:
        """The ratio at any length: log ratio is taken as linear in log length between neighbours.

        None outside the lengths that have a perplexity, for nothing is extrapolated, and between
        two of them that are more than a factor of 2 apart.
        """
        if (printed := self.ratios.get(length)) is not None:
            return printed
        points = sorted((n, ratio) for n, ratio in self.ratios.items() if ratio is not None)
        for (left, low), (right, high) in pairwise(points):
            if left < length < right <= 2 * left:
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
    def tables(self) -> list[list[Curve]]:
        """Curves that one order can be made of: one table, model and training length, encodings
        or extensions, each with more than one length.

        Of several protocols nonoverlapping counts; so do not tables of one curve, nor models that
        were trained further.
        """
        protocols = {curve.protocol for curve in self.curves}
        groups: dict[tuple[object, ...], list[Curve]] = defaultdict(list)
        for c in self.curves:
            wanted = NONOVERLAPPING not in protocols or c.protocol == NONOVERLAPPING
            if wanted and len(c.perplexities) > 1 and not c.fine_tuned:
                key = (c.source, c.corpus, c.protocol, c.train_length, c.parameters, c.part)
                groups[*key, c.extended].append(c)
        return [curves for curves in groups.values() if len(curves) > 1]

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
    """Rows that differ in nothing but length and number make a curve.

    Raises ValueError for a length given twice.
    """
    told = ("source", "corpus", "split", "protocol", "train_length", "model_parameters")
    found: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        part = ", ".join(row[column] for column in PARTS if row.get(column))
        found[*(row[column] for column in told), part, row["encoding"]].append(row)
    numbers = {key: _by_length(those) for key, those in found.items()}
    curves = []
    for (*place, part, encoding), those in found.items():
        source, corpus, split, protocol, trained, parameters = place
        plain = (*place, part, encoding.partition(FINE_TUNED)[0].partition(" + ")[0])
        own, at = numbers[*place, part, encoding], int(trained)
        base = numbers.get(plain, own).get(at) or own.get(at)
        printed = {int(row["eval_length"]): text for row in those if (text := row.get("printed"))}
        model = (at, int(parameters), encoding)
        curves.append(Curve(source, corpus, split, protocol, *model, own, part, printed, base))
    return tuple(curves)


def _by_length(rows: Iterable[dict[str, str]]) -> dict[int, float | None]:
    found: dict[int, float | None] = {}
    for row in rows:
        length, number = int(row["eval_length"]), row["perplexity"]
        if length in found:
            raise ValueError(f"{row['source']}: {row['encoding']} has length {length} twice")
        found[length] = float(number) if number else None
    return found
