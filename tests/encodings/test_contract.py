"""What every shipped class says of itself: its paper and its formula."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import pytest
from torch import Tensor

from posbench import encodings
from posbench.encodings import Encoding, Shape
from posbench.encodings.nope import NoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.rope import RoPE

BASES = ("Encoding", "Extended")  # no yaml names them
WITHOUT_A_PAPER = {"NTK", "DynamicNTK", "LogNRoPE", "Pattern"}


def shipped() -> Iterator[type[Encoding]]:
    for module in pkgutil.iter_modules(encodings.__path__, f"{encodings.__name__}."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            own = kind.__module__ == module.name
            if own and issubclass(kind, Encoding) and kind.__name__ not in BASES:
                yield kind


@pytest.mark.parametrize("kind", list(shipped()), ids=lambda kind: kind.__name__)
def test_a_class_says_its_paper_and_its_formula(kind: type[Encoding]) -> None:
    """Itself, or the class of the same file that it derives from."""
    same = [each for each in kind.__mro__ if each.__module__ == kind.__module__]
    for name in ("paper", "formula"):
        assert any(name in vars(each) for each in same), name
    arxiv = re.fullmatch(r"\d{4}\.\d{4,5}", kind.paper)
    assert bool(arxiv) == (kind.__name__ not in WITHOUT_A_PAPER)
    assert bool(kind.formula) == (kind.__name__ != "Pattern")
    if arxiv:
        module = inspect.getmodule(kind)
        assert f"arXiv {kind.paper}" in (inspect.getdoc(module) or ""), "the docstring cites it"


class Bias(Encoding):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -distance.double().log1p().expand(self.shape.heads, -1)


class Mixed(Bias, RoPE):
    """Its first base reads n >= 0 alone, its second both signs."""


class Told(RoPE):
    directions = "both"

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -distance.abs().double().expand(self.shape.heads, -1)


class Renamed(RoPE):
    """Fills no cell of its own."""


@pytest.mark.parametrize(("kind", "serves"), [(Bias, 0), (Mixed, 0), (Told, 1), (Renamed, 1)])
def test_an_encoding_that_says_nothing_of_its_directions_is_causal(
    kind: type[Encoding], serves: bool
) -> None:
    assert (kind.directions == "both") == serves


def test_a_mix_serves_what_all_its_parts_serve() -> None:
    shape = Shape(16, 2, 2)
    for part, expected in ((Told, "both"), (NoPE, "both, unpublished"), (Mixed, "causal")):
        made = Pattern(shape, ["a", "b"], {"a": RoPE, "b": part})
        assert made.directions == expected
