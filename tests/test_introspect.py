"""The list of cells is the contract's, wherever it stands."""

from __future__ import annotations

import inspect

import pytest

from posbench import attention, introspect
from posbench.commands.encodings import HEADERS
from posbench.conformance.contract import HOOKS
from posbench.encodings import Encoding, Shape
from posbench.encodings.p_rope import PRoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.randomized import RandomizedALiBi, RandomizedRoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw

SHAPE = Shape(width=16, heads=2, layers=4)
NOT_CELLS = {"at", "place", "after_step", "fills", "scale"}


def test_every_list_of_cells_is_the_contracts() -> None:
    methods = {name for name in vars(Encoding) if inspect.isroutine(vars(Encoding)[name])}
    cells = {name for name in methods if not name.startswith("_")} - NOT_CELLS
    assert set(introspect.CELLS) == cells
    assert set(HEADERS) == cells
    assert set(HOOKS) == set(introspect.BY_DISTANCE)


def test_a_cell_is_filled_as_the_instance_is_set() -> None:
    assert introspect.fills(Shaw(SHAPE, values=True), "distance_values")
    assert not introspect.fills(Shaw(SHAPE, values=False), "distance_values")
    assert Shaw(SHAPE, values=False).fills("distance_values")  # by class


def test_a_mix_is_its_parts() -> None:
    mix = Pattern(SHAPE, ["a", "b"], {"a": RoPE, "b": Shaw})
    assert [type(part) for part in introspect.parts(mix)] == [RoPE, Shaw]
    assert introspect.fills(mix, "rotate")
    assert introspect.fills(mix, "distance_keys")
    assert not introspect.fills(mix, "scores")


def test_paper_and_formula_come_from_the_docstring() -> None:
    assert introspect.paper(RoPE(SHAPE)) == "2104.09864"
    assert "theta_c = base^(-2c/d)" in introspect.formula(RoPE(SHAPE))
    assert "floor(p d/2)" in introspect.formula(PRoPE(SHAPE))
    assert introspect.paper(Pattern(SHAPE, ["a"], {"a": RoPE})) is None


@pytest.mark.parametrize(
    ("made", "kernel"), [(RandomizedALiBi, "blocked"), (RandomizedRoPE, "fused")]
)
def test_the_kernel_named_is_the_kernel_at_work(made: type[Encoding], kernel: str) -> None:
    """Gaps between positions leave a bias without a view; a rotation needs none."""
    assert attention.choose(made(SHAPE)) == kernel
