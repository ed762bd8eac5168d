"""posbench encodings: which cells of the attention each encoding fills, from the code itself."""

from __future__ import annotations

import inspect
import re

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from posbench import attention, build
from posbench import config as schemas
from posbench.encodings import Encoding
from posbench.entry import command
from posbench.report.writers import PLAIN

CELLS = {
    "embed": "in",
    "rotate": "rot",
    "distance_bias": "p→p",
    "position_bias": "i,j",
    "distance_keys": "c→p",
    "distance_queries": "p→c",
    "distance_values": "val",
    "scores": "any",
}
LEGEND = """\
● filled. in: added to the input; rot: q and k rotated, or a content bias; p→p: bias by distance;
i,j: bias by both positions; c→p: content to position; p→c: position to content; val: values;
any: a function of the logits. memory: tokens of the segment before; longest: window in tokens"""


@command("train")
def main(node: DictConfig) -> None:
    loader = GlobalHydra.instance().config_loader()
    names = loader.get_group_options("encoding")
    table = Table(title=f"Encodings, at {_size(node)}", caption=LEGEND, **PLAIN)
    columns = [*CELLS.values(), "memory", "params", "kernel", "longest", "paper (arXiv)"]
    for header in ("encoding", *columns):
        left = header in ("encoding", "paper (arXiv)")
        table.add_column(header, justify="left" if left else "center", no_wrap=True)
    for name in names:
        words = [*HydraConfig.get().overrides.task, f"encoding={name}"]
        config = loader.load_configuration("train", words, run_mode=RunMode.RUN)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        config.run.name = name
        typed = schemas.load(config, schemas.Config)
        table.add_row(name, *_cells(build.encoding(typed.encoding, build.shape(typed))))
    Console().print(table)


def _cells(encoding: Encoding) -> list[str]:
    filled = ["●" if encoding.fills(cell) else "" for cell in CELLS]
    paper = re.search(r"arXiv (\d+\.\d+)", inspect.getmodule(type(encoding)).__doc__ or "")
    return [
        *filled,
        str(encoding.memory_length or ""),
        f"{sum(p.numel() for p in encoding.parameters()):,}",
        attention.choose(encoding),
        str(encoding.max_length or "any"),
        paper[1] if paper else "",
    ]


def _size(node: DictConfig) -> str:
    return f"width {node.model.width}, {node.model.layers} layers, {node.model.heads} heads"
