"""What every tracker does, and what it is told of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

Values = Mapping[str, float | int | str | None]
Table = tuple[Sequence[str], Sequence[Sequence[str | float | None]]]  # headers and rows
ID_FILE = "tracking_id.txt"


class Tracker(Protocol):
    """Where a run's rows go besides its own files.

    Whoever goes on with a run logs all its rows again, from the first: a tracker leaves out those
    that it has.
    """

    def log(self, row: Values, axis: str) -> None: ...  # measured at row[axis]
    def summary(self, values: Values) -> None: ...  # what the run came to
    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None: ...  # a report
    def keep(self, checkpoint: Path) -> None: ...  # a checkpoint's folder
    def finish(self, exit_code: int) -> None: ...  # 0: finished, else failed; in a finally


class Nothing:
    """Tracking disabled, or impossible; and what a tracker does that cannot do it."""

    def log(self, row: Values, axis: str) -> None: ...
    def summary(self, values: Values) -> None: ...
    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None: ...
    def keep(self, checkpoint: Path) -> None: ...
    def finish(self, exit_code: int) -> None: ...


@dataclasses.dataclass(frozen=True)
class Job:
    """A run as a tracker sees it."""

    folder: Path  # the run's
    project: str
    name: str
    group: str
    tags: tuple[str, ...]
    settings: dict[str, object]  # the configuration as plain nested values
    id: str
    wandb: str  # W&B's mode

    def remember(self) -> None:
        """Keep the id in the run's folder, for whoever goes on with the run."""
        (self.folder / ID_FILE).write_text(f"{self.id}\n", encoding="utf-8")
