"""Names in a chart: at the ends of its lines or beside its points, and in a legend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from posbench.report.writing.html.axes import Scale
from posbench.report.writing.html.charts import Chart, Line, Point
from posbench.report.writing.html.marks import Mark
from posbench.report.writing.html.wording import printable, shorten, width
from posbench.report.writing.spread import spread

FONT, GAP = 12.0, 15.0  # GAP: from one line of text to the next
SAMPLE = 34.0  # a piece of line in the legend
LONGEST = 210.0  # a name in the legend

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Frame:
    """A chart with its scales and marks. room: the width for names right of the lines."""

    chart: Chart
    marks: Mapping[str, Mark]
    x: Scale
    y: Scale
    room: float

    def at(self, point: Point) -> tuple[float, float]:
        return self.x(point.x), self.y(point.y.value)

    def owned(self, parent: Element, kind: str, line: Line) -> Element:
        """A group of what belongs to a line, in its colour."""
        mark = self.marks[line.name]
        names = {"class": f"{kind} {mark.colour}", "data-line": f"{mark.index}"}
        return SubElement(parent, "g", names)


def draw(picture: Element, frame: Frame) -> None:
    """Draw the names that fit, at the lines' ends or beside single points."""
    group = SubElement(picture, "g", {"class": "names"})
    if not frame.chart.joined:
        _beside_points(group, frame)
    elif frame.room:
        ending: dict[float, list[Line]] = defaultdict(list)
        for line in frame.chart.lines:
            ending[line.points[-1].x].append(line)
        for lines in ending.values():
            _at_ends(group, lines, frame)


def _at_ends(group: Element, lines: list[Line], frame: Frame) -> None:
    """Names of lines that end at one x, moved apart; a leader joins each name to its line."""
    lines = sorted(lines, key=lambda line: frame.at(line.points[-1])[1])
    ends = [frame.at(line.points[-1]) for line in lines]
    top, bottom = frame.y.end - GAP / 2, frame.y.start + GAP / 2
    places = spread([y for _, y in ends], [GAP] * len(ends), top, bottom)
    for line, (x, y), place in zip(lines, ends, places, strict=True):
        owner = frame.owned(group, "named", line)
        path = f"M{x + 6:.1f} {y:.1f}L{x + 14:.1f} {place:.1f}"
        SubElement(owner, "path", {"class": "leader", "d": path})
        _name(owner, shorten(printable(line.name), FONT, frame.room), x + 18, place + 4)


def _beside_points(group: Element, frame: Frame) -> None:
    """Names of single points, each on the first of four sides where it covers nothing."""
    centres = [frame.at(line.points[0]) for line in frame.chart.lines]
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in centres]
    for line, (x, y) in zip(frame.chart.lines, centres, strict=True):
        text = shorten(printable(line.name), FONT, 130)
        wide = width(text, FONT)
        sides = (
            (x + 9, y + 4),
            (x - 9 - wide, y + 4),
            (x - wide / 2, y - 9),
            (x - wide / 2, y + 18),
        )
        for left, base in sides:
            box = (left, base - FONT + 1, left + wide, base + 3)
            if _inside(box, frame) and not any(_touch(box, other) for other in taken):
                taken.append(box)
                _name(frame.owned(group, "named", line), text, left, base)
                break


def _inside(box: Box, frame: Frame) -> bool:
    x, y = frame.x, frame.y
    return box[0] >= x.start and box[2] <= x.end and box[1] >= y.end and box[3] <= y.start


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _name(parent: Element, text: str, x: float, y: float) -> None:
    place = {"class": "direct", "x": f"{x:.1f}", "y": f"{y:.1f}"}
    SubElement(parent, "text", place).text = text


def legend(parent: Element, frame: Frame, wide: float) -> float:
    """Every line, in columns; returns the height of them."""
    lines = frame.chart.lines
    longest = max(width(printable(line.name), FONT) for line in lines)
    longest = min(longest, LONGEST, wide - SAMPLE - 12)
    column = SAMPLE + longest + 22
    columns = max(1, int((wide + 22) // column))
    for index, line in enumerate(lines):
        item = frame.owned(parent, "item", line)
        x, y = index % columns * column, 14 + index // columns * 21
        item.set("transform", f"translate({x:.1f} {y})")
        _sample(item, frame.marks[line.name], column - 10, frame.chart.joined)
        _name(item, shorten(printable(line.name), FONT, longest), SAMPLE, 4)
        SubElement(item, "title").text = printable(line.name)
    return 14.0 + 21 * -(-len(lines) // columns)


def _sample(item: Element, mark: Mark, wide: float, joined: bool) -> None:
    """How the line looks, on an area to click."""
    hit = {"class": "hit", "x": "-4", "y": "-10", "width": f"{wide:.1f}", "height": "20"}
    SubElement(item, "rect", hit | {"rx": "4"})
    if joined:
        curve = {"class": "curve", "d": "M0 0H26"}
        SubElement(item, "path", curve | mark.stroke)
    marker = {"class": "marker", "d": mark.marker, "transform": "translate(13 0)"}
    SubElement(item, "path", marker)
