"""Lengths read off a curve: how far context helps, and where perplexity breaks.

RECL is the relative effective context length of Dai et al. 2019 (arXiv 1901.02860, appendix C),
over the lengths that were scored instead of equal steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from posbench.evaluation.statistics import Bootstrap
from posbench.report.comparing.comparison import Bin, Cell, Reach
from posbench.report.comparing.scores import Entry, by_document, difference, pooled

GAIN = 0.01  # the smallest relative gain in perplexity that counts, as in the paper
BROKEN = 1.05  # times the perplexity at the training length
WHOLE_CONTEXT = ("fixed_targets", "sliding", "stream")  # each token has about the whole length
ONE_CONTEXT = ("fixed_targets",)  # as much for every token: no loss by context to show


def helps(entry: Entry, bootstrap: Bootstrap) -> Reach:
    """The longest length with a loss lower, beyond the interval, than at the length before."""
    lengths = sorted(entry.scores)
    if len(lengths) < 2:
        return Reach(reason="scored at one length" if lengths else "not scored")
    reached = lengths[0]
    for shorter, longer in itertools.pairwise(lengths):
        paired = difference(entry.scores[longer], entry.scores[shorter])
        if paired is None:
            return Reach(reason=f"{shorter:,} and {longer:,} share no seed")
        if (high := bootstrap.interval(paired).high) is None:
            return Reach(reason="no losses by document, so no interval")
        if high < 0:
            reached = longer
    return Reach(reached, beyond=reached == lengths[-1])


def breaks(cells: dict[int, Cell], train_length: int) -> Reach:
    """Where the ratio to the training length passes 1.05, interpolated linear in log length."""
    ratios = {
        length: cell.ratio.value if cell.ratio else 1.0
        for length, cell in sorted(cells.items())
        if length >= train_length and cell.perplexity and (cell.ratio or length == train_length)
    }
    if train_length not in ratios:
        return Reach(reason="not scored at the training length")
    if ratios[train_length] > BROKEN:  # an extension that spoils what was learned
        return Reach(train_length)
    if len(ratios) < 2:
        return Reach(reason="scored at the training length alone")
    for shorter, longer in itertools.pairwise(ratios):
        if ratios[longer] > BROKEN:
            share = (BROKEN - ratios[shorter]) / (ratios[longer] - ratios[shorter])
            return Reach(math.exp(np.interp(share, [0, 1], np.log([shorter, longer]))))
    return Reach(max(ratios), beyond=True)


def recl(entries: Sequence[Entry], lengths: Sequence[int], share: float) -> list[Reach]:
    """RECL of each entry, measured on the tokens hardest for the best entry at each context.

    b_c(t) is the lowest loss any entry has with context c, T the `share` of tokens where that is
    highest. f(c, c') is the mean over T of min(b_c, the entry's loss with c'), its relative gain
    1 - exp(f(c, c') - f(c, c)). RECL is the first c whose gain by the next c' is below 0.01.
    """
    kept = {n: [_by_seed(entry, n) for entry in entries] for n in sorted(lengths)}
    reached: list[Reach | None] = [None] * len(entries)
    for shorter, longer in itertools.pairwise(kept):
        gains = _gains(kept[shorter], kept[longer], share)
        for number, gain in enumerate(gains):
            if gain is None or not kept[shorter][number] or reached[number] is not None:
                continue
            if gain < GAIN:
                reached[number] = Reach(shorter)
    return [
        found or _unfinished([n for n in kept if kept[n][number]])
        for number, found in enumerate(reached)
    ]


def recl_unless_broken(recl: Reach, breaks: Reach) -> Reach:
    """RECL, or a reason where perplexity breaks first.

    RECL counts improvements alone: past that length, those of noise.
    """
    if recl.length is None or breaks.length is None or breaks.beyond:
        return recl
    if recl.length < breaks.length and not recl.beyond:
        return recl
    return Reach(reason=f"perplexity breaks first, at {breaks.length:,.0f}")


def _unfinished(lengths: list[int]) -> Reach:
    if len(lengths) < 2:
        return Reach(reason="scored at one length" if lengths else "not scored")
    return Reach(lengths[-1], beyond=True)


def _by_seed(entry: Entry, length: int) -> dict[int, np.ndarray]:
    return {seed: kept.losses for seed, kept in entry.tokens(length).items()}


def _gains(
    short: list[dict[int, np.ndarray]], long: list[dict[int, np.ndarray]], share: float
) -> list[float | None]:
    """Each entry's relative gain by the longer context; None where it was not scored there."""
    base: dict[int, float] = {}  # seed -> f(c, c)
    best: dict[int, np.ndarray] = {}
    hard: dict[int, np.ndarray] = {}
    for seed in {seed for entry in short for seed in entry}:
        best[seed] = np.min([entry[seed] for entry in short if seed in entry], axis=0)
        count = max(1, round(share * len(best[seed])))
        hard[seed] = np.argsort(-best[seed], kind="stable")[:count]
        base[seed] = float(best[seed][hard[seed]].mean())
    gains: list[float | None] = []
    for entry in long:
        seeds = [seed for seed in entry if seed in best]
        if not seeds:
            gains.append(None)
            continue
        lowered = np.mean([np.minimum(best[s], entry[s])[hard[s]].mean() for s in seeds])
        gains.append(1 - math.exp(float(lowered - np.mean([base[s] for s in seeds]))))
    return gains


def by_context(entry: Entry, length: int, bootstrap: Bootstrap) -> tuple[Bin, ...]:
    """Mean loss by tokens of context, in half octaves; empty where no token losses were kept."""
    kept = entry.tokens(length)
    if not kept:
        return ()
    contexts = next(iter(kept.values())).contexts
    halves = np.arange(0, max(math.log2(length), 0.5), 0.5)
    edges = np.unique(np.round(2**halves).astype(int))
    bins = []
    for first, after in zip(edges, [*edges[1:], length + 1], strict=True):
        inside = (contexts >= first) & (contexts < after)
        if not inside.any():
            continue
        scores = {s: by_document(t.documents[inside], t.losses[inside]) for s, t in kept.items()}
        loss = bootstrap.interval(pooled(scores))
        bins.append(Bin(int(first), int(after) - 1, loss, int(inside.sum())))
    return tuple(bins)
