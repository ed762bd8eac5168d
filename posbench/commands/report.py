"""posbench report: every run as tables and figures, from files alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from posbench import config as schemas
from posbench import tracking
from posbench.config import ReportCommand, ReportConfig
from posbench.errors import UserError, nearest
from posbench.evaluation.statistics import Bootstrap
from posbench.hydra_app.command import command
from posbench.machine.files import write_text
from posbench.report import FIGURES, THEMES
from posbench.report.comparing import agreement, from_runs
from posbench.report.comparing.comparison import Comparison, Report
from posbench.report.comparing.probing import probe_tables
from posbench.report.reading import collect
from posbench.report.reading.collect import Run
from posbench.report.writing import csv_rows, markdown, terminal
from posbench.report.writing.wording import Extra


@command("report")
def main(node: DictConfig) -> None:
    asked = schemas.load(node, ReportCommand)
    settings = _settings(asked.report)
    console = Console()
    for place in asked.runs or [""]:
        if not collect.folders([place] if place else []):
            raise UserError(f"runs=[{place}]: no run folder there; posbench train makes one")
    runs = collect.runs(collect.folders(asked.runs))
    comparisons = tuple(from_runs.comparisons(runs, settings))
    _require_baseline(asked.report.baseline, comparisons)
    report = Report(comparisons, tuple(probe_tables(runs, settings.bootstrap)))
    extra = _agreements(report, agreement.chosen(asked.report.against))
    if "terminal" in asked.report.formats:
        terminal.show(report, console, extra)
    written = _write(report, runs, extra, asked)
    if tracking.wanted(asked.tracking):
        from posbench.report.writing.tracker import mirror

        mirror(report, written, asked)
    if written:
        console.print("written:", *map(str, written), style="dim", highlight=False, markup=False)


def _settings(asked: ReportConfig) -> from_runs.Settings:
    """Raises UserError for values that no report could use."""
    for name in asked.formats:
        if name != "terminal" and name not in WRITERS:
            choices = ", ".join(["terminal", *WRITERS])
            raise UserError(f"report.formats: {name} is unknown; choose {choices}")
    for name in asked.figures:
        if name not in FIGURES:
            raise UserError(f"report.figures: {name} is unknown; choose {', '.join(FIGURES)}")
    for name in asked.themes:
        if name not in THEMES:
            raise UserError(f"report.themes: {name} is unknown; choose {', '.join(THEMES)}")
    if not 0 < asked.recl_share <= 1:
        raise UserError(f"report.recl_share={asked.recl_share} must lie in (0, 1]")
    try:
        bootstrap = Bootstrap(asked.level, asked.draws, asked.seed)
    except ValueError as error:
        raise UserError(f"report.{error}") from error
    return from_runs.Settings(bootstrap, asked.baseline, asked.recl_share)


def _require_baseline(baseline: str | None, comparisons: Sequence[Comparison]) -> None:
    names = {name for c in comparisons for row in c.rows for name in (row.label, row.encoding)}
    if baseline is not None and all(each.baseline is None for each in comparisons):
        raise UserError(
            f"report.baseline={baseline}: there is no such row{nearest(baseline, names)} "
            f"({', '.join(sorted(names))})"
        )


def _agreements(report: Report, names: Sequence[str]) -> list[Extra]:
    """Each comparison's agreement with each publication, and theirs with each other, as tables."""
    made = []
    for comparison in report.comparisons:
        for name in names:
            found = agreement.agreement(comparison, name)
            title = f"{comparison.experiment}, {comparison.protocol}: agreement with {name}"
            told = agreement.caption(comparison, found)
            made.append((title, list(agreement.HEADERS), agreement.described(found), told))
    if len(names) > 1:
        rows, caption = agreement.between(names), agreement.BETWEEN_CAPTION
        made.append(("papers beside each other", list(agreement.BETWEEN), rows, caption))
    return made


def _write(
    report: Report, runs: list[Run], extra: Sequence[Extra], asked: ReportCommand
) -> list[Path]:
    folder, written = Path(asked.folder), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in asked.report.formats:
            if name in WRITERS:
                suffix, writer = WRITERS[name]
                write_text(folder / f"report.{suffix}", writer(report, runs, extra))
                written.append(folder / f"report.{suffix}")
        if asked.report.figures:
            from posbench.report.writing.figures import (
                write as figures,  # matplotlib takes a second to import
            )

            for theme in asked.report.themes:
                place = folder / "figures"
                written += figures.write(report, place, asked.report.figures, theme)
    except OSError as error:
        raise UserError(f"folder={folder}: cannot be written ({error.strerror})") from error
    return written


def _markdown(report: Report, runs: Sequence[Run], extra: Sequence[Extra]) -> str:
    return markdown.markdown(report, extra)


def _csv(report: Report, runs: Sequence[Run], extra: Sequence[Extra]) -> str:
    return csv_rows.tidy(report, runs)


def _latex(report: Report, runs: Sequence[Run], extra: Sequence[Extra]) -> str:
    from posbench.report.writing.latex.document import latex

    return latex(report, extra)


def _html(report: Report, runs: Sequence[Run], extra: Sequence[Extra]) -> str:
    from posbench.report.writing.html import html

    return html(report, extra)


Writer = Callable[[Report, Sequence[Run], Sequence[Extra]], str]
WRITERS: dict[str, tuple[str, Writer]] = {
    "markdown": ("md", _markdown),
    "csv": ("csv", _csv),
    "latex": ("tex", _latex),
    "html": ("html", _html),
}
