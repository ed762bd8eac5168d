"""The cells of the attention, and which of them an encoding fills, read off its code."""

from __future__ import annotations

import dataclasses

import torch

from posbench.encodings import Encoding

CELLS = {
    "embed": "a vector added to the token embedding",
    "rotate": "queries and keys rotated or scaled, or a content bias",
    "distance_bias": "position → position: a scalar by distance",
    "position_bias": "position → position: a scalar by both positions",
    "distance_keys": "content → position: the query meets a vector by distance",
    "distance_queries": "position → content: the key meets a vector by distance",
    "distance_values": "values: a vector by distance, under the attention weights",
    "decay": "a scalar for each token passed, from its content",
    "scores": "any function of the logits, queries and keys",
}
BY_DISTANCE = ("distance_bias", "distance_keys", "distance_queries", "distance_values")


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
        """The cells that it fills, in the order of CELLS."""
        return [cell for cell in CELLS if fills(self.part, cell)]


def served(encoding: Encoding) -> list[Served]:
    """Each encoding at work in a model, itself or those of a mix, the first layer's first."""
    layers: dict[Encoding, list[int]] = {}
    for layer in range(encoding.shape.layers):
        layers.setdefault(encoding.at(layer)[0], []).append(layer)
    return [Served(part, numbers) for part, numbers in layers.items()]


def fills(encoding: Encoding, cell: str) -> bool:
    """Whether this instance, as it is set, says anything in a cell."""
    return any(_fills(each.part, cell) for each in served(encoding))


def _fills(encoding: Encoding, cell: str) -> bool:
    if cell not in BY_DISTANCE:
        return encoding.fills(cell)
    return getattr(encoding, cell)(torch.zeros(1, dtype=torch.long), 0) is not None
