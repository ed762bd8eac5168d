"""The configuration of an encoding, and of the baseline beside it, at each mode and length.

An encoding's yaml may refer to train.length (the rows of a learned table, Transformer-XL's
memory): training at a length is as with train.length at it, evaluation as with the train.length
that was asked for.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posbench import config as schemas
from posbench import introspect
from posbench.config import NOT_ARGUMENTS, SpeedCommand
from posbench.errors import UserError
from posbench.explain import nearest

OF_ENCODING = re.compile(r"[+~]*encoding[.=@]")  # an override on the command line


@dataclasses.dataclass(frozen=True)
class Subject:
    """One encoding under a name; at(mode, length) is its typed configuration."""

    name: str
    at: Callable[[str, int], SpeedCommand]


def subject(name: str, node: DictConfig) -> Subject:
    """From Hydra's composed node."""

    def at(mode: str, length: int) -> SpeedCommand:
        copied = node.copy()
        if mode == "train":
            copied.train.length = length
        return schemas.load(copied, SpeedCommand)

    return Subject(name, at)


def baseline(name: str) -> Subject:
    """Inside a command: the same command line with this encoding. Raises UserError."""
    if name not in (known := introspect.names()):
        hint = nearest(name, known)
        raise UserError(f"speed.baseline={name}: there is no such encoding{hint}")
    asked = [word for word in HydraConfig.get().overrides.task if not OF_ENCODING.match(word)]
    words = [*asked, f"encoding={name}"]
    loader = GlobalHydra.instance().config_loader()
    node = loader.load_configuration("speed", words, run_mode=RunMode.RUN)
    OmegaConf.set_struct(node, False)
    node.pop("hydra")
    node.run.name = name
    return subject(name, node)


def same(one: SpeedCommand, other: SpeedCommand) -> bool:
    """Whether both have the same encoding, set alike."""
    mine, its = (
        {key: value for key, value in each.encoding.items() if key not in NOT_ARGUMENTS}
        for each in (one, other)
    )
    return mine == its
