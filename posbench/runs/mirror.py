"""Copying a run folder's rows and results to a tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from posbench import tracking
from posbench.config import Config
from posbench.evaluation import results
from posbench.machine.files import read_rows
from posbench.runs.run_folder import RunFolder
from posbench.tracking.base import Tracker, Values
from posbench.training import checkpoint as checkpoints


def tracker(config: Config, folder: Path, corpus: str) -> Tracker:
    """The tracker of the run in folder, resumed if it had one. corpus: the corpus's name."""
    encoding = str(config.encoding["_target_"]).rpartition(".")[2]
    tuned = "untuned" if config.tuned == "false" else "tuned"
    return tracking.start(
        config.tracking,
        folder=folder,
        name=f"{config.run.name}-seed{config.seed}",
        group=config.run.experiment,
        tags=(encoding, corpus, f"length {config.train.length}", tuned),
        settings=dataclasses.asdict(config),
        resume_id=tracking.saved_id(folder),
    )


def training(folder: Path, tracker: Tracker) -> None:
    """Log every row of metrics.jsonl, by step."""
    for row in read_rows(folder / "metrics.jsonl"):
        tracker.log(row, "step")


def evaluation(folder: Path, tracker: Tracker) -> None:
    """Log every result by length and every probe by distance. The tracker's summary gets all of
    them, the run's cost, and the reasons of results without a number.
    """
    summary: dict[str, float | int | str | None] = dict(RunFolder(folder).summary)
    for axis, row in _evaluation(folder):
        tracker.log(row, axis)
        summary |= {f"{key}/{row[axis]}": value for key, value in row.items() if key != axis}
    for result in results.read(folder):
        if result.reason is not None:
            name = _named(result.protocol, result.extension)
            summary[f"{name}/reason/{result.length}"] = result.reason
    tracker.summary(summary)


def checkpoint(config: Config, folder: Path, tracker: Tracker) -> None:
    """Upload the newest checkpoint, if tracking.checkpoints asks for it."""
    if config.tracking.checkpoints and (newest := checkpoints.latest(folder)) is not None:
        tracker.keep(newest)


def _evaluation(folder: Path) -> Iterator[tuple[str, Values]]:
    """(axis, row) for each result that has a number."""
    for result in results.read(folder):
        name = _named(result.protocol, result.extension)
        shown = results.shown(result).items()
        values = {f"{name}/{key}": value for key, value in shown if value is not None}
        if values:
            yield "length", {"length": result.length, **values}
    for probe in results.read_probes(folder):
        name = _named(probe.probe, probe.extension)
        if probe.recall is not None:
            row = {"distance": probe.distance, f"{name}/recall": probe.recall}
            yield "distance", row | {f"{name}/lift": probe.lift}


def _named(name: str, extension: str | None) -> str:
    return name if extension is None else f"{name}, {extension}"
