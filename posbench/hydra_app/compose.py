"""Inside a command: its configuration composed once more, with another encoding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posbench import config as schemas
from posbench.config import Config

OF_ENCODING = re.compile(r"[+~]*encoding[.=@]")  # an override on the command line


def names() -> list[str]:
    """Every encoding of the config group, the user's own included."""
    return GlobalHydra.instance().config_loader().get_group_options("encoding")


def configs(names: Sequence[str]) -> Iterator[tuple[str, Config]]:
    """The command's configuration with each of these encodings in turn, typed."""
    for name in names:
        yield name, schemas.load(_composed("train", _words(), name), Config)


def with_default(config_name: str, name: str) -> DictConfig:
    """The command's configuration with an encoding as its yaml has it: what the command line says
    of the command's own encoding is left out."""
    words = [word for word in _words() if not OF_ENCODING.match(word)]
    return _composed(config_name, words, name)


def _words() -> list[str]:
    return list(HydraConfig.get().overrides.task)


def _composed(config_name: str, words: Sequence[str], name: str) -> DictConfig:
    loader = GlobalHydra.instance().config_loader()
    asked = [*words, f"encoding={name}"]
    node = loader.load_configuration(config_name, asked, run_mode=RunMode.RUN)
    OmegaConf.set_struct(node, False)
    node.pop("hydra")
    node.run.name = name
    return node
