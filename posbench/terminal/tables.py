"""Tables that fit the terminal without breaking a name or a number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PLAIN: Any = {"box": box.SIMPLE, "collapse_padding": True, "pad_edge": False}
TEXT = 60  # columns for a title and a caption, where the table is narrower
WORD = len("transformer_xl_memoryless")  # longer words of prose are paths, and may break
Cell = str | Text
Rows = Sequence[Sequence[Cell]]  # a row without cells ends a section


@dataclass(frozen=True)
class Fitted:
    """A table for console.print: the first variant of its rows that fits the width; else the last
    one without spare columns; else several tables, each with the first column.

    legend: by header, a text above the caption, shown if the column is. spare: prefixes of headers
    whose columns may be left out, in this order. prose: headers of columns that may break between
    words. left: headers of columns aligned at the left, as the first column is. options: of rich's
    Table.
    """

    headers: Sequence[str]
    variants: Sequence[Rows]
    title: str = ""
    caption: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    spare: Sequence[str] = ()
    prose: Collection[str] = ()
    left: Collection[str] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        tables = [Part(self, rows, columns) for rows, columns in self._parts(options.max_width)]
        shown = {self.headers[n] for part in tables for n in part.columns}
        legend = "; ".join(says for header, says in self.legend.items() if header in shown)
        caption = "\n".join(filter(None, (legend, self.caption)))
        made = [part.table(options.max_width) for part in tables]
        widest = max(Measurement.get(console, options, table).maximum for table in made)
        for text, style, parts in ((self.title, "title", made), (caption, "caption", [])):
            if text:
                width = min(max(widest, TEXT), options.max_width)
                told = Text(text, f"table.{style}", justify="center" if widest >= TEXT else "left")
                yield Constrain(told, width)
            yield from parts

    def _parts(self, width: int) -> Iterator[tuple[Rows, list[int]]]:
        shown = list(range(len(self.headers)))
        for rows in self.variants:
            if Part(self, rows, shown).least <= width:
                yield rows, shown
                return
        for less in self.spare:
            shown = [n for n in shown if n == 0 or not self.headers[n].startswith(less)]
            if Part(self, rows, shown).least <= width:
                break
        part = [0]
        for column in shown[1:]:
            if len(part) > 1 and Part(self, rows, [*part, column]).least > width:
                yield rows, part
                part = [0]
            part = [*part, column]
        yield rows, part


@dataclass(frozen=True)
class Part:
    """A part of a Fitted table: some of its columns."""

    whole: Fitted
    rows: Rows
    columns: list[int]

    @property
    def least(self) -> int:
        """The least width in which it can be shown."""
        return self._width([self._narrow(n) for n in self.columns])

    def table(self, width: int) -> Table:
        """As rich's Table; what is left of the width goes to columns of prose and long names."""
        widths, wanted = {n: self._narrow(n) for n in self.columns}, self.columns
        free = width - self.least
        if free < 0:  # one name, as wide as the terminal
            widths[0] = max(widths[0] + free, 8)
        missing = {n: self._wide(n) - widths[n] for n in wanted}
        total = sum(missing.values())
        for n, more in missing.items():
            widths[n] += min(more, max(0, free) * more // max(total, 1))
        made = self._empty()
        for n in wanted:
            left = n == 0 or self.whole.headers[n] in self.whole.left
            made.add_column(
                Text(self.whole.headers[n]),
                justify="left" if left else "right",
                width=widths[n],
                overflow="fold",
            )
        for row in self.rows:
            if row:
                cells = (row[n] if n < len(row) else "" for n in wanted)
                made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
            else:
                made.add_section()
        return made

    def _cells(self, n: int) -> Iterator[str]:
        yield self.whole.headers[n]
        for row in self.rows:
            yield from (str(row[n]).split("\n") if n < len(row) else ())

    def _wide(self, n: int) -> int:
        return max(map(cell_len, self._cells(n)))

    def _narrow(self, n: int) -> int:
        """A column's least width: its widest cell, in prose its longest word."""
        if self.whole.headers[n] not in self.whole.prose:
            return self._wide(n)
        words = (cell_len(word) for cell in self._cells(n) for word in cell.split())
        return min(max(words, default=0), WORD)

    def _empty(self) -> Table:
        return Table(**(PLAIN | self.whole.options))

    def _width(self, widths: Sequence[int]) -> int:
        table = self._empty()
        for width in widths:
            table.add_column(width=width)
        wide = Console(width=10_000)
        return Measurement.get(wide, wide.options, table).maximum


def counts(remarks: Mapping[str, int]) -> str:
    """ "kind: 3, other kind: 1,200", for numbers of remarks by kind."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in remarks.items())


def amount(number: float, step: int) -> str:
    """Three digits and a prefix: 131072 in steps of 1000 -> "131 k"; of 1024 -> "128 K"."""
    prefixes = ["", "k" if step == 1000 else "K", "M", "G", "T", "P"]
    while number >= step and len(prefixes) > 1:
        number, prefixes = number / step, prefixes[1:]
    return f"{number:.0f} {prefixes[0]}" if number >= 100 else f"{number:.3g} {prefixes[0]}"
