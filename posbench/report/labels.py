"""Where labels go so that none covers another. Importing this imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects, text
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from posbench.report.styles import Line, Theme, clean

LONG = 26  # characters: a longer name breaks its lines
CLEAR = 14  # points from the end of a curve to its label
NEAR = [(6, 0), (-6, 0), (0, 7), (0, -7), (5, 6), (5, -6), (-5, 6), (-5, -6)]
OFFSETS = [(x * far, y * far) for far in (1, 2, 3.5, 5, 7) for x, y in NEAR]


def wrap(words: str, width: int = LONG) -> str:
    """Lines of so many columns; a Chinese letter takes two."""
    lines = Text(clean(words)).wrap(Console(width=width), width)
    return "\n".join(line.plain.rstrip() for line in lines)


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Centres that overlap nowhere, as near the wanted ones as can be, between low and high.

    Least squares by pooling neighbours (isotonic regression), then the bounds.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    stacked, above = [], 0.0
    for place, i in enumerate(order):
        above += (heights[order[place - 1]] + heights[i]) / 2 if place else 0
        stacked.append(above)
    pools: list[tuple[float, int]] = []
    for i, offset in zip(order, stacked, strict=True):
        total, count = wanted[i] - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    least = low + heights[order[0]] / 2
    most = max(least, high - heights[order[-1]] / 2 - above)
    made = [0.0] * len(order)
    for i, mean, offset in zip(order, means, stacked, strict=True):
        made[i] = min(max(mean, least), most) + offset
    return made


def at_ends(
    axes: Axes, ends: dict[str, tuple[float, float]], lines: dict[str, Line], theme: Theme
) -> None:
    """Names in a column beside the last points of curves, each joined to its own."""
    made = {
        name: axes.annotate(
            wrap(name),
            end,
            (CLEAR, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            arrowprops=_leader(lines[name]),
            path_effects=halo(theme),
            zorder=6,
        )
        for name, end in ends.items()
    }
    lay_out(axes)
    if made:
        _column(axes, [*made.values()])


def _column(axes: Axes, labels: list[Annotation]) -> None:
    """One above the other."""
    points = 72 / axes.figure.get_dpi()
    box = axes.get_window_extent()
    wanted = [float(axes.transData.transform(label.xy)[1]) * points for label in labels]
    heights = [_extent(label).height * points + 1 for label in labels]
    placed = spread(wanted, heights, box.y0 * points, box.y1 * points)
    for label, centre, from_ in zip(labels, placed, wanted, strict=True):
        label.set_position((CLEAR, centre - from_))


def at_points(
    axes: Axes,
    points: dict[str, tuple[float, float]],
    lines: dict[str, Line],
    theme: Theme,
    drawn: NDArray[np.float64],
) -> None:
    """Names beside points, where they cover least of each other and of what is drawn [n, 2]."""
    lay_out(axes)
    taken = [Bbox.from_bounds(x - 9, y - 9, 18, 18) for x, y in axes.transData.transform(drawn)]
    for name, point in points.items():
        label = axes.annotate(
            wrap(name),
            point,
            NEAR[0],
            textcoords="offset points",
            arrowprops=_leader(lines[name]),
            path_effects=halo(theme),
        )
        best = min(OFFSETS, key=lambda offset: _covered(axes, label, offset, taken))
        _covered(axes, label, best, taken)
        taken.append(_extent(label))


def _covered(
    axes: Axes, label: Annotation, offset: tuple[float, float], taken: Sequence[Bbox]
) -> float:
    """Move a label; what it would cover and how far it sticks out, in square pixels."""
    x, y = offset
    label.set_position(offset)
    label.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
    label.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")
    box = _extent(label)
    shared = [Bbox.intersection(box, other) for other in taken]
    inside = Bbox.intersection(box, axes.get_window_extent())
    outside = _area(box) - (_area(inside) if inside else 0)
    return sum(_area(part) for part in shared if part) + 4 * outside + (x * x + y * y) / 50


def _area(box: Bbox) -> float:
    return float(box.width * box.height)


def _extent(label: Annotation) -> Bbox:
    """Of the text without its leader."""
    label.get_window_extent()  # which moves the text to where it belongs
    return text.Text.get_window_extent(label)


def lay_out(axes: Axes) -> None:
    """Give the axes the size that they will keep."""
    figure: Any = axes.figure.get_figure(root=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def halo(theme: Theme) -> list[patheffects.AbstractPathEffect]:
    return [patheffects.withStroke(linewidth=2, foreground=theme.paper)]


def _leader(line: Line) -> dict[str, Any]:
    return {
        "arrowstyle": "-",
        "color": line.colour,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 2,
        "relpos": (0, 0.5),
    }
