"""Tolerances: wide enough for any order of adding up, narrow enough for what is wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

from scripts.test_cpus import ROOT, TESTS
from tests.helpers.tolerance import close, relative

NAMES = ("rel", "abs", "rtol", "atol", "tolerance")
SMALL = 1e-4  # what is larger is no rounding: a statistic, or a number that a paper rounds


def sums(dtype: torch.dtype, terms: int) -> list[float]:
    """Of the same positive numbers, in orders that processors may choose."""
    drawn = torch.rand(terms, generator=torch.Generator().manual_seed(0)).to(dtype)
    one_by_one, lanes = drawn.new_zeros(()), drawn.new_zeros(8)
    for x in drawn:
        one_by_one = one_by_one + x
    for some in drawn.view(-1, 8):
        lanes = lanes + some
    return [float(one_by_one), float(lanes.sum()), float(drawn.flip(0).cumsum(0)[-1])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_order_of_adding_up_is_close(dtype: torch.dtype) -> None:
    terms = 16 if dtype is torch.bfloat16 else 4096
    first, *others = sums(dtype, terms)
    for other in others:
        close(other, first, dtype, terms)
    with pytest.raises(AssertionError):
        close(first * (1 + 1.1 * relative(dtype, terms)), first, dtype, terms)


def test_a_float32_sum_is_not_held_to_a_billionth() -> None:
    """As it once was, on sums shared out among processes: true on one processor only."""
    first, *others = sums(torch.float32, 4096)
    assert any(abs(other / first - 1) > 1e-9 for other in others)
    assert relative(torch.float32, 400) > 1e-9


def literals(text: str) -> Iterator[tuple[int, float]]:
    """Small tolerances that are written as numbers: their line and value."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        given = [each.value for each in node.keywords if each.arg in NAMES]
        given += node.args[2:3] if called == "assert_allclose" else []
        numbers = [each.value for each in given if isinstance(each, ast.Constant)]
        yield from ((node.lineno, x) for x in numbers if isinstance(x, float) and 0 < x < SMALL)


def test_no_numeric_test_has_a_tolerance_of_its_own() -> None:
    """It would be from what one processor did."""
    files = [path for name in TESTS for path in sorted((ROOT / name).rglob("*.py"))]
    files += [ROOT / name for name in (*TESTS, "tests/runs/test_run.py") if name.endswith(".py")]
    assert len(files) > 30
    found = {str(path.relative_to(ROOT)): [*literals(path.read_text())] for path in files}
    assert {name: told for name, told in found.items() if told} == {}
    assert [*literals("approx(x, rel=1e-9)\nnp.assert_allclose(a, b, 1e-5)\nf(atol=0.1)")] == [
        (1, 1e-9),
        (2, 1e-5),
    ]
