"""posbench describe: one encoding as a lecture would show it, on the terminal and as figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench.attention.costs import costs
from posbench.claims import properties_of
from posbench.config import DescribeCommand
from posbench.describe import terminal
from posbench.describe.parameters import parameters
from posbench.describe.probe import Picture, pictures
from posbench.encodings import Encoding
from posbench.errors import UserError
from posbench.hydra_app.command import command
from posbench.model import from_config
from posbench.runs.checks import check

LONGEST_MATRIX = 36  # tokens: two characters each on 80 columns


@command("describe")
def main(node: DictConfig) -> None:
    describe(schemas.load(node, DescribeCommand), terminal.console())


def describe(config: DescribeCommand, console: Console) -> None:
    """Print all sections, and write the figures where asked for. Raises UserError."""
    check(config)
    shape, make = from_config.shape(config), partial(from_config.encoding, config.encoding)
    encoding, length = make(shape).eval(), config.describe.length
    _check(config, encoding)
    drawn = pictures(config)
    show = console.print

    show(terminal.title(config.run.name, encoding))
    show(terminal.cells(encoding, config.model.attention))
    show(terminal.parameters(parameters(make, shape)))
    show(terminal.costs(costs(encoding, length, config.model.attention), length))
    show(terminal.measuring(config.describe.alike))
    for picture in drawn:
        show(terminal.curves(picture))
        show(terminal.matrix(picture))
    show(terminal.claims(properties_of(config)))
    if config.figures:
        show("written:", *_figures(config, drawn), sep="\n", soft_wrap=True, highlight=False)


def _figures(config: DescribeCommand, drawn: list[Picture]) -> list[Path]:
    from posbench.describe import figures  # matplotlib takes a second to import

    return figures.write(drawn, config.run.name, Path(config.folder), config.describe.alike)


def _check(config: DescribeCommand, encoding: Encoding) -> None:
    """Raise UserError for a window that cannot be shown."""
    asked, most = config.describe, encoding.max_length
    if asked.length < 2:
        raise UserError(f"describe.length={asked.length} must be at least 2")
    if not 2 <= asked.matrix <= LONGEST_MATRIX:
        raise UserError(f"describe.matrix={asked.matrix} must lie in 2 .. {LONGEST_MATRIX}")
    if most is not None and asked.length + encoding.memory_length > most:
        raise UserError(f"describe.length={asked.length}: the encoding has {most} positions")
