"""The verdicts as a table, on the terminal and in Markdown."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.text import Text

from posbench.claims.verdict import FAILS, HOLDS, NOT_MEASURED, Verdict
from posbench.terminal.streams import printable
from posbench.terminal.tables import Fitted

TITLE = "What the documents claim, and what holds"
LEGEND = """\
property: tried now, in float64, on small random contents; measured: perplexity of the same tokens
at every length, from finished runs; ×: ratio to the value at the training length"""
STYLES = {HOLDS: "green", FAILS: "red", NOT_MEASURED: "dim"}
HEADERS = ("", "the documents", "kind", "verdict", "what it rests on")


def in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """By the claim's number, properties before measurements."""
    return sorted(verdicts, key=lambda verdict: verdict.number)


def terminal(verdicts: Sequence[Verdict]) -> Fitted:
    """The verdicts as a table, a row for each part of a claim."""
    rows, before = list[list[str | Text]](), None
    for verdict in verdicts:
        figure = Text(verdict.figure)
        if verdict.runs:
            figure.append(f" ({printable(_below(verdict.runs))})", style="dim")
        number = "" if verdict.number == before else str(verdict.number)
        shown = Text(verdict.verdict, style=STYLES[verdict.verdict])
        rows.append([number, verdict.claim, verdict.kind, shown, figure])
        before = verdict.number
    caption, prose = f"{LEGEND}\n{_counts(verdicts)}", (HEADERS[1], HEADERS[4])
    return Fitted(HEADERS, [rows], TITLE, caption, spare=("kind",), prose=prose, left=HEADERS)


def markdown(verdicts: Sequence[Verdict]) -> str:
    """A table that GitHub renders, with every run's folder."""
    lines = [f"### {TITLE}", "", _line([*HEADERS, "runs"]), "|---:" + "|---" * 5 + "|"]
    for verdict in verdicts:
        cells = [str(verdict.number), verdict.claim, verdict.kind, verdict.verdict, verdict.figure]
        lines.append(_line([*cells, ", ".join(verdict.runs)]))
    legend = " ".join(LEGEND.split())
    return "\n".join([*lines, "", f"{legend}. {_counts(verdicts)}.", ""])


def _counts(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    return ", ".join(f"{word}: {counts[word]}" for word in STYLES if counts[word])


def _below(folders: Sequence[str]) -> str:
    if len(folders) == 1:
        return folders[0]
    return f"{len(folders)} runs below {os.path.commonpath(folders)}"


def _line(cells: Sequence[str]) -> str:
    """Text from a run must not break the table; what is code in it stays so."""
    escaped = (printable(cell).replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(escaped)} |"
