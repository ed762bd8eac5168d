"""The cells of one column: perplexities, paired ratios, ranks, and ties with the best."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from posbench.evaluation.results import Result, exponential
from posbench.evaluation.statistics import Bootstrap, Interval
from posbench.report.comparing.comparison import Cell
from posbench.report.comparing.scores import Array, Entry, difference, pooled


def column(
    entries: list[Entry], length: int, first: int, baseline: Entry | None, bootstrap: Bootstrap
) -> list[Cell]:
    """The cell of every entry at a length, with rank and ties. first: the training length."""
    trained = {e.name: e for e in entries if e.as_trained}
    cells = []
    for each in entries:
        at_first = trained.get(each.name)
        own = length == first and each.as_trained
        other = None if each is baseline else baseline
        cell = _cell(each, length, bootstrap)
        ratio = None if own else paired_ratio(each, at_first, length, first, bootstrap)
        cells.append(
            dataclasses.replace(
                cell,
                ratio=ratio,
                bend=_bend(cell.perplexity, Interval(1.0, 1.0, 1.0) if own else ratio),
                against=paired_ratio(each, other, length, length, bootstrap),
                draws=None if ratio is None else _draws(each, at_first, length, first, bootstrap),
            )
        )
    return _ranked(entries, cells, length, bootstrap)


def _ranked(
    entries: list[Entry], cells: list[Cell], length: int, bootstrap: Bootstrap
) -> list[Cell]:
    """cells with rank, best and tied, over the seeds that most entries share.

    Entries without all of these seeds get no rank.
    """
    seeds = _shared_seeds(entries, length)
    scores = {
        number: {seed: each.scores[length][seed] for seed in seeds}
        for number, each in enumerate(entries)
        if seeds and seeds <= each.scores.get(length, {}).keys()
    }
    order = sorted(scores, key=lambda number: pooled(scores[number]).mean)
    ranked = list(cells)
    for place, number in enumerate(order):
        paired = difference(scores[number], scores[order[0]])
        interval = None if paired is None else bootstrap.interval(paired)
        best = number == order[0] or (interval is not None and interval.value == 0)
        apart = interval is not None and interval.low is not None and interval.low > 0
        ranked[number] = dataclasses.replace(
            cells[number],
            rank=place + 1,
            best=best and len(entries) > 1,
            tied=not best and not apart,
        )
    return ranked


def _shared_seeds(entries: list[Entry], length: int) -> frozenset[int]:
    """The set of seeds that most entries have; of several such sets the largest."""
    found = [frozenset(each.scores.get(length, {})) for each in entries]
    return max(
        filter(None, found),
        key=lambda seeds: (sum(seeds <= other for other in found), len(seeds)),
        default=frozenset(),
    )


def _cell(each: Entry, length: int, bootstrap: Bootstrap) -> Cell:
    results = each.results.get(length, {})
    scores = each.scores.get(length)
    reasons = {seed: result.reason for seed, result in results.items() if result.reason}
    if not scores:
        return Cell(reason=next(iter(reasons.values()), None))
    found = [result for result in results.values() if result.nll is not None]
    return Cell(
        perplexity=bootstrap.interval(pooled(scores)).map(exponential),
        bits_per_byte=_mean(found, lambda result: result.bits_per_byte),
        word_perplexity=_geometric(found),
        seeds=len(found),
        documents=found[0].documents or 0,
        without=tuple(f"seed {seed}: {reason}" for seed, reason in sorted(reasons.items())),
    )


def paired_ratio(
    each: Entry, other: Entry | None, length: int, at: int, bootstrap: Bootstrap
) -> Interval | None:
    """Perplexity of `each` at `length` over that of `other` at `at`, paired by document, seed."""
    if other is None or not each.scores.get(length) or not other.scores.get(at):
        return None
    paired = difference(each.scores[length], other.scores[at])
    return None if paired is None else bootstrap.interval(paired).map(exponential)


def _draws(
    each: Entry, other: Entry | None, length: int, at: int, bootstrap: Bootstrap
) -> Array | None:
    """Draws of the logarithm of `paired_ratio`, where that is."""
    assert other is not None
    these, those = each.scores[length], other.scores[at]
    paired = difference(these, those)
    assert paired is not None
    return bootstrap.joint(paired, sorted(these.keys() & those.keys()))


def _bend(perplexity: Interval | None, ratio: Interval | None) -> Interval | None:
    """The perplexity, with the ratio's interval scaled to it (Cell.bend)."""
    if perplexity is None or ratio is None:
        return None
    return ratio.map(lambda value: perplexity.value * (value / ratio.value))


def _mean(found: list[Result], value: Callable[[Result], float | None]) -> float | None:
    values = [v for result in found if (v := value(result)) is not None]
    return statistics.mean(values) if values else None


def _geometric(found: list[Result]) -> float | None:
    """Word perplexity over seeds: exp of the mean of nll / words."""
    rate = _mean(found, lambda r: r.nll / r.words if r.nll is not None and r.words else None)
    return None if rate is None else exponential(rate)
