"""A report's figures, sized for a column of a paper. Importing this imports matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posbench.errors import UserError
from posbench.machine import files
from posbench.report import FIGURES, THEMES
from posbench.report.comparing.comparison import Comparison, ProbeTable, Report
from posbench.report.writing.figures import curves, styles
from posbench.report.writing.figures.curves import Curve
from posbench.report.writing.figures.styles import Line, Theme, clean

UNTOLD = ("tokenizer", "scored", "commit")  # facts in the file's metadata but not in its note
LONGEST = 120  # bytes of a file's name
Shown = Comparison | ProbeTable
Drawn = tuple[str, Figure, Shown]  # kind, figure, what it shows


def write(
    report: Report, folder: Path, formats: Sequence[str], theme: str = "light"
) -> list[Path]:
    """<experiment>-<kind>[-dark].<format> for each figure that has something to show; the paths.

    The same report gives the same files. Raises UserError for an unknown format or theme.
    """
    for value, known in (*((form, FIGURES) for form in formats), (theme, THEMES)):
        if value not in known:
            raise UserError(f"no figures as {value!r}: choose from {', '.join(known)}")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = styles.THEMES[theme]
    paths: list[Path] = []
    taken: set[str] = set()
    with styles.use(chosen, _text(report)):
        for kind, figure, shown in _figures(report, chosen):
            name = _name(shown.experiment, kind, "" if theme == "light" else f"-{theme}", taken)
            for form in dict.fromkeys(formats):
                path = folder / f"{name}.{form}"
                with files.replacing(path) as temporary:
                    figure.savefig(temporary, format=form, metadata=_metadata(shown, form))
                paths.append(path)
    return paths


def _figures(report: Report, theme: Theme) -> Iterator[Drawn]:
    tables: tuple[Shown, ...] = (*report.comparisons, *report.probes)
    lines = styles.lines((row.name for table in tables for row in table.rows), theme)
    for table in report.comparisons:
        for kind, draw in KINDS.items():
            figure = draw(table, lines, theme)
            if figure is not None:
                yield kind, figure, table
    for probe in report.probes:
        figure = _recall(probe, lines, theme)
        if figure is not None:
            yield f"{probe.probe}-{probe.measure}", figure, probe


CHANGE = "Bands, of the change since the training length"


def _extrapolation(table: Comparison, lines: dict[str, Line], theme: Theme) -> Figure | None:
    """Perplexity by length."""
    found = [
        Curve(row.name, tuple((n, cell.bend or cell.perplexity) for n, cell in row.cells.items()))
        for row in table.rows
    ]
    drawn = _drawn(table, CHANGE, found, lines, theme)
    if drawn is None:
        return None
    figure, axes, shown = drawn
    curves.lengths(axes, table.lengths, table.train_length, theme)
    curves.values(axes, shown)
    axes.set(xlabel="length in tokens", ylabel="perplexity")
    curves.name_ends(axes, shown, lines, theme)
    return figure


def _context(table: Comparison, lines: dict[str, Line], theme: Theme) -> Figure | None:
    """Loss by what came before, at the longest length."""
    shown = [
        Curve(row.name, tuple((math.sqrt(b.first * b.last), b.loss) for b in row.by_context))
        for row in table.rows
        if row.by_context
    ]
    if not shown:
        return None
    last = max(bin.last for row in table.rows for bin in row.by_context)
    names = [curve.name for curve in shown]
    figure, axes = curves.panel(names, lines, _note(table, "Bands", shown, ()))
    curves.draw(axes, shown, lines, theme)
    ticks = [2**power for power in range(last.bit_length())]
    curves.lengths(axes, ticks, table.train_length, theme)
    axes.set(xlabel="context in tokens, in the longest texts scored", ylabel="loss in nats")
    curves.name_ends(axes, shown, lines, theme)
    return figure


def _cost(table: Comparison, lines: dict[str, Line], theme: Theme) -> Figure | None:
    """Ratio at the longest length by speed of training, or else of evaluation."""
    trains = any(row.cost.train_tokens_per_second for row in table.rows)
    longest = max(table.lengths)
    shown = []
    for row in table.rows:
        speed = row.cost.train_tokens_per_second if trains else row.cost.eval_tokens_per_second
        dot = Curve(row.name, ((speed or 0.0, row.cells[longest].ratio),))
        if speed and dot.known:
            shown.append(dot)
    if not shown or longest <= table.train_length:
        return None
    names = [dot.name for dot in shown]
    missing = [row.name for row in table.rows if row.name not in names]
    figure, axes = curves.panel(names, lines, _note(table, "Bars", shown, missing))
    curves.dots(axes, shown, lines)
    curves.speeds(axes, [x for dot in shown for x, _ in dot.known])
    curves.ratios(axes, [y.value for dot in shown for _, y in dot.known], theme)
    kind = "training" if trains else "evaluation"
    axes.set(
        xlabel=f"{kind} speed in tokens per second",
        ylabel=f"perplexity at {longest:,}, relative to {table.train_length:,}",
    )
    curves.name_points(axes, shown, lines, theme)
    return figure


KINDS = {"extrapolation": _extrapolation, "context": _context, "cost": _cost}


def _recall(table: ProbeTable, lines: dict[str, Line], theme: Theme) -> Figure | None:
    found = [
        Curve(row.name, tuple((n, row.recall.get(n)) for n in table.distances))
        for row in table.rows
    ]
    drawn = _drawn(table, "Bands", found, lines, theme)
    if drawn is None:
        return None
    figure, axes, shown = drawn
    curves.lengths(axes, table.distances, table.train_length, theme)
    curves.chance(axes, table.chance, theme)
    axes.set(xlabel="distance in tokens", ylabel=clean(f"{table.probe}, {table.measure}"))
    curves.name_ends(axes, shown, lines, theme)
    return figure


def _drawn(
    table: Shown, spans: str, found: Sequence[Curve], lines: dict[str, Line], theme: Theme
) -> tuple[Figure, Axes, list[Curve]] | None:
    """A panel of the curves that have a number; the others are named in its note."""
    shown = [curve for curve in found if curve.known]
    if not shown:
        return None
    missing = [curve.name for curve in found if not curve.known]
    names = [curve.name for curve in shown]
    figure, axes = curves.panel(names, lines, _note(table, spans, shown, missing))
    curves.draw(axes, shown, lines, theme)
    return figure, axes, shown


def _note(table: Shown, spans: str, shown: Sequence[Curve], missing: Sequence[str]) -> str:
    """The note: what the bands or bars are, which rows have no number, and the caption's facts."""
    level = f"{100 * table.level:g}% " if isinstance(table, Comparison) else ""
    told = [f"{spans}: {level}intervals."] if any(curve.banded for curve in shown) else []
    if cut := [curve.name for curve in shown if curve.cut]:
        told.append(f"No number past ×: {', '.join(cut)}.")
    if missing:
        told.append(f"No number: {', '.join(missing)}.")
    facts = "; ".join(f"{key} {value}" for key, value in table.facts.items() if key not in UNTOLD)
    return clean(" ".join([*told, facts[:1].upper() + facts[1:]]))


def _text(report: Report) -> str:
    """All letters that figures may show."""
    tables: tuple[Shown, ...] = (*report.comparisons, *report.probes)
    told = [text for table in tables for text in (*table.facts, *table.facts.values())]
    names = [row.name for table in tables for row in table.rows]
    return clean(" ".join([*told, *names, *(f"{p.probe} {p.measure}" for p in report.probes)]))


def _name(experiment: str, kind: str, suffix: str, taken: set[str]) -> str:
    """A file name, valid on any system; a number is added where it is taken."""
    safe = re.sub(r"[^\w.+-]+", "_", f"{experiment}-{kind}").lstrip(".-")
    safe = safe.encode()[:LONGEST].decode(errors="ignore")
    name, number = f"{safe}{suffix}", 1
    while name.casefold() in taken:
        number += 1
        name = f"{safe}-{number}{suffix}"
    taken.add(name.casefold())
    return name


def _metadata(table: Shown, form: str) -> dict[str, str | None]:
    """The file's title and caption, and no date: the same figure gives the same file."""
    title, caption = clean(table.title), clean(table.caption)
    if form == "pdf":
        return {"CreationDate": None, "Title": title, "Subject": caption}
    stamp = "Date" if form == "svg" else "Software"
    return {stamp: None, "Title": title, "Description": caption}
