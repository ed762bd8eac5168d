"""Print the tables of given run folders on the terminal, as `train` and `eval` do at their end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from posbench.evaluation.statistics import Bootstrap
from posbench.report.comparing import from_runs
from posbench.report.comparing.comparison import MASKED, Comparison
from posbench.report.comparing.probing import probe_tables
from posbench.report.reading import collect
from posbench.report.reading.collect import Run
from posbench.report.writing import terminal

MORE = "posbench report: intervals, every protocol, and the curves as one HTML file"


def show_runs(folders: Iterable[Path], console: Console, targets: set[str] | None = None) -> None:
    """Print perplexities under each experiment's first protocol, and all probes.

    targets: hashes of scored tokens and of probe trials; only tables over these are printed.
    """
    runs, bootstrap = collect.runs(folders), Bootstrap()
    made = from_runs.comparisons(runs, from_runs.Settings(bootstrap), targets)
    for comparison in made if targets is not None else _first_protocols(made, runs):
        terminal.show_perplexities(comparison, console)
    for probe in probe_tables(runs, bootstrap):
        if targets is None or probe.trials in targets:
            terminal.show_recall(probe, console)
    if made:
        console.print(MORE, style="dim")


def _first_protocols(made: list[Comparison], runs: list[Run]) -> list[Comparison]:
    chosen = {run.experiment: run.config["eval"]["protocols"][0] for run in runs}
    return [
        each
        for each in made
        if each.protocol.removeprefix(MASKED).split()[0] == chosen[each.experiment]
    ]
