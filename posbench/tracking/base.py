"""The protocol of a tracker, and its description of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

Values = Mapping[str, float | int | str | None]
Table = tuple[Sequence[str], Sequence[Sequence[str | float | None]]]  # headers and rows
ID_FILE = "tracking_id.txt"


class Tracker(Protocol):
    """Receives a run's rows.

    A resumed run logs all its rows again, from the first: a tracker leaves out those that it has.
    """

    def log(self, row: Values, axis: str) -> None: ...  # measured at row[axis]
    def summary(self, values: Values) -> None: ...  # what the run came to
    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None: ...  # a report
    def keep(self, checkpoint: Path) -> None: ...  # a checkpoint's folder
    def finish(self, exit_code: int) -> None: ...  # 0: finished, else failed; in a finally


class Nothing:
    """A tracker that does nothing: tracking is disabled or impossible. Base of the others."""

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
        """Write the id into the run's folder, for a resume."""
        (self.folder / ID_FILE).write_text(f"{self.id}\n", encoding="utf-8")
