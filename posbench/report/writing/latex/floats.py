"""One table as LaTeX floats that fit a page. They need booktabs and nothing else."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from posbench.report.writing.latex.escape import comment, escape, numbered, width

ROOM, TALL = 118, 60  # characters of a line, lines of a table: more of either is a further table
WIDE = 32  # characters: a wider column breaks its lines


@dataclass(frozen=True)
class Table:
    """Cells are LaTeX; title, caption and notes are text.

    left: the columns that are text, beside the first.
    """

    title: str
    headers: Sequence[Sequence[str]]  # lines of them
    rows: Sequence[Sequence[str]]
    caption: str
    notes: Sequence[str] = ()
    left: frozenset[int] = frozenset()


def floats(table: Table, labels: Counter[str]) -> str:
    """The table, in parts where it is too large for a page; its notes below the last.

    labels: how often each LaTeX label was used so far, so that no two are the same.
    """
    parts = list(_parts(table))
    made = []
    for place, part in enumerate(parts, 1):
        kept = replace(part, notes=table.notes if place == len(parts) else ())
        made.append(
            _float(kept, "" if place == 1 else " (continued)", _label(table.title, labels))
        )
    return "\n".join(made)


def _parts(table: Table) -> Iterator[Table]:
    columns = _columns(table)
    for rows in _pages(table.rows):
        for block in columns:
            yield replace(
                table,
                headers=[[line[i] for i in block] for line in table.headers],
                rows=[[row[i] for i in block] for row in rows],
                left=frozenset(place for place, i in enumerate(block) if i in table.left),
            )


def _pages(rows: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """The rows in as many parts as pages are needed."""
    pages: list[list[Sequence[str]]] = [[]]
    for row in rows:
        if pages[-1] and _lines([*pages[-1], row]) > TALL:
            pages.append([])
        pages[-1].append(row)
    return pages


def _lines(rows: Sequence[Sequence[str]]) -> int:
    """How many lines rows take."""
    return sum(math.ceil(max(1, *map(width, row)) / WIDE) for row in rows)


def _columns(table: Table) -> list[list[int]]:
    """The indices of the columns in each part; the first column is in all."""
    widths = [2 + min(WIDE, most) for most in _widths(table)]
    blocks = [[0]]
    for column in range(1, len(widths)):
        taken = sum(widths[i] for i in blocks[-1])
        if len(blocks[-1]) > 1 and taken + widths[column] > ROOM:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def _widths(table: Table) -> list[int]:
    return [max(map(width, column)) for column in zip(*table.headers, *table.rows, strict=True)]


def _label(title: str, labels: Counter[str]) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "table"
    labels[label] += 1
    return f"tab:{label}" + (f":{labels[label]}" if labels[label] > 1 else "")


def _float(table: Table, continued: str, label: str) -> str:
    caption = escape(f"{table.title}{continued}. {table.caption}")
    lines = [r"\begin{table}[htbp]", r"\centering\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{caption}}}", rf"\label{{{label}}}", *_tabular(table)]
    told = sum(math.ceil(len(note) / ROOM) for note in table.notes)
    below = _lines(table.rows) + told <= TALL  # or as text after it, which pages can break
    named = table.notes if below else [f"Notes to {table.title}:", *table.notes]
    notes = [r"\par\smallskip", *_notes(named)] if table.notes else []
    lines += [*(notes if below else []), r"\end{table}", *([] if below else notes)]
    start = [comment(f"--- begin table: {table.title}{continued}"), *_numbers("\n".join(lines))]
    return "\n".join([*start, *lines, "% --- end table", ""])


def _numbers(latex: str) -> list[str]:
    """A comment that lists the characters printed by their numbers; empty if none is."""
    told = " ".join(f"U+{ord(character):04X} {character}" for character in numbered(latex))
    return [comment(f"by number, as pdfTeX has no letter for them: {told}")] if told else []


def _tabular(table: Table) -> list[str]:
    wide = [most > WIDE for most in _widths(table)]
    kinds = [
        rf"p{{{0.5 * WIDE:g}em}}" if broken else "l" if place == 0 or place in table.left else "r"
        for place, broken in enumerate(wide)
    ]
    lines = [rf"\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}", r"\toprule"]
    lines += [_row(line, wide) for line in table.headers]
    lines += [r"\midrule", *(_row(row, wide) for row in table.rows)]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _row(cells: Sequence[str], wide: Sequence[bool]) -> str:
    broken = [wraps and width(cell) > WIDE / 2 for cell, wraps in zip(cells, wide, strict=True)]
    shown = [
        rf"\raggedright{{}} {cell}" if wraps else cell
        for cell, wraps in zip(cells, broken, strict=True)
    ]
    # \raggedright takes the \\ of its cell for itself
    return " & ".join(shown) + (r" \tabularnewline" if broken[-1] else r" \\")


def _notes(notes: Sequence[str]) -> list[str]:
    lines = [rf"\noindent {escape(note)}\par" for note in notes]
    return [r"{\footnotesize\raggedright", *lines, "}"]
