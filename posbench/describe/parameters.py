"""An encoding's parameters, and which layers and heads share them.

Found by building the encoding at other sizes and comparing the shapes of its tensors.

N layers, H heads, D width, d = D / H head width. An axis that grows with the layers is N, one that
grows with the heads at a constant d is H or D, one that grows with the width at constant heads is
d or D.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from posbench.attention.cells import served
from posbench.encodings import Encoding, Shape
from posbench.errors import UserError

Make = Callable[[Shape], Encoding]
Sizes = dict[str, torch.Size]

MOST = 8  # times the layers, at most, until every part of a mix serves more layers than before


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One tensor: its axes as "N=2" or "32", its scalars, and which layers and heads use it."""

    name: str
    axes: list[str]
    count: int
    layers: str
    heads: str


def parameters(make: Make, shape: Shape) -> list[Parameter]:
    """Parameters of make(shape); `layers`, `heads` are "unknown" if make refuses other sizes.

    Raises what make(shape) raises.
    """
    with torch.random.fork_rng(devices=[]):
        encoding = make(shape)
        try:
            deeper = _deeper(make, encoding)
            heads = make(Shape(2 * shape.width, 2 * shape.heads, shape.layers))
            wider = make(Shape(2 * shape.width, shape.heads, shape.layers))
        except (UserError, ValueError):
            return [
                Parameter(name, [*map(str, p.shape)], p.numel(), "unknown", "unknown")
                for name, p in encoding.named_parameters()
            ]
    return list(_compared(encoding, deeper, heads, wider))


def _compared(
    encoding: Encoding, deeper: Encoding, heads: Encoding, wider: Encoding
) -> Iterator[Parameter]:
    """Parameters of encoding, from comparing it built deeper, with more heads, and wider heads."""
    more = [_sizes(other) for other in (deeper, heads, wider)]
    repeated = _grown(encoding, deeper)
    for name, parameter in encoding.named_parameters():
        letters = _letters(parameter.shape, [sizes[name] for sizes in more])
        yield Parameter(
            name,
            _axes(parameter.shape, letters, _layers(encoding, name), encoding.shape),
            parameter.numel(),
            _layers_sharing(encoding, parameter, _pattern(name) in repeated),
            _heads_sharing(letters),
        )


def _deeper(make: Make, encoding: Encoding) -> Encoding:
    """The encoding built for enough layers that each part of a mix serves more than before."""
    shape, before = encoding.shape, _serving(encoding)
    deeper = encoding
    for factor in range(2, MOST + 1):
        deeper = make(dataclasses.replace(shape, layers=factor * shape.layers))
        after = _serving(deeper)
        if all(after[name] > count for name, count in before.items()):
            break
    return deeper


def _serving(encoding: Encoding) -> dict[str, int]:
    """How many layers each Encoding inside (itself included) serves, by module name."""
    modules = encoding.named_modules()
    return {name: m.shape.layers for name, m in modules if isinstance(m, Encoding)}


def _layers(encoding: Encoding, name: str) -> int:
    """The layers served by the encoding that holds a parameter."""
    return max((len(owner), n) for owner, n in _serving(encoding).items() if _in(name, owner))[1]


def _in(name: str, owner: str) -> bool:
    """Whether the parameter `name` belongs to the module `owner`; "" is the encoding itself."""
    return not owner or name.startswith(f"{owner}.")


def _sizes(encoding: Encoding) -> Sizes:
    return {name: parameter.shape for name, parameter in encoding.named_parameters()}


def _grown(encoding: Encoding, deeper: Encoding) -> set[str]:
    """The name patterns (see _pattern) whose parameters have more scalars in the deeper model."""
    before, after = _totals(encoding), _totals(deeper)
    return {pattern for pattern, total in before.items() if after[pattern] > total}


def _totals(encoding: Encoding) -> Counter[str]:
    totals: Counter[str] = Counter()
    for name, parameter in encoding.named_parameters():
        totals[_pattern(name)] += parameter.numel()
    return totals


def _pattern(name: str) -> str:
    """tables.0 -> tables.*: a list with an entry a layer grows in names, not in shapes."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _letters(size: torch.Size, more: list[torch.Size]) -> list[str]:
    """N, H, D, d or nothing for each axis of a size, from the sizes in the other models."""
    rows = [tuple(n > before for n in others) for before, *others in zip(size, *more, strict=True)]
    letters = {(False, True, True): "D", (False, True, False): "H", (False, False, True): "d"}
    return ["N" if row[0] else letters.get(row, "") for row in rows]


def _axes(size: torch.Size, letters: list[str], layers: int, shape: Shape) -> list[str]:
    unit = {"N": layers, "H": shape.heads, "D": shape.width, "d": shape.head_width}
    times = [n / unit[letter] if letter else 1.0 for n, letter in zip(size, letters, strict=True)]
    return [
        f"{'' if factor == 1 else f'{factor:g}'}{letter}={n}" if letter else str(n)
        for factor, letter, n in zip(times, letters, size, strict=True)
    ]


def _layers_sharing(encoding: Encoding, parameter: torch.Tensor, repeated: bool) -> str:
    if repeated:
        return "per layer"
    for each in served(encoding):
        if each.cells == ["embed"] and any(parameter is own for own in each.part.parameters()):
            return "at the input"
    return "shared by all layers"


def _heads_sharing(letters: list[str]) -> str:
    if "H" in letters:
        return "per head"
    return "whole width" if "D" in letters else "shared by all heads"
