"""Progress of training: bars on a terminal, else a line every few seconds.

Jobs that write to one terminal at the same time get lines too: bars would overwrite one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from posbench.machine import job

PLAIN_SECONDS = 10.0  # between lines where there is no terminal


class _Figures(ProgressColumn):
    """The column with loss and speed; empty in the sweep's bar."""

    def render(self, task: Task) -> Text:
        loss, speed = task.fields.get("loss"), task.fields.get("speed")
        if loss is None:
            return Text("")
        return Text(f"loss {loss:.3f}  {speed:,.0f} tok/s")


class Display:
    """Progress of one run, and of the sweep around it where there is one."""

    def __init__(self, console: Console, name: str, steps: int) -> None:
        self.console, self.name, self.steps = console, name, steps
        self.live = console.is_terminal and not job.current.beside_others
        self.progress = Progress(
            TextColumn("{task.description:<30}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            _Figures(),
            console=console,
            transient=True,
            disable=not self.live,
        )
        number, total = job.current.number, job.current.total
        self.place = f"[{number}/{total}] " if total else ""
        self.before = number - 1
        self.sweep = self.progress.add_task("sweep", total=total, visible=bool(total))
        self.task = self.progress.add_task(name, total=steps)
        self.spoken = time.monotonic() - PLAIN_SECONDS
        self.first: tuple[int, float] | None = None  # step of this session, and when

    def step(self, row: dict[str, float]) -> None:
        """A training step: its number, loss in nats and tokens per second."""
        step, loss, speed = int(row["step"]), row["loss"], row["tokens_per_second"]
        self.progress.update(self.task, completed=step, loss=loss, speed=speed)
        self.progress.update(self.sweep, completed=self.before + step / self.steps)
        if self.live:
            return
        now = time.monotonic()
        self.first = self.first or (step, now)
        if now - self.spoken > PLAIN_SECONDS or step == self.steps:
            self.spoken = now
            figures = f"step {step}/{self.steps}  loss {loss:.3f}  {speed:,.0f} tok/s"
            said = f"{self.place}{self.name}  {figures}{self._left(step, now)}"
            self.console.print(said, highlight=False, markup=False)

    def _left(self, step: int, now: float) -> str:
        """The time left of training, at the speed so far, as text."""
        assert self.first is not None
        done, since = self.first
        if step == done:
            return ""
        seconds = (self.steps - step) * (now - since) / (step - done)
        return f"  {seconds:.0f} s left"

    def phase(self, what: str) -> None:
        """Show which phase of the run began."""
        self.progress.update(self.task, description=f"{self.name}: {what}")
        if not self.live:
            self.console.print(f"{self.place}{self.name}  {what}", highlight=False, markup=False)

    def message(self, what: str) -> None:
        """Print a line about the run that stays on the screen."""
        self.console.print(f"{self.place}{self.name}  {what}", highlight=False, markup=False)


@contextmanager
def display(console: Console, name: str, steps: int) -> Iterator[Display]:
    """A Display for the time of a run; its bars vanish when it ends."""
    shown = Display(console, name, steps)
    with shown.progress:
        yield shown
