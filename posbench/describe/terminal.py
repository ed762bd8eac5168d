"""The sections of `posbench describe`, for a terminal of 80 columns or more."""

from __future__ import annotations

import inspect
import os

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posbench import attention
from posbench.attention.cells import CELLS, Served, served
from posbench.attention.costs import Cost
from posbench.claims import Verdict
from posbench.describe import captions, characters
from posbench.describe.parameters import Parameter
from posbench.describe.probe import Picture
from posbench.encodings import Encoding
from posbench.terminal.tables import PLAIN, amount

COLUMNS = 48  # of a curve
COUNTED = (
    "One window of {length} tokens, forward, all layers; memory included. A multiply-add is 2 "
    "operations, any other result 1; every pair of query and key counts, masked or not. Bytes: "
    "tables, masks and rotated copies of one layer in float32, as the kernel holds them and "
    "with all pairs written out."
)


def console() -> Console:
    """A console without any escape code where NO_COLOR is set (rich itself keeps bold type)."""
    return Console(color_system=None if os.environ.get("NO_COLOR") else "auto")


def title(name: str, encoding: Encoding) -> RenderableType:
    """The encoding's name, paper and formula; for a mix, those of its parts too."""
    summary = (inspect.getdoc(type(encoding)) or "").partition("\n\n")[0]
    kinds = {type(each.part): each.part for each in served(encoding)}  # a mix may repeat one
    parts = [_paper(part) for kind, part in kinds.items() if kind is not type(encoding)]
    return Group(Text(f"{name}: {summary}\n", style="bold"), _paper(encoding), *parts)


def _paper(encoding: Encoding) -> RenderableType:
    """The first paragraph of the class's module, its paper, and its formula.

    Without a formula, the rest of the module's docstring.
    """
    kind = type(encoding)
    first, _, rest = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n\n")
    link = f"\nhttps://arxiv.org/abs/{encoding.paper}" if encoding.paper else ""
    missing = "".join(_whence(kind, name) for name in ("paper", "formula"))
    prose = "\n\n".join(" ".join(paragraph.split()) for paragraph in rest.split("\n\n"))
    shown = inspect.cleandoc(encoding.formula) or prose
    return Group(Text((first + link + missing).lstrip()), _below(Text(shown), indent=4))


def _whence(kind: type[Encoding], name: str) -> str:
    """A line that says so where a class lacks or inherits its `paper` or `formula`."""
    given = (each for each in kind.__mro__ if name in vars(each) and each is not Encoding)
    source = next(given, None)
    if source is None:
        return f"\n{name}: not given; it is the attribute `{name}` of class {kind.__name__}"
    if source.__module__ == kind.__module__:
        return ""
    return f"\n{name}: that of {source.__name__}, which {kind.__name__} inherits from"


def _whose(each: Served) -> Text:
    layers = "layers" if len(each.layers) > 1 else "layer"
    return Text(f"{each.name}, {layers} {', '.join(map(str, each.layers))}", style="bold")


def cells(encoding: Encoding, requested: str) -> RenderableType:
    """The filled cells and other properties of an encoding, or of each part of a mix.

    requested: model.attention.
    """
    return Group(
        *(
            item
            for each in served(encoding)
            for item in (_whose(each), _filled(each, attention.choose(each.part, requested)))
        )
    )


def _filled(each: Served, kernel: str) -> RenderableType:
    part, usual = each.part, each.part.shape.head_width**-0.5
    table = Table.grid(padding=(0, 2))
    for cell in each.cells:
        table.add_row(cell, CELLS[cell])
    memory = f"{part.memory_length} tokens of the segment before" if part.memory_length else "none"
    table.add_row("memory", memory)
    window = f"the last {part.window} keys" if part.window else "all keys"
    if part.window and part.shape.two_sided:
        window = f"{part.window - 1} keys on either side"
    table.add_row("window", window)
    table.add_row("longest", f"{part.max_length} tokens" if part.max_length else "any length")
    table.add_row("scale", f"{part.scale:.4g}" + (" = 1/sqrt(d)" if part.scale == usual else ""))
    table.add_row("kernel", kernel)
    return Padding(table, (0, 0, 1, 2), expand=False)


def parameters(rows: list[Parameter]) -> RenderableType:
    """A table of tensors, their axes, and the layers and heads that share them."""
    heading = Text(f"Parameters: {sum(row.count for row in rows):,}", style="bold")
    if not rows:
        return Group(heading, "")
    table = Table(**PLAIN)
    for header in ("name", "shape", "count", "layers", "heads"):
        table.add_column(header, justify="right" if header == "count" else "left")
    for row in rows:
        table.add_row(row.name, ", ".join(row.axes), f"{row.count:,}", row.layers, row.heads)
    return Group(heading, table, Text("N layers, H heads, D width, d = D/H head width\n"))


def costs(rows: list[Cost], length: int) -> RenderableType:
    """A table of operations and bytes; the first row is plain attention."""
    table = Table(**PLAIN)
    for header in ("", "operations", "of plain", "bytes", "bytes, [T, S]"):
        table.add_column(Text(header), justify="right" if header else "left")
    for row in rows:
        share = f"{row.operations / rows[0].operations:.2%}"
        numbers = (amount(row.operations, 1000), share, *map(_bytes, (row.running, row.written)))
        table.add_row(row.what, *numbers)
    return Group(Text("Cost", style="bold"), table, Text(f"{COUNTED.format(length=length)}\n"))


def _bytes(number: int) -> str:
    return f"{amount(number, 1024)}{'i' if number >= 1024 else ''}B"


def measuring(alike: bool) -> RenderableType:
    """A heading that says which tokens the pictures below are measured on."""
    heading = Text("Attention in an untrained model", style="bold")
    return Group(heading, Text(f"{captions.contents(alike)}\n"))


def curves(picture: Picture) -> RenderableType:
    """A line for each head, for keys ahead another, all on one scale; columns of far distances
    hold more of them."""
    starts = characters.bins(picture.curves.shape[1], COLUMNS)
    named = [(f"head {head}", curve) for head, curve in enumerate(picture.curves)]
    if picture.ahead is not None:
        named += [(f"head {head}, ahead", curve) for head, curve in enumerate(picture.ahead)]
    lines = characters.bars([characters.binned(curve, starts) for _, curve in named])
    table = Table.grid(padding=(0, 2))
    for (name, curve), line in zip(named, lines, strict=True):
        finite = curve[curve.isfinite()]
        ends = f"{float(finite.min()):+z.2f} … {float(finite.max()):+z.2f}"
        table.add_row(name, line, ends)
    table.add_row("distance", characters.ruler(starts))
    heading = Text(
        f"{captions.heading(picture)}: {captions.unit(picture)} by distance", style="bold"
    )
    return Group(heading, Text(captions.curve(picture)), _below(table))


def matrix(picture: Picture) -> RenderableType:
    """The attention weights of a short window, mean of heads."""
    lines, least = characters.shades(picture.relative.mean(0))
    drawn = "\n".join(f"{number:>2} {line}" for number, line in enumerate(lines))
    _, *steps = (f"{s} {share:.3g}" for s, share in zip(characters.SHADES, least, strict=True))
    heading = Text(f"{captions.heading(picture)}: attention weights, mean of heads", style="bold")
    told = f"{captions.RELATIVE}: from {', '.join(reversed(steps))}, {characters.SHADES[0]} less."
    return Group(heading, Text(told), _below(Text(drawn)))


def claims(verdicts: list[Verdict]) -> RenderableType:
    """What the documents claim of the encoding, and whether it holds; empty without claims."""
    if not verdicts:
        return Text(end="")
    table = Table.grid(padding=(0, 2))
    for each in verdicts:
        table.add_row(str(each.number), each.verdict, Text(f"{each.claim}\n{each.figure}"))
    return Group(Text("Claims, tried on this encoding", style="bold"), _below(table))


def _below(item: RenderableType, indent: int = 0) -> Padding:
    """An item between two empty lines, no wider than its content."""
    return Padding(item, (1, 0, 1, indent), expand=False)
