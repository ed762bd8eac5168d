"""The measurements as a table, for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from posbench.config import SpeedConfig
from posbench.speed.measure import Cell, Side
from posbench.speed.rounds import Rounds
from posbench.terminal.tables import Cell as Shown
from posbench.terminal.tables import Fitted, amount

NONE = "–"
HEADERS = ("tokens/s", "×", "MiB", "×", "FLOP", "bytes", "of mm", "copy")
SPARE = ("copy", "bytes", "of mm", "FLOP")  # left out first where a terminal is narrow
LEGEND = (
    "×: to {baseline}, measured in turn with each in one process. MiB: peak memory, model and "
    "optimizer included. FLOP, bytes: the least a token takes, by formula; of mm, copy: of these "
    "done a second, as a share of a large matrix product's and a large copy's rate here. "
    "Medians of {rounds}, ± half the interquartile range. bold: best of its group."
)

Line = tuple[Cell, Side]
Groups = dict[tuple[str, int], list[Line]]


def show(
    cells: Sequence[Cell], asked: SpeedConfig, title: str, console: Console, beside: bool = True
) -> None:
    """Print the table, and below it the reason for each missing number.

    beside: whether the baseline has rows of its own.
    """
    found = groups(cells, beside)
    console.print(table(found, asked, title))
    for (mode, length), lines in found.items():
        for _, side in lines:
            if side.reason is not None:
                said = f"{side.name}, {mode} {length:,}: {side.reason}"
                console.print(said, style="dim", markup=False, highlight=False)


def groups(cells: Sequence[Cell], beside: bool) -> Groups:
    """Rows by mode and length, in the order of measurement."""
    found: Groups = {}
    for cell in cells:
        lines = found.setdefault((cell.mode, cell.length), [])
        lines += [(cell, side) for side in (cell.sides if beside else [cell.encoding])]
    return found


def table(found: Groups, asked: SpeedConfig, title: str) -> Fitted:
    rounds = counted(asked.rounds, "round")
    caption = LEGEND.format(baseline=asked.baseline, rounds=rounds)
    rows = list[Sequence[Shown]]()
    for (mode, length), lines in found.items():
        rows.append([Text(f"{mode} {length:,}", style="dim")])
        fastest = best(lines, lambda cell, side: _median(cell.speed_ratio(side)), max)
        smallest = best(lines, lambda cell, side: cell.memory_ratio(side), min)
        for number, (cell, side) in enumerate(lines):
            rows.append(_row(cell, side, number == fastest, number == smallest))
        rows.append([])
    return Fitted(
        ["", *HEADERS],
        [rows],
        title,
        caption,
        spare=SPARE,
        prose=HEADERS[:1],  # a reason may stand there
        options={"padding": 0},
    )


def best(
    lines: list[Line],
    value: Callable[[Cell, Side], float | None],
    choose: Callable[..., tuple[float, int]],
) -> int | None:
    """The index of the row with the highest (choose=max) or lowest value; None with under two."""
    values = [(value(*line), number) for number, line in enumerate(lines)]
    known = [(found, number) for found, number in values if found is not None]
    return choose(known)[1] if len(known) > 1 else None


def _row(cell: Cell, side: Side, fastest: bool, smallest: bool) -> list[Text]:
    speed, memory = ("bold" if each else "" for each in (fastest, smallest))
    used, least, ratio = side.memory, side.cost, cell.memory_ratio(side)
    return [
        Text(side.name),
        _rates(side, speed),
        Text(_ratio(cell.speed_ratio(side)), style=speed),
        Text(NONE if used is None else f"{used.used / 2**20:,.1f}", style=memory),
        Text(_number(ratio), style=memory),
        Text(NONE if least is None else _by_token(least.operations, cell)),
        Text(NONE if least is None else _by_token(least.bytes, cell)),
        Text(_share(cell.share_of_matmul(side))),
        Text(_share(cell.share_of_copy(side))),
    ]


def _rates(side: Side, style: str) -> Text:
    """Tokens/s, or the first words of the reason why there are none."""
    if side.rates is None:
        words = (side.reason or NONE).partition(":")[0].partition(" (")[0]
        return Text(words, style="dim")
    spread, median = side.rates.spread, side.rates.median
    told = "" if spread is None else f" ±{spread / median:.1%}"
    return Text(f"{median:,.0f}{told}", style=style)


def _ratio(ratio: Rounds | None) -> str:
    if ratio is None:
        return NONE
    if set(ratio.each) == {1.0}:  # the baseline's own
        return "1"
    told = "" if ratio.spread is None else f" ±{ratio.spread:.2f}"
    return f"{ratio.median:.2f}{told}"


def _number(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}"


def _share(share: Rounds | None) -> str:
    return NONE if share is None else f"{share.median:.0%}"


def _by_token(number: int, cell: Cell) -> str:
    return amount(number / cell.tokens, 1000)


def _median(rounds: Rounds | None) -> float | None:
    return None if rounds is None else rounds.median


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
