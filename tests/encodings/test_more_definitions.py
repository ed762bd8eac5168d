"""Every further encoding equals its paper: naive float64 loops, values and gradients."""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.encodings import Span
from posbench.model.transformer import build
from tests.encodings.test_definitions import SIZES
from tests.helpers import naive_more
from tests.helpers.cases import assert_same
from tests.helpers.cases_more import (
    DYNAMIC,
    NEW,
    OLD,
    STREAM,
    Case,
    define,
    inputs,
    randomised,
    run,
)
from tests.helpers.tolerance import EXACT

WINDOW = 4

each_case = pytest.mark.parametrize("case", NEW, ids=lambda case: case.name)
each_kernel = pytest.mark.parametrize("kernel", ["reference", "fused"])


def _batch(keys: int) -> int:
    return 2 if keys < 10 else 1


def _attended(
    case: Case,
    kernel: str,
    queries: int,
    keys: int,
    span: Span | None = None,
    window: int | None = None,
) -> list[Tensor]:
    """What posbench says: by the kernel that can, where this one says that it cannot."""
    encoding, qkvx = case.encoding(), inputs(case, queries, keys, _batch(keys))
    if window is not None:
        encoding.window = window
    refused = [cell for cell in ("scores", "position_bias") if encoding.fills(cell)]
    if kernel == "fused" and refused:
        with pytest.raises(ValueError, match=refused[0]):
            run(kernel, encoding, qkvx, span)
        kernel = "blocked"
    return run(kernel, encoding, qkvx, span)


@functools.cache
def _defined(case: Case, queries: int, keys: int, **how: Any) -> list[Tensor]:
    return define(case, case.encoding(), inputs(case, queries, keys, _batch(keys)), **how)


@each_case
@each_kernel
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_attention_is_the_papers(case: Case, kernel: str, queries: int, keys: int) -> None:
    actual = _attended(case, kernel, queries, keys)
    assert_same(actual, _defined(case, queries, keys), EXACT)


# Hidden keys


HIDDEN = torch.zeros(2, 9, dtype=torch.bool)
HIDDEN[0, :4] = True
HIDDEN[1, :1] = True
"""Of five queries behind four keys of memory: row 0 sees no memory, row 1 lacks its first key."""

see_unhidden = naive_more.see_unhidden(HIDDEN)


@each_case
@each_kernel
def test_hidden_keys_do_not_exist(case: Case, kernel: str) -> None:
    span = dataclasses.replace(Span.window(5, memory=4), hidden=HIDDEN)
    actual = _attended(case, kernel, 5, 9, span)
    assert_same(actual, _defined(case, 5, 9, see=see_unhidden), EXACT)


# Windows

see_window = naive_more.see_last(WINDOW)


@pytest.mark.parametrize("case", NEW + OLD, ids=lambda case: case.name)
@each_kernel
@pytest.mark.parametrize(("queries", "keys"), [(10, 10), (2, 30)])
def test_keys_outside_the_window_do_not_exist(
    case: Case, kernel: str, queries: int, keys: int
) -> None:
    actual = _attended(case, kernel, queries, keys, window=WINDOW)
    assert_same(actual, _defined(case, queries, keys, see=see_window), EXACT)


@each_kernel
@pytest.mark.parametrize("window", [1, 8, 9, 100])
def test_windows_of_one_key_and_of_all(kernel: str, window: int) -> None:
    (case,) = (case for case in NEW if case.name == "kerple_log")
    actual = _attended(case, kernel, 9, 9, window=window)
    assert_same(actual, _defined(case, 9, 9, see=naive_more.see_last(window)), EXACT)


@each_kernel
def test_a_window_and_hidden_keys(kernel: str) -> None:
    (case,) = (case for case in NEW if case.name == "fox")
    span = dataclasses.replace(Span.window(5, memory=4), hidden=HIDDEN)
    actual = _attended(case, kernel, 5, 9, span, window=3)

    def see(b: int, i: int) -> list[int]:
        return [j for j in see_unhidden(b, i) if j > i - 3]

    assert_same(actual, _defined(case, 5, 9, see=see), EXACT)


@each_kernel
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (12, 12), (3, 12), (1, 40)])
def test_streaming_sees_sinks_and_counts_in_the_cache(
    kernel: str, queries: int, keys: int
) -> None:
    see = naive_more.see_streaming(window=4, sinks=2)
    actual = _attended(STREAM, kernel, queries, keys)
    assert_same(actual, _defined(STREAM, queries, keys, see=see), EXACT)


# Positions with gaps


@pytest.mark.parametrize(
    "case", [case for case in NEW + OLD if case is not DYNAMIC], ids=lambda case: case.name
)
@each_kernel
@pytest.mark.parametrize(("queries", "keys"), [(10, 10), (2, 20)])
def test_positions_with_gaps(case: Case, kernel: str, queries: int, keys: int) -> None:
    """Distances are of positions; gates, windows and counts are of tokens."""
    positions = tuple(sorted(random.Random(keys).sample(range(400), keys)))
    where = torch.tensor(positions)
    span = Span(queries=where[keys - queries :], keys=where, consecutive=False)
    actual = _attended(case, kernel, queries, keys, span)
    assert_same(actual, _defined(case, queries, keys, positions=positions), EXACT)


ABSOLUTE = {"sinusoidal", "learned", "fire"}
MOVED = [case for case in NEW + OLD if case.name not in ("everything", "pairwise", "fire-512")]
"""Without a toy that claims nothing, and FIRE where all positions are below its threshold."""


@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.name)
def test_a_window_moved_as_a_whole_changes_nothing_where_that_is_claimed(case: Case) -> None:
    encoding, (q, k, v, x) = case.encoding(), inputs(case, 5, 9)

    def attend(start: int) -> Tensor:
        """The input is in the values, so that absolute encodings show."""
        span = Span.window(5, memory=4, start=start)
        rows = encoding.embed(x, span.keys).unflatten(-1, (case.heads, -1)).transpose(1, 2)
        return run("reference", encoding, (q, k, v + rows, x), span)[0]

    moved = (attend(50) - attend(0)).abs().max()
    assert encoding.translation_equivariant == (case.name not in ABSOLUTE)
    assert moved < 1e-10 if encoding.translation_equivariant else moved > 1e-4


# Blocks of queries


@pytest.mark.parametrize("case", [*NEW, STREAM], ids=lambda case: case.name)
@pytest.mark.parametrize("kernel", ["blocked", "fused"])
@pytest.mark.parametrize("window", [None, WINDOW])
def test_blocks_of_queries_do_not_show(
    case: Case,
    kernel: str,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, size in (("blocked", "BLOCK"), ("fused", "BLOCK"), ("fused", "TABLE_BLOCK")):
        monkeypatch.setattr(sys.modules[f"posbench.attention.{module}"], size, 5)
    monkeypatch.setattr(sys.modules["posbench.attention.blocked"], "PAIRS", 60)  # 3 rows at last
    actual = _attended(case, kernel, 13, 20, window=window)
    assert_same(actual, _attended(case, "reference", 13, 20, window=window), EXACT)


# In a model


@pytest.mark.parametrize("case", [*NEW, STREAM], ids=lambda case: case.name)
@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_a_model_of_two_layers(case: Case, attention: str) -> None:
    """What one layer keeps for its gradient survives the other; the future does not leak."""
    shape = case.shape
    model = build(shape, 11, case.make, seed=0, feed_forward=8, attention=attention).double()
    randomised(model.encoding)
    tokens = torch.arange(26).view(2, 13) % 11
    before, _ = model(tokens)
    before.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    for t in (1, 5, 12):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        after, _ = model(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t] != before[:, t]).any()
