"""What an encoding is, read off the code itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from posbench import config as schemas
from posbench.config import Config
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


def configs(names: list[str]) -> Iterator[tuple[str, Config]]:
    """Inside a command: its configuration with each of these encodings in turn, typed."""
    loader = GlobalHydra.instance().config_loader()
    for name in names:
        words = [*HydraConfig.get().overrides.task, f"encoding={name}"]
        node = loader.load_configuration("train", words, run_mode=RunMode.RUN)
        OmegaConf.set_struct(node, False)
        node.pop("hydra")
        node.run.name = name
        yield name, schemas.load(node, Config)


def names() -> list[str]:
    """Inside a command: every encoding of the config group, the user's own included."""
    return GlobalHydra.instance().config_loader().get_group_options("encoding")


def serving(encoding: Encoding) -> dict[Encoding, list[int]]:
    """The encodings that serve its layers, itself or those of a mix, each with its layers."""
    layers: dict[Encoding, list[int]] = {}
    for layer in range(encoding.shape.layers):
        layers.setdefault(encoding.at(layer)[0], []).append(layer)
    return layers


def parts(encoding: Encoding) -> list[Encoding]:
    """The encodings that serve its layers, the first layer's first."""
    return list(serving(encoding))


def fills(encoding: Encoding, cell: str) -> bool:
    """Whether this instance, as it is set, says anything in a cell."""
    return any(_fills(part, cell) for part in parts(encoding))


def _fills(encoding: Encoding, cell: str) -> bool:
    if cell not in BY_DISTANCE:
        return encoding.fills(cell)
    return getattr(encoding, cell)(torch.zeros(1, dtype=torch.long), 0) is not None


def documentation(encoding: Encoding) -> str:
    """The docstring of the module that defines its class."""
    return inspect.getdoc(inspect.getmodule(type(encoding))) or ""


def paper(encoding: Encoding) -> str | None:
    """The arXiv number of its paper: the first one in the module's docstring after "arXiv ".

    Papers that are merely spoken of are cited with a colon, arXiv:2504.08719.
    """
    found = re.search(r"arXiv (\d+\.\d+)", documentation(encoding))
    return found[1] if found else None


def formula(encoding: Encoding) -> str:
    """The first indented block of the docstring of its module, or of those it inherits from."""
    classes = [kind for kind in type(encoding).__mro__ if issubclass(kind, Encoding)]
    own = (inspect.getmodule(kind) for kind in classes if kind is not Encoding)
    return next(filter(None, (_block(inspect.getdoc(module) or "") for module in own)), "")


def _block(text: str) -> str:
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("    ")), len(lines))
    block: list[str] = []
    for line in lines[start:]:
        if line.strip() and not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block).strip()
