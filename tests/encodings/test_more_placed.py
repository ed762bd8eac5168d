"""Positions that are not the tokens' own: randomized ones, and rows past a learned table."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.attention import ON_CPU
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.learned import Learned
from posbench.encodings.randomized import (
    RandomizedALiBi,
    RandomizedLearned,
    RandomizedRoPE,
    RandomizedSinusoidal,
    RandomizedT5,
)
from posbench.model.transformer import build
from tests.helpers import naive, naive_more
from tests.helpers.cases import assert_same
from tests.helpers.cases_more import Case, define, inputs, randomised, run
from tests.helpers.naive_more import by_pair, rotated
from tests.helpers.tolerance import EXACT, FORMULA

SHAPE = Shape(width=8, heads=2, layers=2)

RANDOMIZED = [
    Case("sinusoidal", RandomizedSinusoidal, by_pair(naive.nope)),
    Case("learned", RandomizedLearned, by_pair(naive.nope)),
    Case("rope", RandomizedRoPE, rotated(lambda d, length: naive_more.rope(d), "half")),
    Case("alibi", RandomizedALiBi, by_pair(naive.alibi), heads=6),
    Case("t5", RandomizedT5, by_pair(naive.t5)),
]

each_case = pytest.mark.parametrize("case", RANDOMIZED, ids=lambda case: case.name)
each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


def _make(case: Case, **options: Any) -> Encoding:
    make: Callable[..., Encoding] = case.make
    return make(case.shape, **options)


@each_case
@each_kernel
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (12, 12), (5, 9), (1, 60)])
def test_attention_at_any_positions(case: Case, kernel: str, queries: int, keys: int) -> None:
    positions = sorted(random.Random(keys).sample(range(2048), keys))
    where = torch.tensor(positions)
    span = Span(where[keys - queries :], where, consecutive=False)
    encoding, qkvx = case.encoding(), inputs(case, queries, keys, batch=1)
    expected = define(case, encoding, qkvx, positions=positions)
    assert_same(run(kernel, encoding, qkvx, span), expected, EXACT)


@each_case
@each_kernel
def test_attention_where_it_places(case: Case, kernel: str) -> None:
    """place, then attend: hidden keys and memory go with it."""
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    hidden[0, :4] = True
    encoding, qkvx = case.encoding().eval(), inputs(case, 5, 9)
    span = dataclasses.replace(Span.window(5, memory=4), hidden=hidden)
    placed = encoding.place(span)
    assert not placed.consecutive
    assert placed.hidden is not None
    assert torch.equal(placed.hidden, hidden)

    def see(b: int, i: int) -> list[int]:
        return [j for j in range(i + 1) if not hidden[b, j]]

    expected = define(case, encoding, qkvx, positions=placed.keys.tolist(), see=see)
    assert_same(run(kernel, encoding, qkvx, placed), expected, EXACT)


@each_case
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("length", "memory"), [(1, 0), (30, 0), (10, 20), (50, 0)])
def test_places_are_sorted_and_distinct(
    case: Case, training: bool, length: int, memory: int
) -> None:
    encoding = _make(case, positions=50).train(training)
    for _ in range(20):
        placed = encoding.place(Span.window(length, memory))
        keys = placed.keys.tolist()
        assert len(keys) == length + memory
        assert keys == sorted(set(keys))
        assert 0 <= keys[0] <= keys[-1] < 50
        assert torch.equal(placed.queries, placed.keys[memory:])
        assert placed.keys.dtype == torch.int64


@each_case
def test_places_are_fixed_in_evaluation_and_drawn_in_training(case: Case) -> None:
    encoding = _make(case, positions=1000)

    def place(length: int = 20) -> list[int]:
        return encoding.place(Span.window(length)).keys.tolist()

    encoding.eval()
    fixed = [place(), place(), (place(7), place())[1]]
    assert fixed[0] == fixed[1] == fixed[2]
    encoding.train()
    drawn = [place() for _ in range(10)]
    assert len({tuple(d) for d in drawn}) == 10
    encoding.eval()
    assert place() == fixed[0]


@each_case
def test_places_depend_on_the_seed_and_nothing_else(case: Case) -> None:
    def places(seed: int, training: bool) -> list[int]:
        encoding = _make(case, positions=1000, seed=seed).train(training)
        before = torch.get_rng_state()
        keys = encoding.place(Span.window(20)).keys.tolist()
        # shared randomness would make the order of batches or dropout differ between encodings
        assert torch.equal(torch.get_rng_state(), before)
        return keys

    assert places(0, training=False) == places(0, training=False)
    assert places(0, training=False) != places(1, training=False)


@each_case
def test_training_places_cover_all_positions_evenly(case: Case) -> None:
    """2000 draws of 5 in 10: each is drawn 1000 times, to six standard errors."""
    encoding = _make(case, positions=10).train()
    counts = [0] * 10
    for _ in range(2000):
        for p in encoding.place(Span.window(5)).keys.tolist():
            counts[p] += 1
    assert all(abs(count - 1000) < 6 * (2000 * 0.25) ** 0.5 for count in counts)


@each_case
def test_more_tokens_than_positions_are_refused(case: Case) -> None:
    assert _make(case, positions=50).max_length == 50
    make: Callable[..., Encoding] = case.make
    model = build(case.shape, 9, functools.partial(make, positions=50), seed=0, feed_forward=8)
    model(torch.zeros(1, 50, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"50.*51"):
        model(torch.zeros(1, 51, dtype=torch.int64))


def test_randomized_inputs_are_those_of_the_positions() -> None:
    x, positions = torch.randn(2, 3, 8, dtype=torch.float64), torch.tensor([0, 17, 2047])
    rows = torch.tensor([naive.interleaved(int(p), 8) for p in positions], dtype=torch.float64)
    got = RandomizedSinusoidal(SHAPE).embed(x, positions)
    torch.testing.assert_close(got, x + rows, rtol=0, atol=EXACT)
    learned = RandomizedLearned(SHAPE).double()
    (table,) = learned.parameters()
    assert table.shape == (2048, 8)
    assert torch.equal(learned.embed(x, positions), x + table[positions])


# Learned, past its table


def _learned(beyond: str, max_length: int = 5) -> tuple[Learned, Tensor]:
    encoding = Learned(SHAPE, max_length=max_length, beyond=beyond).double()
    randomised(encoding)
    return encoding, encoding.table.detach()


def _rows(encoding: Learned, length: int) -> Tensor:
    x = torch.zeros(1, length, 8, dtype=torch.float64)
    return encoding.embed(x, torch.arange(length))[0].detach()


def test_learned_refuses_by_default() -> None:
    assert Learned(SHAPE, max_length=5).max_length == 5
    assert _learned("refuse")[0].max_length == 5
    with pytest.raises(ValueError, match=r"beyond=wrap.*refuse.*clamp.*interpolate"):
        Learned(SHAPE, max_length=5, beyond="wrap")


@pytest.mark.parametrize("beyond", ["clamp", "interpolate"])
def test_learned_beyond_has_no_limit_and_changes_nothing_within(beyond: str) -> None:
    encoding, table = _learned(beyond)
    assert encoding.max_length is None
    for length in (1, 4, 5):
        assert torch.equal(_rows(encoding, length), table[:length])


@pytest.mark.parametrize("length", [6, 9, 500])
def test_learned_clamp_repeats_the_last_row(length: int) -> None:
    encoding, table = _learned("clamp")
    rows = _rows(encoding, length)
    assert torch.equal(rows[:5], table)
    assert torch.equal(rows[5:], table[4:].expand(length - 5, -1))


@pytest.mark.parametrize("stretch", [2, 3])
def test_learned_interpolate_spreads_its_rows_over_the_window(stretch: int) -> None:
    """First on first and last on last; between two rows, a straight line."""
    encoding, table = _learned("interpolate")
    rows = _rows(encoding, 4 * stretch + 1)
    torch.testing.assert_close(rows[::stretch], table, rtol=FORMULA, atol=FORMULA)
    for step in range(1, stretch):
        expected = table[:4].lerp(table[1:], step / stretch)
        torch.testing.assert_close(rows[step::stretch], expected, rtol=FORMULA, atol=FORMULA)
