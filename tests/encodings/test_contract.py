"""What every shipped class says of itself: its paper and its formula."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import pytest

from posbench import encodings
from posbench.encodings import Encoding

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
