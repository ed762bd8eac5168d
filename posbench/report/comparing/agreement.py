"""Whether runs order encodings as a paper does: rank correlation of the extrapolation ratios.

A ratio is perplexity(m L) / perplexity(L) with L the training length of the runs or the paper, m a
multiple. A published ratio at a length that the paper skipped is interpolated, log ratio linear in
log length (Curve.ratio_at); nothing is extrapolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posbench import published
from posbench.errors import UserError
from posbench.published import NONOVERLAPPING, Curve, Publication
from posbench.report.comparing.comparison import Comparison

MULTIPLES = (2, 4, 8, 16)  # of the training length; at 1 every ratio is 1
FEWEST = 3  # encodings: two have only the orders 1 and -1
HEADERS = ("paper", "corpus", "trained at", "at", "Spearman ρ", "Kendall τ", "n", "rests on")


@dataclass(frozen=True)
class Agreement:
    """Agreement with one table of a paper at one multiple; reason: why there is no correlation."""

    publication: str
    table: str  # in the paper
    corpus: str
    train_length: int  # the paper's
    multiple: int
    encodings: tuple[str, ...]  # in common, in the paper's order: lowest ratio first
    ours: dict[str, float]  # ratios of these
    theirs: dict[str, float]
    spearman: float | None = None
    kendall: float | None = None  # tau-b
    reason: str | None = None


def agreement(comparison: Comparison, name: str) -> list[Agreement]:
    """Agreement for each nonoverlapping table of a publication and each multiple, in order.

    A table with only one encoding beyond its training length orders nothing and is left out. Rows
    of the comparison with an extension, or with one of several settings, do not count. Raises
    UserError for an unknown publication, and for one whose perplexities have one length or none.
    """
    publication = published.load(name)
    _require_curves(publication)
    tables: dict[tuple[str, str, int, int], list[Curve]] = defaultdict(list)
    for curve in publication.curves:
        if curve.protocol == NONOVERLAPPING and len(curve.perplexities) > 1:
            key = (curve.source, curve.corpus, curve.train_length, curve.parameters)
            tables[key].append(curve)
    return [
        _agreement(comparison, name, curves, multiple)
        for curves in tables.values()
        if len(curves) > 1
        for multiple in MULTIPLES
    ]


def described(agreements: Sequence[Agreement]) -> list[list[str]]:
    """A table row for each agreement; the columns are HEADERS."""
    return [
        [
            f"{found.publication}, {found.table}".strip(", "),
            found.corpus,
            f"{found.train_length:,}",
            f"{found.multiple}×",
            "n/a" if found.spearman is None else f"{found.spearman:.2f}",
            "n/a" if found.kendall is None else f"{found.kendall:.2f}",
            str(len(found.encodings)),
            found.reason or ", ".join(found.encodings),
        ]
        for found in agreements
    ]


def caption(comparison: Comparison) -> str:
    """The caption of the table of agreements."""
    return (
        "Rank correlation, over n encodings, of perplexity at a multiple of the training length "
        "divided by perplexity at the training length: ours (trained at "
        f"{comparison.train_length:,}, {comparison.protocol}) against the paper's "
        "(nonoverlapping). Where the paper skipped a length, its log ratio is interpolated "
        "linearly in log length; nothing is extrapolated. Encodings are in the paper's order, "
        "lowest ratio first."
    )


def _require_curves(publication: Publication) -> None:
    if publication.extrapolates:
        return
    name = publication.name
    alone = "perplexities at training lengths alone"
    why = alone if publication.curves else "no perplexities by evaluation length"
    others = [other for other in published.names() if published.load(other).extrapolates]
    raise UserError(
        f"{name} has {why}, so no ratios to agree with; there are some in {', '.join(others)}"
    )


def _agreement(
    comparison: Comparison, name: str, curves: Sequence[Curve], multiple: int
) -> Agreement:
    first = curves[0]
    ours = _ours(comparison, multiple * comparison.train_length)
    theirs = {
        curve.encoding: ratio
        for curve in curves
        if (ratio := curve.ratio_at(multiple * curve.train_length)) is not None
    }
    common = tuple(sorted(ours.keys() & theirs.keys(), key=lambda one: (theirs[one], one)))
    x, y = [ours[one] for one in common], [theirs[one] for one in common]
    reason = None
    if not ours:
        reason = f"no ratio here at {multiple * comparison.train_length:,} tokens"
    elif not theirs:
        longest = max(length for curve in curves for length in curve.perplexities)
        reason = f"published up to {longest:,} tokens, not {multiple * first.train_length:,}"
    elif len(common) < FEWEST:
        reason = f"in common: {', '.join(common) or 'none'}; {FEWEST} are needed"
    elif len(set(x)) == 1 or len(set(y)) == 1:
        reason = f"one ratio for all of {', '.join(common)}: no order"
    return Agreement(
        publication=name,
        table=first.table,
        corpus=first.corpus,
        train_length=first.train_length,
        multiple=multiple,
        encodings=common,
        ours=dict(zip(common, x, strict=True)),
        theirs=dict(zip(common, y, strict=True)),
        **({} if reason else _correlations(x, y)),
        reason=reason,
    )


def _correlations(x: list[float], y: list[float]) -> dict[str, float]:
    from scipy import stats  # a second to import

    return {
        "spearman": float(stats.spearmanr(x, y).statistic),
        "kendall": float(stats.kendalltau(x, y).statistic),
    }


def _ours(comparison: Comparison, length: int) -> dict[str, float]:
    """Ratios at a length, of the encodings as they were trained."""
    cells = {
        row.encoding: row.cells.get(length)
        for row in comparison.rows
        if row.label == row.encoding and row.extension is None
    }
    return {name: cell.ratio.value for name, cell in cells.items() if cell and cell.ratio}
