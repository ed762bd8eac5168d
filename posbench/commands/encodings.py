"""posbench encodings: which cells of the attention each encoding fills, from the code itself."""

from __future__ import annotations

import inspect
import re

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from posbench import attention, build
from posbench import config as schemas
from posbench.encodings import Encoding
from posbench.entry import command

CELLS = {
    "embed": "input",
    "rotate": "rotation,\ncontent bias",
    "distance_bias": "pos→pos",
    "position_bias": "pos→pos\n(i, j)",
    "distance_keys": "cont→pos",
    "distance_queries": "pos→cont",
    "distance_values": "values",
    "scores": "scores",
}


@command("train")
def main(node: DictConfig) -> None:
    loader = GlobalHydra.instance().config_loader()
    names = loader.get_group_options("encoding")
    table = Table(title=f"Encodings, at model {_size(node)}", caption="● filled; memory in tokens")
    columns = [*CELLS.values(), "memory", "parameters", "kernel", "longest", "paper"]
    for header in ("encoding", *columns):
        table.add_column(header, justify="left" if header in ("encoding", "paper") else "center")
    for name in names:
        config = loader.load_configuration(
            "train", [f"encoding={name}"], run_mode=hydra.types.RunMode.RUN
        )
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        config.run.name = name
        typed = schemas.load(config, schemas.Config)
        table.add_row(name, *_cells(build.encoding(typed.encoding, build.shape(typed))))
    Console().print(table)


def _cells(encoding: Encoding) -> list[str]:
    filled = ["●" if encoding.fills(cell) else "" for cell in CELLS]
    paper = re.search(r"arXiv \d+\.\d+", inspect.getmodule(type(encoding)).__doc__ or "")
    return [
        *filled,
        str(encoding.memory_length or ""),
        f"{sum(p.numel() for p in encoding.parameters()):,}",
        attention.choose(encoding),
        str(encoding.max_length or "any"),
        paper[0] if paper else "",
    ]


def _size(node: DictConfig) -> str:
    return f"width {node.model.width}, {node.model.layers} layers, {node.model.heads} heads"
