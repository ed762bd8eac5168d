"""The list of cells is the contract's, wherever it stands."""

from __future__ import annotations

import inspect

import pytest

from posbench import attention
from posbench.attention import cells
from posbench.commands.encodings import HEADERS
from posbench.conformance.contract import HOOKS
from posbench.encodings import Encoding, Shape
from posbench.encodings.base import CELLS
from posbench.encodings.pattern import Pattern
from posbench.encodings.randomized import RandomizedALiBi, RandomizedRoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw

SHAPE = Shape(width=16, heads=2, layers=4)
NOT_CELLS = {"at", "place", "after_step", "fills", "scale"}


def test_every_list_of_cells_is_the_contracts() -> None:
    methods = {name for name in vars(Encoding) if inspect.isroutine(vars(Encoding)[name])}
    contract = {name for name in methods if not name.startswith("_")} - NOT_CELLS
    assert set(cells.CELLS) == contract
    assert set(HEADERS) == contract
    assert set(CELLS) == contract
    assert set(HOOKS) == set(cells.BY_DISTANCE)


def test_a_cell_is_filled_as_the_instance_is_set() -> None:
    assert cells.fills(Shaw(SHAPE, values=True), "distance_values")
    assert not cells.fills(Shaw(SHAPE, values=False), "distance_values")
    assert Shaw(SHAPE, values=False).fills("distance_values")  # by class


def test_a_mix_is_its_parts() -> None:
    mix = Pattern(SHAPE, ["a", "b"], {"a": RoPE, "b": Shaw})
    assert [type(each.part) for each in cells.served(mix)] == [RoPE, Shaw]
    assert cells.fills(mix, "rotate")
    assert cells.fills(mix, "distance_keys")
    assert not cells.fills(mix, "scores")


@pytest.mark.parametrize(
    ("made", "kernel"), [(RandomizedALiBi, "blocked"), (RandomizedRoPE, "fused")]
)
def test_the_kernel_named_is_the_kernel_at_work(made: type[Encoding], kernel: str) -> None:
    """Gaps between positions leave a bias without a view; a rotation needs none."""
    assert attention.choose(made(SHAPE)) == kernel
