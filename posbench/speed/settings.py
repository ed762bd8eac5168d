"""The configuration of an encoding, and of the baseline beside it, at each mode and length.

An encoding's yaml may refer to train.length (a learned table's rows, Transformer-XL's segment
memory). Training at a length sets train.length to that length; evaluation keeps the user's
train.length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from omegaconf import DictConfig

from posbench import config as schemas
from posbench.config import NOT_ARGUMENTS, SpeedCommand


@dataclasses.dataclass(frozen=True)
class Subject:
    """One encoding under a name; at(mode, length) is its typed configuration."""

    name: str
    at: Callable[[str, int], SpeedCommand]


def subject(name: str, node: DictConfig) -> Subject:
    """A Subject from Hydra's composed config."""

    def at(mode: str, length: int) -> SpeedCommand:
        copied = node.copy()
        if mode == "train":
            copied.train.length = length
        return schemas.load(copied, SpeedCommand)

    return Subject(name, at)


def same(one: SpeedCommand, other: SpeedCommand) -> bool:
    """Whether both configurations have the same encoding with the same settings."""
    mine, its = (
        {key: value for key, value in each.encoding.items() if key not in NOT_ARGUMENTS}
        for each in (one, other)
    )
    return mine == its
