"""TensorBoard: event files in <run folder>/tensorboard, written by tensorboardX.

Event files can only grow, so a resumed run is written anew from its own rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX import SummaryWriter

from posbench.tracking.base import Job, Nothing, Table, Tracker, Values


class TensorBoard(Nothing):
    """One folder of event files."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def log(self, row: Values, axis: str) -> None:
        for key, value in row.items():
            if key != axis:
                self._writer.add_scalar(key, value, row[axis])

    def summary(self, values: Values) -> None:
        self._writer.add_text("summary", _markdown((["", ""], list(values.items()))))

    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        """Tables as text, PNGs as images."""
        for title, table in tables.items():
            self._writer.add_text(title, _markdown(table))
        for path in files:
            if path.suffix == ".png":
                from matplotlib.image import imread

                self._writer.add_image(path.name, imread(path), dataformats="HWC")

    def finish(self, exit_code: int) -> None:
        self._writer.close()


def opened(job: Job) -> Tracker:
    folder = job.folder / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)
    writer = SummaryWriter(str(folder), flush_secs=10)  # else a curve is two minutes late
    writer.add_text("config", f"```\n{json.dumps(job.settings, indent=2)}\n```")
    return TensorBoard(writer)


def _markdown(table: Table) -> str:
    headers, rows = table
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
