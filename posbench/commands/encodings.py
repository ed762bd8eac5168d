"""posbench encodings: which cells of the attention each encoding fills, from the code itself."""

from __future__ import annotations

from omegaconf import DictConfig
from rich.console import Console

from posbench import attention
from posbench.attention import cells
from posbench.encodings import Encoding
from posbench.errors import UserError
from posbench.hydra_app import compose
from posbench.hydra_app.command import command
from posbench.model import from_config
from posbench.terminal.tables import Fitted

HEADERS = {
    "embed": "in",
    "rotate": "rot",
    "distance_bias": "p→p",
    "position_bias": "i,j",
    "distance_keys": "c→p",
    "distance_queries": "p→c",
    "distance_values": "val",
    "decay": "dec",
    "scores": "any",
}
PAPER = "paper (arXiv)"
SIDES = {"causal": "", "both": "●", "both, unpublished": "○"}
LEGEND = """
● filled. in: added to the input; rot: q and k rotated or scaled, or a content bias; p→p: bias by
distance; i,j: bias by both positions; c→p: content to position; p→c: position to content; val:
values; dec: decay by the tokens passed; any: a function of the logits. both: serves masked models,
which see both sides (○ not published in one). memory: tokens of the segment before; longest:
window in tokens"""


@command("train")
def main(node: DictConfig) -> None:
    unfit, rows = list[str](), list[list[str]]()
    for name, config in compose.configs(compose.names()):
        try:
            rows.append([name, *_cells(from_config.encoding_of(config))])
        except UserError as error:
            unfit.append(f"{name}: {error}")
    columns = [
        "encoding",
        *HEADERS.values(),
        "both",
        "memory",
        "params",
        "kernel",
        "longest",
        PAPER,
    ]
    title, left = f"Encodings, at {_size(node)}", ("kernel", PAPER)
    Console().print(
        Fitted(columns, [rows], title, " ".join(LEGEND.split()), left=left), *unfit, sep="\n"
    )


def _cells(encoding: Encoding) -> list[str]:
    kernels = {attention.choose(each.part) for each in cells.served(encoding)}
    return [
        *("●" if cells.fills(encoding, cell) else "" for cell in HEADERS),
        SIDES[encoding.directions],
        str(encoding.memory_length or ""),
        f"{sum(p.numel() for p in encoding.parameters()):,}",
        ", ".join(sorted(kernels)),
        str(encoding.max_length or "any"),
        encoding.paper,
    ]


def _size(node: DictConfig) -> str:
    return f"width {node.model.width}, {node.model.layers} layers, {node.model.heads} heads"
