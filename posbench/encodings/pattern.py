"""Several encodings in one model, by layer, each with a window of its own or none.

Llama 4 and SmolLM3 leave every fourth layer of a RoPE model without position; SWAN-GPT (Puvvada
et al. 2025, arXiv:2504.08719) puts windowed RoPE layers between layers without position; Gemma 3
(arXiv:2503.19786, section 2) five windowed layers with a small base to a global one with a large
base.

The pattern is repeated over the layers; a model with fewer layers takes the pattern's last
entries. What a part adds to the input (sinusoidal, learned) is added once: all layers see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from posbench.encodings.base import Encoding, Shape
from posbench.encodings.nope import NoPE

Make = Callable[[Shape], Encoding]


class Pattern(Encoding):
    """pattern names the part that serves each layer; parts and windows (in tokens) go by name."""

    paper = ""  # each part has its own
    formula = ""

    def __init__(
        self,
        shape: Shape,
        pattern: Sequence[str],
        parts: Mapping[str, Make],
        windows: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(shape)
        windows = windows or {}
        _check(pattern, parts, windows)
        period = list(pattern)[-shape.layers :]
        names = [period[layer % len(period)] for layer in range(shape.layers)]
        if unused := set(parts) - set(names):
            raise ValueError(
                f"encoding.parts: {', '.join(sorted(unused))} would serve none of "
                f"model.layers={shape.layers} under encoding.pattern={list(pattern)}"
            )
        self.parts = nn.ModuleDict(
            {
                name: make(dataclasses.replace(shape, layers=names.count(name)))
                for name, make in parts.items()
            }
        )
        self.serving = [(name, names[:layer].count(name)) for layer, name in enumerate(names)]
        for name, window in windows.items():
            if isinstance(self._part(name), Pattern):
                raise ValueError(f"encoding.windows.{name}: a mix has windows of its own")
            self._part(name).window = window
        limits = [part.max_length for part in self.all if part.max_length is not None]
        self.max_length = min(limits, default=None)
        self.memory_length = max(part.memory_length for part in self.all)
        self.translation_equivariant = all(part.translation_equivariant for part in self.all)
        self.directions = self._directions()

    @property
    def all(self) -> list[Encoding]:
        return [self._part(name) for name in self.parts]

    def _directions(self) -> str:
        """What all parts are defined for. Layers without position were tried in decoders alone."""
        told = {part.directions for part in self.all}
        if "causal" in told:
            return "causal"
        without = any(isinstance(part, NoPE) for part in self.all)
        return "both, unpublished" if without or "both, unpublished" in told else "both"

    def _part(self, name: str) -> Encoding:
        part = self.parts[name]
        assert isinstance(part, Encoding)
        return part

    def at(self, layer: int) -> tuple[Encoding, int]:
        name, number = self.serving[layer]
        return self._part(name).at(number)

    def after_step(self) -> None:
        for part in self.all:
            part.after_step()

    def fills(self, cell: str) -> bool:
        return any(part.fills(cell) for part in self.all)


def _check(pattern: Sequence[str], parts: Mapping[str, Make], windows: Mapping[str, int]) -> None:
    if not isinstance(parts, Mapping) or not all(map(callable, parts.values())):
        raise ValueError("encoding.parts: give names, and under each an encoding's `_target_`")
    if not isinstance(windows, Mapping):
        raise ValueError(f"encoding.windows={windows}: give names of encoding.parts, and tokens")
    if not pattern or isinstance(pattern, str) or not all(isinstance(n, str) for n in pattern):
        raise ValueError(f"encoding.pattern={pattern}: give a list of names of encoding.parts")
    for key, names in (("pattern", pattern), ("windows", windows)):
        if unknown := set(names) - set(parts):
            raise ValueError(
                f"encoding.{key}: {', '.join(sorted(unknown))} is none of encoding.parts "
                f"({', '.join(parts)})"
            )
    for name, window in windows.items():
        if type(window) is not int or window < 1:
            raise ValueError(
                f"encoding.windows.{name}={window} must be a whole number of at least 1"
            )
    for name in parts:
        if "." in name or hasattr(nn.ModuleDict, name):
            raise ValueError(f"encoding.parts: {name!r} cannot be a part's name; choose another")
