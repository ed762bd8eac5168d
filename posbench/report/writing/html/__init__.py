"""A report as one HTML file, which needs nothing else: no network, no folder beside it.

charts.py and grids.py say what is shown, as data; picture.py, axes.py and labels.py draw a chart
as SVG. A new chart is a function of charts.py in its of_comparison. May import comparing.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from posbench import __version__
from posbench.report.comparing.comparison import Comparison, ProbeTable, Report
from posbench.report.writing.html import charts, grids, marks, picture
from posbench.report.writing.html.charts import Chart
from posbench.report.writing.html.grids import Column, Grid
from posbench.report.writing.html.marks import Mark
from posbench.report.writing.html.picture import FULL, HALF, PHONE
from posbench.report.writing.html.wording import slug
from posbench.report.writing.wording import KEPT, WORSE, Extra


@dataclass(frozen=True)
class Figure:
    chart: Chart
    file: str
    pictures: tuple[Markup, ...]  # one for a screen, one for a phone


@dataclass(frozen=True)
class Part:
    """A comparison or a probe, and all that is drawn of it."""

    shown: Comparison | ProbeTable
    grids: tuple[Grid, ...]
    figures: tuple[Figure, ...]
    measures: dict[str, str]
    notes: tuple[str, ...]


def html(report: Report, extra: Sequence[Extra] = ()) -> str:
    """A whole page. extra: further tables, shown last.

    Text from runs is escaped, and a content security policy lets no script run but the page's own.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    style, script = _file("style.css"), _file("behaviour.js")
    return environment.from_string(_file("report.html.j2")).render(
        report=report,
        parts=_parts(report),
        extras=[(_extra(*table), table[3]) for table in extra],
        experiments=list(dict.fromkeys(part.experiment for part in _shown(report))),
        limits=(KEPT, WORSE),
        style=Markup(style),
        script=Markup(script),
        hashes=(_hash(style), _hash(script)),
        version=__version__,
    )


def _file(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The hash by which a content security policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(report: Report) -> tuple[Comparison | ProbeTable, ...]:
    return (*report.comparisons, *report.probes)


def _parts(report: Report) -> list[Part]:
    looks, files = marks.of_report(report), Counter[str]()
    parts = [_comparison(comparison, looks, files) for comparison in report.comparisons]
    return parts + [_probe(table, looks, files) for table in report.probes]


def _comparison(shown: Comparison, looks: Mapping[str, Mark], files: Counter[str]) -> Part:
    drawn = charts.of_comparison(shown)
    return Part(
        shown,
        (grids.headline(shown), grids.costs(shown)),
        tuple(_figures(shown.experiment, drawn, looks, files)),
        grids.measures(shown),
        (*shown.notes, *shown.apart),
    )


def _probe(shown: ProbeTable, looks: Mapping[str, Mark], files: Counter[str]) -> Part:
    figures = _figures(shown.experiment, charts.of_probe(shown), looks, files)
    return Part(shown, (grids.recalls(shown),), tuple(figures), {}, shown.notes)


def _figures(
    experiment: str, drawn: Iterable[Chart], looks: Mapping[str, Mark], files: Counter[str]
) -> Iterable[Figure]:
    """files counts the names in use, so that each is used once."""
    for chart in drawn:
        name = f"{slug(experiment)}-{slug(chart.kind)}"
        files[name] += 1
        again = "" if files[name] == 1 else f"-{files[name]}"
        screen = HALF if chart.kind in ("context", "cost") else FULL
        pictures = [Markup(picture.svg(chart, size, looks)) for size in (screen, PHONE)]
        yield Figure(chart, f"{name}{again}.svg", tuple(pictures))


def _extra(title: str, headers: list[str], rows: list[list[str]], _: str) -> Grid:
    """A further table as a Grid; columns of numbers sort as numbers."""
    columns = [
        Column(name, is_text=place == 0 or all(_value(row[place]) is None for row in rows))
        for place, name in enumerate(headers)
    ]
    cells = [(row[0], tuple(grids.plain(text, _value(text)) for text in row[1:])) for row in rows]
    return Grid(title, tuple(columns), tuple(cells))


def _value(text: str) -> float | None:
    try:
        return float(text.replace(",", "").removesuffix("%").strip("×≈ "))
    except ValueError:
        return None
