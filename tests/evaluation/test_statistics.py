"""Intervals: calibrated on losses of known truth, paired, and the same each time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from posbench.evaluation.results import exponential
from posbench.evaluation.statistics import Bootstrap, Interval, Losses

TRUTH = 3.4  # nats
TRIALS = 2000


def simulated(
    generator: np.random.Generator,
    seeds: int,
    documents: int,
    spreads: tuple[float, float, float],
) -> Losses:
    """Uneven documents; spreads of documents, seeds, and of what each does to the other."""
    by_document, by_seed, both = spreads
    counts = generator.integers(2, 5, documents) * 64.0
    rates = (
        TRUTH
        + generator.normal(0, by_document, documents)
        + generator.normal(0, by_seed, (seeds, 1))
        + generator.normal(0, both, (seeds, documents))
    )
    return Losses(np.array(rates * counts, dtype=np.float64), counts.astype(np.float64))


@pytest.mark.parametrize(
    ("seeds", "documents", "spreads"),
    [
        (1, 24, (0.2, 0.0, 0.05)),  # a perplexity, of one seed
        (1, 24, (0.0, 0.0, 0.05)),  # a paired difference: documents cancel
        (1, 100, (0.2, 0.0, 0.05)),
        (3, 24, (0.2, 0.01, 0.05)),
        (3, 24, (0.01, 0.02, 0.05)),  # a paired difference that seeds move
        (3, 24, (0.0, 0.0, 0.05)),
        (5, 24, (0.02, 0.02, 0.02)),
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_say(
    seeds: int, documents: int, spreads: tuple[float, float, float]
) -> None:
    generator, bootstrap = np.random.default_rng(0), Bootstrap(draws=1000)
    covered = sum(
        bootstrap.interval(simulated(generator, seeds, documents, spreads)).holds(TRUTH)
        for _ in range(TRIALS)
    )
    assert 0.93 <= covered / TRIALS <= 0.97


def test_other_levels_too() -> None:
    generator, bootstrap = np.random.default_rng(1), Bootstrap(level=0.8, draws=1000)
    spreads = (0.2, 0.0, 0.05)
    covered = sum(
        bootstrap.interval(simulated(generator, 1, 24, spreads)).holds(TRUTH)
        for _ in range(TRIALS)
    )
    assert covered / TRIALS == pytest.approx(0.8, abs=0.02)


def test_what_a_naive_bootstrap_of_seeds_would_cover() -> None:
    """Why seeds are not resampled: three of them, and a nominal 95% covers less than 85%."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(TRIALS):
        seeds = generator.normal(TRUTH, 0.02, 3)
        drawn = generator.choice(seeds, (1000, 3)).mean(1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        covered += bool(low <= TRUTH <= high)
    assert covered / TRIALS < 0.85


def test_many_documents_are_what_scipy_finds() -> None:
    """The stretch for few documents vanishes, and the plain percentile bootstrap remains."""
    losses = simulated(np.random.default_rng(2), 1, 2000, (0.2, 0.0, 0.05))
    found = Bootstrap(draws=4000).interval(losses)
    theirs = stats.bootstrap(
        (losses.sums[0], losses.counts),
        lambda sums, counts, axis: sums.sum(axis) / counts.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert found.low == pytest.approx(theirs.low, abs=8e-4)
    assert found.high == pytest.approx(theirs.high, abs=8e-4)


def test_few_documents_are_students_interval() -> None:
    """Even documents: the mean of D numbers, whose exact interval is Student's."""
    generator = np.random.default_rng(4)
    rates = generator.normal(TRUTH, 0.1, (1, 8))
    found = Bootstrap(draws=20_000).interval(Losses(rates * 64, np.full(8, 64.0)))
    half = stats.t.ppf(0.975, 7) * rates.std(ddof=1) / math.sqrt(8)
    assert found.low == pytest.approx(TRUTH - half + (rates.mean() - TRUTH), abs=0.15 * half)
    assert found.high == pytest.approx(rates.mean() + half, abs=0.15 * half)


def test_pairing_takes_out_what_both_share() -> None:
    generator, bootstrap = np.random.default_rng(5), Bootstrap()
    one = simulated(generator, 1, 24, (0.3, 0.0, 0.0))
    other = Losses(one.sums + 0.01 * one.counts, one.counts)
    paired = bootstrap.interval(other.minus(one))
    assert paired.value == pytest.approx(0.01)
    assert paired.low == pytest.approx(0.01)
    assert paired.high == pytest.approx(0.01)
    alone = bootstrap.interval(one)
    assert alone.high is not None
    assert alone.low is not None
    assert alone.high - alone.low > 0.1


def test_draws_that_belong_together_have_the_intervals_of_each_and_of_the_difference() -> None:
    generator, bootstrap = np.random.default_rng(7), Bootstrap(draws=20_000)
    counts = np.full(24, 64.0)
    for seeds in (1, 3):
        shared = generator.normal(0, 0.02, (seeds, 1))  # what a seed does to both
        one, other = (
            Losses((TRUTH + shared + generator.normal(0, 0.05, (seeds, 24))) * counts, counts)
            for _ in range(2)
        )
        drawn, beside = (bootstrap.joint(losses, range(seeds)) for losses in (one, other))
        assert drawn is not None
        assert beside is not None
        for draws, losses in ((drawn, one), (drawn - beside, one.minus(other))):
            found = bootstrap.interval(losses)
            assert found.low is not None
            assert found.high is not None
            ends, width = np.quantile(draws, [0.025, 0.975]), found.high - found.low
            assert ends == pytest.approx([found.low, found.high], abs=0.15 * width)


def test_only_the_same_tokens_make_pairs() -> None:
    one = Losses(np.ones((1, 3)), np.array([1.0, 2.0, 3.0]))
    for other in (
        Losses(np.ones((1, 3)), np.array([1.0, 2.0, 4.0])),
        Losses(np.ones((2, 3)), one.counts),
        Losses(np.ones((1, 2)), np.array([1.0, 2.0])),
    ):
        with pytest.raises(ValueError, match="same tokens"):
            one.minus(other)


def test_it_is_the_same_each_time_and_another_with_another_seed() -> None:
    losses = simulated(np.random.default_rng(6), 3, 24, (0.1, 0.1, 0.1))
    assert Bootstrap(seed=1).interval(losses) == Bootstrap(seed=1).interval(losses)
    assert Bootstrap(seed=1).interval(losses) != Bootstrap(seed=2).interval(losses)


def test_seeds_that_differ_in_documents_but_not_in_sum_have_an_interval() -> None:
    """The documents' draws do not vary at all; what is left is the seeds' part, nothing."""
    losses = Losses(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([4.0, 4.0]))
    assert Bootstrap().interval(losses) == Interval(0.125, 0.125, 0.125)


def test_one_document_has_no_interval() -> None:
    found = Bootstrap().interval(Losses(np.array([[6.0], [8.0]]), np.array([2.0])))
    assert found == Interval(3.5)
    assert Bootstrap().joint(Losses(np.ones((2, 1)), np.ones(1)), [1, 2]) is None
    with pytest.raises(ValueError, match="no interval"):
        found.holds(3.5)


def test_the_value_is_one_sum_over_one_count() -> None:
    found = Bootstrap().interval(
        Losses(np.array([[2.0, 30.0], [4.0, 60.0]]), np.array([1.0, 9.0]))
    )
    assert found.value == 96 / 20


@pytest.mark.parametrize("bad", [{"level": 1.0}, {"level": 0.0}, {"draws": 10}, {"seed": -1}])
def test_what_is_no_bootstrap_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Bootstrap(**bad)  # type: ignore[arg-type]


def test_the_exponential_of_the_worst_loss_is_finite() -> None:
    assert math.isfinite(exponential(1e9))
    assert Interval(0.0, -1.0, None).map(exponential) == Interval(1.0, math.exp(-1), None)
