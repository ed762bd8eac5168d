"""Where labels go so that none covers another. Importing this imports matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import text
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from posbench.report.writing.figures.styles import Line, Theme, clean
from posbench.report.writing.spread import spread

Boxes = NDArray[np.float64]
LONG = 26  # characters: a longer name breaks its lines
CLEAR = 14  # points from the end of a curve to its label
ROOM = 4.5  # points around what is drawn
NEAR = [(6, 0), (-6, 0), (0, 7), (0, -7), (5, 6), (5, -6), (-5, 6), (-5, -6)]
OFFSETS = np.array([(x * far, y * far) for far in (1, 2, 3.5, 5, 7) for x, y in NEAR])


def wrap(words: str, width: int = LONG) -> str:
    """Lines of so many columns; a Chinese letter takes two."""
    lines = Text(clean(words)).wrap(Console(width=width), width)
    return "\n".join(line.plain.rstrip() for line in lines)


def at_ends(axes: Axes, ends: dict[str, tuple[float, float]], lines: dict[str, Line]) -> None:
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
            zorder=6,
        )
        for name, end in ends.items()
    }
    lay_out(axes)
    if made:
        _column(axes, [*made.values()])


def _column(axes: Axes, labels: list[Annotation]) -> None:
    """Move labels so that they stand one above the other."""
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
    drawn: Boxes,
) -> None:
    """Names beside points, where they cover least of each other and of what is drawn [n, 2]."""
    pixels = axes.figure.get_dpi() / 72
    marks = axes.transData.transform(drawn)
    taken = np.concatenate([marks - ROOM * pixels, marks + ROOM * pixels], axis=1)
    for name, point in points.items():
        label = axes.annotate(
            wrap(name),
            point,
            NEAR[0],
            textcoords="offset points",
            arrowprops=_leader(lines[name]),
            bbox=_ground(theme),
        )
        extent = _extent(label)
        boxes = axes.transData.transform(point)[[0, 1, 0, 1]] + pixels * OFFSETS[:, [0, 1, 0, 1]]
        boxes += np.outer(np.sign(OFFSETS[:, 0]) - 1, [extent.width / 2, 0, extent.width / 2, 0])
        boxes += np.outer(np.sign(OFFSETS[:, 1]) - 1, [0, extent.height / 2, 0, extent.height / 2])
        boxes += np.array([0, 0, extent.width, extent.height])
        cost = _shared(boxes, taken).sum(1) + (OFFSETS**2).sum(1) / 50
        cost -= 4 * _shared(boxes, np.array([axes.get_window_extent().extents]))[:, 0]
        best = int(cost.argmin())
        _move(label, *OFFSETS[best].tolist())
        taken = np.concatenate([taken, boxes[best : best + 1]])


def _shared(boxes: Boxes, others: Boxes) -> Boxes:
    """The area that each of some boxes [n, 4] has in common with each of others [m, 4]: [n, m]."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.clip(high - low, 0, None).prod(2)


def _move(label: Annotation, x: float, y: float) -> None:
    label.set_position((x, y))
    label.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
    label.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")


def _extent(label: Annotation) -> Bbox:
    """The box of the label's text without its leader line."""
    label.get_window_extent()  # which moves the text to where it belongs
    return text.Text.get_window_extent(label)


def lay_out(axes: Axes) -> None:
    """Shrink axes so that their labels too stand within the place they had.

    matplotlib's own layouts differ in the last digit from run to run.
    """
    outer, figure = axes.get_position(), axes.figure
    for _ in range(2):  # ticks may change with the size
        tight = axes.get_tightbbox()
        assert tight is not None
        tight = tight.transformed(figure.transFigure.inverted())
        over = np.subtract(outer.extents, tight.extents)
        extents = np.round(np.add(axes.get_position().extents, over), 4)
        axes.set_position(Bbox.from_extents(*extents))


def _ground(theme: Theme) -> dict[str, Any]:
    """The background of a name that stands among curves."""
    return {"boxstyle": "square,pad=0.08", "color": theme.paper, "alpha": 0.75, "linewidth": 0}


def _leader(line: Line) -> dict[str, Any]:
    return {
        "arrowstyle": "-",
        "color": line.colour,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 2,
        "relpos": (0, 0.5),
    }
