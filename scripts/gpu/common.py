"""What several parts need: configurations, and leave to take gradients through flex on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from torch.nn.attention import flex_attention as torch_flex

from posbench import config as schemas
from posbench.config import Config, SpeedCommand
from posbench.speed import limits
from posbench.speed import settings as speeds
from posbench.speed.settings import Subject
from scripts.gpu.part import Settings

ROOT = Path(__file__).parents[2]
ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "encoding").glob("*.yaml"))
FIRST = "t5 transformer_xl deberta fire fox alibi local_global randomized_t5 xpos shaw".split()
"""One of each kind: what is most likely to fail, and to be told by its failure."""

TIMED = "nope rope alibi t5 transformer_xl shaw deberta fire fox".split()


def node(command: str, *words: str) -> DictConfig:
    """What Hydra composes for a command."""
    with initialize_config_module("posbench.conf", version_base="1.3"):
        made = compose(command, ["run.name=check", *words])
    OmegaConf.set_struct(made, False)
    return made


def composed(*words: str) -> Config:
    """Of `posbench train`."""
    return schemas.load(node("train", *words), Config)


def timed(name: str, settings: Settings, *words: str) -> Subject:
    """Of `posbench speed encoding=name`."""
    asked = [f"encoding={name}", f"runtime.device={settings.device}", *words]
    return speeds.subject(name, node("speed", *asked))


def compiling(config: SpeedCommand, wanted: bool) -> SpeedCommand:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, compile=wanted))


def shrink(settings: Settings) -> None:
    """A rehearsal measures no limits, only that they can be."""
    if settings.rehearse:
        limits.SIDE, limits.COPIED = {"cpu": 64, "cuda": 64}, 2**10


def allow_gradients(settings: Settings) -> None:
    """On a CPU flex_attention only refuses them; operation by operation it has them."""
    if settings.device == "cpu":
        torch_flex._validate_device = lambda *tensors: None
