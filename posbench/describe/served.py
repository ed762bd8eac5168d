"""Which layers each encoding of a model serves: one encoding all of them, but for mixes."""

from __future__ import annotations

import dataclasses

from posbench import introspect
from posbench.encodings import Encoding


@dataclasses.dataclass(frozen=True)
class Served:
    """An encoding and the layers of the model that it serves, in order."""

    part: Encoding
    layers: list[int]

    @property
    def name(self) -> str:
        return type(self.part).__name__

    @property
    def cells(self) -> list[str]:
        """The cells that it fills, in the order of introspect.CELLS."""
        return [cell for cell in introspect.CELLS if introspect.fills(self.part, cell)]


def served(encoding: Encoding) -> list[Served]:
    """Each encoding at work in a model, the first layer's first."""
    return [Served(part, layers) for part, layers in introspect.serving(encoding).items()]
