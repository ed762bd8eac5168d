"""trackio: its SQLite files, in TRACKIO_DIR or ~/.cache/huggingface/trackio, and no more of it.

No server is started and no network asked: `trackio show` shows the files, whenever.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trackio
from trackio.run import Run
from trackio.sqlite_storage import SQLiteStorage

from posbench.tracking.base import Job, Nothing, Table, Tracker, Values


class LocalRun(Run):  # type: ignore[misc]
    """A run without the user's name, for which trackio would ask the Hub."""

    def _get_username(self) -> None:
        return None


class Trackio(Nothing):
    """One run of a project's SQLite file."""

    def __init__(self, run: Run) -> None:
        self._run = run
        there = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
        self._last = max((row["step"] for row in there), default=0)
        stamps = ("step", "timestamp")
        self._there = [{k: v for k, v in row.items() if k not in stamps} for row in there]

    def log(self, row: Values, axis: str) -> None:
        """trackio's only axis is the step; of another axis the place is logged as a value."""
        if axis != "step":
            self._log_once(row)
        elif (step := int(row["step"] or 0)) > self._last:
            self._run.log({key: value for key, value in row.items() if key != "step"}, step=step)

    def summary(self, values: Values) -> None:
        self._log_once(values)

    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        """Tables, and PNGs as images."""
        shown: dict[str, Any] = {
            title: trackio.Table(columns=list(headers), data=[list(row) for row in rows])
            for title, (headers, rows) in tables.items()
        }
        shown |= {path.name: trackio.Image(str(path)) for path in files if path.suffix == ".png"}
        self._run.log(shown)

    def finish(self, exit_code: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it says that it uploads, and does not
            self._run.finish()

    def _log_once(self, values: Values) -> None:
        if dict(values) not in self._there:
            self._run.log(dict(values))


def opened(job: Job) -> Tracker:
    job.remember()
    run = LocalRun(
        url=None,
        client=None,
        project=job.project,
        name=job.name,
        run_id=job.id,
        group=job.group,
        config={**job.settings, "tags": list(job.tags)},
    )
    return Trackio(run)
