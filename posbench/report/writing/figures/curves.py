"""Curves, points and axes of a report's figures. Importing this imports matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from posbench.evaluation.statistics import Interval
from posbench.report.writing.figures import place_labels
from posbench.report.writing.figures.styles import SMALL, TINY, WIDTH, Line, Theme

HEIGHT = 3.0  # inches, of the panel
DIRECT = 12  # more names than this stand in a legend
NOTE = 112  # characters of a line of notes
WIDE = 3  # values that differ by more than this factor are drawn on a logarithmic axis
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Curve:
    name: str
    points: tuple[tuple[float, Interval | None], ...]  # None: a gap

    @property
    def known(self) -> list[tuple[float, Interval]]:
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y.value)]

    @property
    def banded(self) -> bool:
        return any(y.low is not None for _, y in self.known)

    @property
    def cut(self) -> bool:
        """Whether the curve's last points have no number."""
        return self.known[-1][0] < self.points[-1][0]


def panel(names: Sequence[str], lines: dict[str, Line], note: str) -> tuple[Figure, Axes]:
    """Axes, a legend below where names are many, and a note below that."""
    legend = names if len(names) > DIRECT else ()
    columns = max(1, min(4, 100 // (6 + max(map(len, names)))))
    told = place_labels.wrap(note, NOTE)
    below = 0.14 + 0.115 * (told.count("\n") + 1)
    middle = 0.1 + 0.14 * math.ceil(len(legend) / columns) if legend else 0.0
    height = HEIGHT + middle + below
    figure = Figure((WIDTH, height), dpi=200)
    figure.text(0.012, (below - 0.08) / height, told, fontsize=TINY, va="top", linespacing=1.25)
    if legend:
        figure.legend(
            [handle(lines[name]) for name in legend],
            [place_labels.wrap(name, 60) for name in legend],
            loc="lower center",
            bbox_to_anchor=(0.5, below / height),
            borderaxespad=0,
            ncols=columns,
            frameon=False,
            fontsize=TINY,
        )
    bottom = (below + middle) / height
    return figure, figure.add_axes((0.008, bottom, 0.984, 0.992 - bottom))


def handle(line: Line) -> Line2D:
    return Line2D([], [], color=line.colour, linestyle=line.dash, marker=line.marker)


def draw(axes: Axes, curves: Sequence[Curve], lines: dict[str, Line], theme: Theme) -> None:
    """Draw curves with their intervals; a cross where one ends before the longest length."""
    fill = 0.15 if len(curves) <= DIRECT else 0.07
    for depth, curve in enumerate(reversed(curves)):
        line, order = lines[curve.name], 3 + depth / 100
        xs = [x for x, _ in curve.points]
        ys = [Interval(math.nan) if y is None else y for _, y in curve.points]
        low, high = [_finite(y.low) for y in ys], [_finite(y.high) for y in ys]
        values = [_finite(y.value) for y in ys]
        axes.fill_between(xs, low, high, color=line.colour, alpha=fill, linewidth=0, zorder=2)
        axes.plot(xs, values, line.marker, ls=line.dash, color=line.colour, zorder=order)
        if curve.cut:
            x, y = curve.known[-1]
            axes.plot(x, y.value, "x", color=theme.ink, markersize=7, zorder=5)


def _finite(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value


def name_ends(axes: Axes, curves: Sequence[Curve], lines: dict[str, Line], theme: Theme) -> None:
    """Names beside the curves, unless they stand in a legend."""
    if len(curves) > DIRECT:
        place_labels.lay_out(axes)
        return
    ends = {curve.name: (x, y.value) for curve in curves for x, y in curve.known[-1:]}
    last = max(x for x, _ in ends.values())
    outer = {name: end for name, end in ends.items() if end[0] == last}
    inner = {name: end for name, end in ends.items() if end[0] < last}
    place_labels.at_ends(axes, outer, lines)
    drawn = np.concatenate([_along(axes, curve) for curve in curves])
    place_labels.at_points(axes, inner, lines, theme, drawn)


def _along(axes: Axes, curve: Curve) -> NDArray[np.float64]:
    """Places on a curve, close enough that a label between two would cover the line."""
    known = [(x, y.value) for x, y in curve.known]
    pixels = axes.transData.transform(known)
    steps = np.linspace(0, 1, 25)[:, None]
    parts = [start + (end - start) * steps for start, end in itertools.pairwise(pixels)]
    return axes.transData.inverted().transform(np.concatenate([pixels, *parts]))


def lengths(axes: Axes, ticks: Sequence[int], trained: int | None, theme: Theme) -> None:
    """A logarithmic axis of tokens, and where training ended on it."""
    axes.set_xscale("log", base=2)
    first, last = min(*ticks, axes.dataLim.x0), max(*ticks, axes.dataLim.x1)
    pad = 1.5 if first == last else (last / first) ** 0.03
    axes.set_xlim(first / pad, last * pad)
    axes.set_xticks(ticks, _apart(ticks), minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    if trained is not None and first <= trained <= last:
        axes.axvline(trained, color=theme.muted, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
        side = (
            "left" if trained == first < last else "right" if first < trained == last else "center"
        )
        axes.text(
            trained,
            1.015,
            f"trained at {trained:,}",
            transform=axes.get_xaxis_transform(),
            ha=side,
            va="bottom",
            fontsize=SMALL - 1,
            color=theme.muted,
        )


def _apart(ticks: Sequence[int]) -> list[str]:
    """Labels of ticks; those with no room are left out."""
    texts, free = [], -math.inf
    span = math.log(max(ticks) / min(ticks)) or 1.0
    for tick in ticks:
        text = f"{tick:,}"
        half = len(text) * 0.009  # share of the axis
        place = math.log(tick / min(ticks)) / span
        shown = place - half >= free
        free = place + half + 0.01 if shown else free
        texts.append(text if shown else "")
    return texts


def values(axes: Axes, curves: Sequence[Curve]) -> None:
    """A logarithmic axis where the values call for one."""
    known = [y for curve in curves for _, y in curve.known]
    ends = [end for y in known for end in (y.value, y.low, y.high)]
    found = [end for end in ends if end is not None and math.isfinite(end)]
    if min(found) > 0 and max(found) / min(found) > WIDE:
        logarithmic(axes, found)


def logarithmic(axes: Axes, found: Sequence[float]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=_steps(found), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _steps(found: Sequence[float]) -> tuple[float, ...]:
    """Where ticks are between powers of ten."""
    factor = max(found) / min(found)
    return (1, 1.5, 2, 3, 4, 5, 7) if factor < 10 else (1, 2, 5) if factor < 1000 else (1,)


def plain(value: float) -> str:
    """1,000, 0.05, 10⁶."""
    if 0 < value < 1e-3 or value >= 1e6:
        digits, _, power = f"{value:.0e}".partition("e")
        raised = f"10{str(int(power)).translate(SUPERSCRIPT)}"
        return raised if digits == "1" else f"{digits}·{raised}"
    return f"{value:,.6g}" if value < 1000 else f"{value:,.0f}"


def dots(axes: Axes, points: Sequence[Curve], lines: dict[str, Line]) -> None:
    """Points with their intervals."""
    for each in points:
        line = lines[each.name]
        for x, y in each.known:
            ends = [_finite(y.low), _finite(y.high)]
            axes.plot([x, x], ends, color=line.colour, linewidth=1, alpha=0.6)
            axes.plot(x, y.value, line.marker, color=line.colour, markersize=5)


def name_points(axes: Axes, points: Sequence[Curve], lines: dict[str, Line], theme: Theme) -> None:
    """Names beside the points, unless they stand in a legend."""
    place_labels.lay_out(axes)
    if len(points) <= DIRECT:
        places = {each.name: (x, y.value) for each in points for x, y in each.known}
        place_labels.at_points(axes, places, lines, theme, np.array([*places.values()]))


def speeds(axes: Axes, found: Sequence[float]) -> None:
    """An axis of tokens per second."""
    if max(found) / min(found) > WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=_steps(found), numticks=12))
        axes.xaxis.set_minor_locator(NullLocator())
    elif max(found) == min(found):
        axes.set_xlim(found[0] * 0.8, found[0] * 1.2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.margins(x=0.12)


def ratios(axes: Axes, found: Sequence[float], theme: Theme) -> None:
    """An axis of ratios, with a line at 1."""
    axes.axhline(1, color=theme.muted, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.margins(y=0.12)
    if min(found) > 0 and max(*found, 1) / min(*found, 1) > WIDE:
        logarithmic(axes, [*found, 1])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{plain(value)}"))


def chance(axes: Axes, share: float, theme: Theme) -> None:
    """An axis of shares, with what guessing gets."""
    axes.axhline(share, color=theme.muted, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    text = axes.annotate(
        f"chance {100 * share:.3g}%",
        (0.01, share),
        (0, 2),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
    )
    text.set(color=theme.muted, fontsize=SMALL - 1)
