"""Whether runs order encodings as a paper does: rank correlation of the extrapolation ratios.

A ratio is perplexity(m L) / perplexity(L) with L the training length of the runs or the paper, m a
multiple. A published ratio at a length that the paper skipped is interpolated, log ratio linear in
log length (Curve.ratio_at); nothing is extrapolated. Encodings go with encodings, extensions with
extensions, and nothing that was trained further with anything of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np

from posbench import published
from posbench.errors import UserError
from posbench.evaluation.statistics import Interval
from posbench.published import NONOVERLAPPING, Curve, Publication
from posbench.report.comparing.comparison import Cell, Comparison

MULTIPLES = (2, 4, 8, 16)  # of the training length; at 1 every ratio is 1
FEWEST, MOST = 3, 9  # encodings: two have only the orders 1 and -1, more than nine too many
ALL = "all"  # publications that have an order
BETWEEN = ("paper", "beside", *(f"{multiple}×" for multiple in MULTIPLES), "rests on")
HEADERS = ("paper", "corpus", "trained at", "at", "Spearman ρ", "Kendall τ", "n", "rests on")


@dataclass(frozen=True)
class Agreement:
    """Agreement with one table of a paper at one multiple; reason: why there is no correlation."""

    publication: str
    table: str  # in the paper
    corpus: str  # and the protocol, unless nonoverlapping
    train_length: int  # the paper's
    multiple: int
    encodings: tuple[str, ...]  # in common, in the paper's order: lowest ratio first
    ours: dict[str, float]  # ratios of these
    theirs: dict[str, float]
    spearman: float | None = None
    interval: Interval | None = None  # of spearman, over our seeds and documents
    kendall: float | None = None  # tau-b
    reason: str | None = None


def agreement(comparison: Comparison, name: str) -> list[Agreement]:
    """Agreement for each of a publication's tables and each multiple, in order.

    Rows of the comparison with one of several settings do not count. Raises UserError for an
    unknown publication, and for one that orders nothing.
    """
    publication = published.load(name)
    _require_order(publication)
    return [
        _agreement(comparison, name, curves, multiple)
        for curves in publication.tables
        for multiple in MULTIPLES
    ]


def chosen(asked: Any) -> list[str]:
    """The publications of `report.against`: a name, a list of names, "all", or null for none.

    Raises UserError for anything else, and for what `agreement` refuses.
    """
    if asked == ALL:
        return _ordering()
    found = [asked] if isinstance(asked, str) else asked or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UserError(f"report.against={asked} must be a publication, a list of them, or {ALL}")
    for name in found:
        _require_order(published.load(name))
        if found.count(name) > 1:
            raise UserError(f"report.against: {name} is there twice")
    return found


def described(agreements: Sequence[Agreement]) -> list[list[str]]:
    """A table row for each agreement; the columns are HEADERS."""
    return [
        [
            f"{found.publication}, {found.table}".strip(", "),
            found.corpus,
            f"{found.train_length:,}",
            f"{found.multiple}×",
            "n/a" if found.spearman is None else _told(found.spearman, found.interval),
            "n/a" if found.kendall is None else f"{found.kendall:.2f}",
            str(len(found.encodings)),
            found.reason or ", ".join(found.encodings),
        ]
        for found in agreements
    ]


def caption(comparison: Comparison, agreements: Sequence[Agreement] = ()) -> str:
    """The caption of the table of agreements."""
    told = (
        "Rank correlation, over n encodings, of perplexity at a multiple of the training length "
        "divided by perplexity at the training length: ours (trained at "
        f"{comparison.train_length:,}, {comparison.protocol}) against the paper's "
        "(nonoverlapping). Where the paper skipped a length, its log ratio is interpolated "
        "linearly in log length; nothing is extrapolated. Encodings are in the paper's order, "
        "lowest ratio first."
    )
    if any(", " in found.corpus for found in agreements):
        told = told.replace("(nonoverlapping)", "(nonoverlapping, unless the corpus column says)")
    if any(found.interval for found in agreements):
        told += (
            f" In parentheses: its {comparison.level:.0%} interval, over the orders left open by "
            "the seeds and documents of our runs; the paper's numbers are taken as they stand."
        )
    return told


def between(names: Sequence[str]) -> list[list[str]]:
    """A row for each two tables of two publications that order three encodings in common, or one
    for the two publications that says why there is none; the columns are BETWEEN."""
    rows = []
    for one, other in combinations(map(published.load, names), 2):
        found = [
            row
            for these in one.tables
            for those in other.tables
            if (row := _two(one, these, other, those))
        ]
        none = ["n/a"] * len(MULTIPLES)
        why = f"no order of {FEWEST} encodings in common"
        rows += found or [[one.name, other.name, *none, why]]
    return rows


BETWEEN_CAPTION = (
    "Rank correlation of the same ratios, one paper's against another's, each at multiples of its "
    "own training length: how far papers agree among themselves is what can be asked of runs. "
    "There is no interval: where a paper gives a spread, it is not that of the ratios."
)


def _two(
    one: Publication, these: Sequence[Curve], other: Publication, those: Sequence[Curve]
) -> list[str] | None:
    """A row of BETWEEN; None where there is no correlation at any multiple."""
    cells, encodings = list[str](), dict[str, None]()
    for multiple in MULTIPLES:
        common, x, y = _common(_theirs(these, multiple), _theirs(those, multiple))
        if _no_order(common, x, y):
            cells.append("n/a")
            continue
        cells.append(f"{_correlations(x, y)['spearman']:.2f}, n {len(common)}")
        encodings |= dict.fromkeys(common)
    names = [
        f"{f'{found.name}, {first.table}'.strip(', ')}, {_corpus(first)}, {first.train_length:,}"
        for found, first in ((one, these[0]), (other, those[0]))
    ]
    return [*names, *cells, ", ".join(encodings)] if encodings else None


def _told(value: float, interval: Interval | None) -> str:
    """ "0.80", or "0.80 (0.40 – 1.00)"."""
    if interval is None:
        return f"{value:.2f}"
    return f"{value:.2f} ({interval.low:.2f} – {interval.high:.2f})"


def _ordering() -> list[str]:
    return [name for name in published.names() if published.load(name).tables]


def _require_order(publication: Publication) -> None:
    if publication.tables:
        return
    why = "no two encodings in one table, nor extensions without fine-tuning, so no order"
    if not publication.curves:
        why = "no perplexities by evaluation length, so no ratios"
    elif all(len(curve.perplexities) == 1 for curve in publication.curves):
        why = "perplexities at training lengths alone, so no ratios"
    raise UserError(
        f"{publication.name} has {why} to agree with; there are some in {', '.join(_ordering())}"
    )


def _agreement(
    comparison: Comparison, name: str, curves: Sequence[Curve], multiple: int
) -> Agreement:
    first, at = curves[0], multiple * comparison.train_length
    cells = _ours(comparison, at, first.extended)
    ours = {name: cell.ratio.value for name, cell in cells.items() if cell.ratio}
    theirs = _theirs(curves, multiple)
    common, x, y = _common(ours, theirs)
    reason = _no_order(common, x, y)
    longest = max(length for curve in curves for length in curve.perplexities)
    if not ours:
        reason = f"no ratio {'of an extension ' if first.extended else ''}here at {at:,} tokens"
    elif not theirs and longest < (wanted := multiple * first.train_length):
        reason = f"published up to {longest:,} tokens, not {wanted:,}"
    elif not theirs:
        reason = f"published neither at nor near {multiple * first.train_length:,} tokens"
    found = {} if reason else _correlations(x, y)
    return Agreement(
        publication=name,
        table=first.table,
        corpus=_corpus(first),
        train_length=first.train_length,
        multiple=multiple,
        encodings=common,
        ours=dict(zip(common, x, strict=True)),
        theirs=dict(zip(common, y, strict=True)),
        **found,
        interval=_interval(found, [cells[one] for one in common], y, comparison.level),
        reason=reason,
    )


def _corpus(curve: Curve) -> str:
    return ", ".join([curve.corpus, *({curve.protocol} - {NONOVERLAPPING})])


def _common(
    ours: Mapping[str, float], theirs: Mapping[str, float]
) -> tuple[tuple[str, ...], list[float], list[float]]:
    """The encodings in both, in the order of theirs, and both ratios of each."""
    common = tuple(sorted(ours.keys() & theirs.keys(), key=lambda one: (theirs[one], one)))
    return common, [ours[one] for one in common], [theirs[one] for one in common]


def _no_order(common: Sequence[str], x: Sequence[float], y: Sequence[float]) -> str | None:
    """Why nothing can be correlated."""
    if len(common) < FEWEST:
        return f"in common: {', '.join(common) or 'none'}; {FEWEST} are needed"
    if len(set(x)) == 1 or len(set(y)) == 1:
        return f"one ratio for all of {', '.join(common)}: no order"
    return None


def _correlations(x: list[float], y: list[float]) -> dict[str, float]:
    from scipy import stats  # a second to import

    return {
        "spearman": float(stats.spearmanr(x, y).statistic),
        "kendall": float(stats.kendalltau(x, y).statistic),
    }


def _interval(
    found: Mapping[str, float], cells: Sequence[Cell], theirs: list[float], level: float
) -> Interval | None:
    """Of spearman: over all orders of our ratios that their draws leave open.

    Two ratios have one order where their difference lies further from 0 than draws of any pair
    do, all pairs at once. Draws ranked and correlated one by one would not do: noise takes an
    order apart and never mends it, so where ratios are near each other such an interval misses
    the truth more often than not. None without draws (one document) or past MOST encodings.
    """
    from scipy import stats  # a second to import

    drawn = [cell.draws for cell in cells if cell.draws is not None]
    if not found or len(drawn) < len(cells) or len(cells) > MOST:
        return None
    apart = np.stack(drawn)[:, None] - np.stack(drawn)
    middle = np.median(apart, axis=-1)
    off = np.abs(apart - middle[..., None])
    reach = np.maximum(np.quantile(off, level, axis=-1), np.finfo(float).tiny)
    reach *= np.quantile((off / reach[..., None]).max((0, 1)), level)
    orders = np.array(list(permutations(range(len(cells)))), dtype=np.float64)
    for one, other in np.argwhere(middle > reach):
        orders = orders[orders[:, one] > orders[:, other]]
    ranks = stats.rankdata(theirs)
    ranks, orders = ranks - ranks.mean(), orders - (len(cells) - 1) / 2
    open_ = orders @ ranks / np.sqrt((orders[0] ** 2).sum() * (ranks**2).sum())
    value = found["spearman"]
    return Interval(value, min(float(open_.min()), value), max(float(open_.max()), value))


def _theirs(curves: Sequence[Curve], multiple: int) -> dict[str, float]:
    found = {curve.encoding: curve.ratio_at(multiple * curve.train_length) for curve in curves}
    return {encoding: ratio for encoding, ratio in found.items() if ratio is not None}


def _ours(comparison: Comparison, length: int, extended: bool) -> dict[str, Cell]:
    """Cells with a ratio at a length: of encodings as they were trained, or of extensions.

    An extension whose factor is this multiple has its name without the factor too: papers that
    let the factor follow the length give none.
    """
    factor, found = f" x{length // comparison.train_length}", dict[str, Cell]()
    for row in comparison.rows:
        cell = row.cells.get(length)
        if row.label != row.encoding or (row.extension is not None) != extended or not cell:
            continue
        name = row.encoding if row.extension is None else f"{row.encoding} + {row.extension}"
        if cell.ratio:
            found |= {name: cell, name.removesuffix(factor): cell}
    return found
