"""A chart as an SVG element: plain shapes, whose colours are the classes of style.css.

Everything that says something has a <title>, which is what the page's script shows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from posbench.report.writing.html import axes, labels
from posbench.report.writing.html.axes import Scale
from posbench.report.writing.html.charts import CROWDED, Chart, Line, Point
from posbench.report.writing.html.labels import FONT, Frame
from posbench.report.writing.html.marks import Mark
from posbench.report.writing.html.wording import printable, tick, width

LABELLED = 12  # with more lines only the legend names them


@dataclass(frozen=True)
class Size:
    """A picture's size without the legend. wide: with room for names at the ends of lines."""

    name: str
    width: float
    height: float
    wide: bool = True


FULL, HALF = Size("full", 1040, 430), Size("half", 520, 350)
PHONE = Size("phone", 350, 300, wide=False)


def svg(chart: Chart, size: Size, marks: Mapping[str, Mark]) -> str:
    return ElementTree.tostring(Picture(chart, size, marks).element(), encoding="unicode")


def write(
    parent: Element, text: str, x: float, y: float, kind: str, anchor: str = "start"
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind, "text-anchor": anchor}
    SubElement(parent, "text", place).text = printable(text)


def rule(parent: Element, kind: str, x: tuple[float, float], y: tuple[float, float]) -> None:
    ends = {"x1": x[0], "x2": x[1], "y1": y[0], "y2": y[1]}
    SubElement(parent, "line", {"class": kind} | {k: f"{v:.1f}" for k, v in ends.items()})


@dataclass(frozen=True)
class Picture:
    chart: Chart
    size: Size
    marks: Mapping[str, Mark]

    @cached_property
    def y(self) -> Scale:
        values = [point.y.value for line in self.chart.lines for point in line.points]
        if self.chart.level is not None:
            values.append(self.chart.level[0])
        bottom, top = self.size.height - 46, 46.0
        if self.chart.y_range is not None:
            return axes.scale(self.chart.y_range, bottom, top, log=False, margin=0.02)
        return axes.scale(values, bottom, top, log=axes.is_wide(values))

    @cached_property
    def x(self) -> Scale:
        left = 14 + max(width(self._said(value), FONT) for value in self.y.ticks)
        right = self.size.width - (self.room + 14 if self.room else 20)
        values = [point.x for line in self.chart.lines for point in line.points]
        values += [tick for tick in self.chart.x_ticks if min(values) <= tick <= max(values)]
        margin = 0.03 if self.chart.joined else 0.12
        return axes.scale(values, left, right, log=self.chart.x_log, margin=margin)

    @cached_property
    def room(self) -> float:
        """For names right of the lines."""
        lines = self.chart.lines
        if not (self.size.wide and self.chart.joined and len(lines) <= LABELLED):
            return 0.0
        widest = max(width(printable(line.name), FONT) for line in lines)
        return min(widest, self.size.width * 0.22)

    def element(self) -> Element:
        frame = Frame(self.chart, self.marks, self.x, self.y, self.room)
        legend = Element(
            "g", {"class": "legend", "transform": f"translate(0 {self.size.height:g})"}
        )
        height = self.size.height + labels.legend(legend, frame, self.size.width)
        crowded = " crowded" if len(self.chart.lines) > CROWDED else ""
        picture = Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {self.size.width:g} {height:g}",
                "class": self.size.name + crowded,
                "role": "group",
                "aria-label": self.chart.title,
            },
        )
        self._draw_axes(picture)
        self._draw_references(picture)
        for line in self.chart.lines:
            self._draw_line(picture, line, frame)
        labels.draw(picture, frame)
        picture.append(legend)
        return picture

    def _said(self, value: float) -> str:
        return (self.chart.y_text or tick)(value)

    def _draw_axes(self, picture: Element) -> None:
        chart, x, y = self.chart, self.x, self.y
        group = SubElement(picture, "g", {"class": "axes"})
        for value in y.ticks:
            rule(group, "grid", (x.start, x.end), (y(value), y(value)))
            write(group, self._said(value), x.start - 8, y(value) + 4, "tick", "end")
        rule(group, "base", (x.start, x.end), (y.start, y.start))
        ticks = [float(t) for t in chart.x_ticks if x.low <= t <= x.high] or x.ticks
        for value in axes.thinned(ticks, x, lambda v: width(tick(v), FONT) + 10):
            rule(group, "base", (x(value), x(value)), (y.start, y.start + 4))
            write(group, tick(value), x(value), y.start + 18, "tick", "middle")
        scale = ", log scale" if y.log else ""
        write(group, chart.y_label + scale, 0, 12, "name")
        write(group, chart.x_label, x.end, self.size.height - 8, "name", "end")

    def _draw_references(self, picture: Element) -> None:
        x, y = self.x, self.y
        group = SubElement(picture, "g", {"class": "references"})
        if self.chart.level is not None:
            value, name = self.chart.level
            rule(group, "level", (x.start, x.end), (y(value), y(value)))
            write(group, name, x.start + 4, y(value) - 5, "reference")
        length = self.chart.trained
        if length is not None and x.low <= length <= x.high:
            rule(group, "trained", (x(length), x(length)), (y.end - 6, y.start))
            near = x(length) > (x.start + x.end) / 2
            name = f"trained at {length:,}"
            write(group, name, x(length), y.end - 12, "reference", "end" if near else "start")

    def _draw_line(self, picture: Element, line: Line, frame: Frame) -> None:
        mark = self.marks[line.name]
        group = frame.owned(picture, "line", line)
        SubElement(group, "path", self._band(line))
        places = [frame.at(point) for point in line.points]
        if self.chart.joined:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            SubElement(group, "path", {"class": "curve", "d": path} | mark.stroke)
        for point, (x, y) in zip(line.points, places, strict=True):
            shape = {
                "class": "marker",
                "d": mark.marker,
                "transform": f"translate({x:.1f} {y:.1f})",
            }
            marker = SubElement(group, "path", shape)
            SubElement(marker, "title").text = printable(f"{line.name}: {point.says}")

    def _band(self, line: Line) -> dict[str, str]:
        """Between the ends of the intervals; of a single point a bar."""

        def path(points: list[tuple[Point, float | None]]) -> str:
            ends = [(p.x, p.y.value if end is None else end) for p, end in points]
            return "L".join(f"{self.x(x):.1f} {self.y(end):.1f}" for x, end in ends)

        there = path([(point, point.y.low) for point in line.points])
        back = path([(point, point.y.high) for point in reversed(line.points)])
        kind = "band" if len(line.points) > 1 else "band bar"
        return {"class": kind, "d": f"M{there}L{back}z"}
