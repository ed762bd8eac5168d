"""What the charts of a report show, as data: lines of points over an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Comparison, ProbeTable, Row
from posbench.report.writing.html.wording import percent
from posbench.report.writing.wording import ends, number

CROWDED = 12  # with more lines, only the band of the line under the pointer is seen


@dataclass(frozen=True)
class Point:
    x: float
    y: Interval
    says: str  # e.g. "512 tokens: 42.00 (41.58 – 42.42)"


@dataclass(frozen=True)
class Line:
    """One encoding's points."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    """kind is what its file is called after; a chart without lines is not drawn."""

    kind: str
    title: str
    about: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_ticks: tuple[int, ...] = ()  # else round numbers
    trained: int | None = None  # the training length, where x is a length
    level: tuple[float, str] | None = None  # a value of y to be seen, and its name
    y_range: tuple[float, float] | None = None  # else that of the points
    x_log: bool = True
    joined: bool = True
    y_text: Callable[[float], str] | None = None


def of_comparison(comparison: Comparison) -> list[Chart]:
    charts = [extrapolation(comparison), by_context(comparison), cost(comparison)]
    return [chart for chart in charts if chart.lines]


def extrapolation(comparison: Comparison) -> Chart:
    """Perplexity by length."""
    lines = [
        Line(row.name, tuple(_at_length(length, row) for length in comparison.lengths))
        for row in comparison.rows
    ]
    drawn = _drawn(lines)
    crowded = "; point at a line to see its own" if len(drawn) > CROWDED else ""
    return Chart(
        kind="extrapolation",
        title="Perplexity by length",
        about=f"Bands are {comparison.level:.0%} intervals of the change since training{crowded}.",
        x_label="length, tokens",
        y_label="perplexity",
        lines=drawn,
        x_ticks=comparison.lengths,
        trained=comparison.train_length,
    )


def _at_length(length: int, row: Row) -> Point:
    cell = row.cells.get(length)
    if cell is None or cell.perplexity is None:
        return Point(length, Interval(math.nan), "")
    shown = cell.bend or cell.perplexity
    return Point(length, shown, f"{length:,} tokens: {_said(cell.perplexity)}")


def by_context(comparison: Comparison) -> Chart:
    """Mean loss by how many tokens came before, at the longest length."""
    lines = [
        Line(
            row.name,
            tuple(
                Point(
                    math.sqrt(max(bin.first, 0.5) * max(bin.last, 0.5)),
                    bin.loss,
                    f"{bin.first:,} – {bin.last:,} tokens of context: {_said(bin.loss, 3)}"
                    f", {bin.tokens:,} targets",
                )
                for bin in row.by_context
            ),
        )
        for row in comparison.rows
    ]
    last = max((b.last for row in comparison.rows for b in row.by_context), default=1)
    return Chart(
        kind="context",
        title="Loss by context",
        about="Mean loss of the tokens with so much context, in the longest texts scored.",
        x_label="context, tokens",
        y_label="loss, nats",
        lines=_drawn(lines),
        x_ticks=tuple(2**n for n in range(last.bit_length() + 1)),
        trained=comparison.train_length,
    )


def cost(comparison: Comparison) -> Chart:
    """Ratio at the longest length by speed of training, or else of evaluation."""
    longest = max(comparison.lengths, default=0)
    trains = any(row.cost.train_tokens_per_second for row in comparison.rows)
    lines = []
    for row in comparison.rows:
        speed = row.cost.train_tokens_per_second if trains else row.cost.eval_tokens_per_second
        ratio = row.cells[longest].ratio if longest in row.cells else None
        if speed and ratio is not None:
            says = f"{speed:,.0f} tokens/s, ×{_said(ratio, 3)}"
            lines.append(Line(row.name, (Point(speed, ratio, says),)))
    drawn = _drawn(lines)
    speeds = [line.points[0].x for line in drawn]
    return Chart(
        kind="cost",
        title="Cost against extrapolation",
        about="The lower right is best. The dashed line: as good as at the training length.",
        x_label=f"{'training' if trains else 'evaluation'} speed, tokens/s",
        y_label=f"ratio of the perplexity at {longest:,} to that at {comparison.train_length:,}",
        lines=drawn,
        level=(1.0, ""),
        x_log=bool(speeds) and max(speeds) / min(speeds) > 3,
        joined=False,
    )


def of_probe(table: ProbeTable) -> list[Chart]:
    """Recall by distance; empty where nothing was recalled or missed."""
    lines = [
        Line(
            row.name,
            tuple(
                Point(distance, recall, f"{distance:,} tokens away: {_share(recall)}")
                for distance, recall in sorted(row.recall.items())
            ),
        )
        for row in table.rows
    ]
    drawn = _drawn(lines)
    chart = Chart(
        kind=table.probe,
        title=f"Recall by distance: {table.probe}",
        about="The dashed line is what guessing gets.",
        x_label="distance, tokens",
        y_label="recalled",
        lines=drawn,
        x_ticks=table.distances,
        trained=table.train_length,
        level=(table.chance, f"chance, {percent(table.chance)}"),
        y_range=(0.0, 1.0),
        y_text=lambda value: f"{value:.0%}",
    )
    return [chart] if drawn else []


def _drawn(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines with their finite points alone; lines without any are left out."""
    kept = [
        Line(line.name, tuple(p for p in line.points if math.isfinite(p.y.value)))
        for line in lines
    ]
    return tuple(line for line in kept if line.points)


def _said(interval: Interval, places: int = 2) -> str:
    span = ends(interval, places)
    return number(interval.value, places) + (f" ({span})" if span else "")


def _share(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return percent(interval.value)
    return f"{percent(interval.value)} ({percent(interval.low)} – {percent(interval.high)})"
