"""posbench repro: replay a run's first steps and compare the numbers."""

from __future__ import annotations

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posbench import config as schemas
from posbench.errors import UserError
from posbench.hydra_app.command import command
from posbench.runs.repro import Pair, Replay, replay


class Differs(UserError):
    """The replay's numbers differ from the run's."""


@command("repro")
def main(node: DictConfig) -> None:
    console = Console()
    done = replay(schemas.load(node, schemas.ReproCommand), console)
    rows = max(len(pairs) for pairs in done.by_quantity().values())
    said = f"{done.folder}: {done.steps} of {done.of} steps replayed, {rows} rows compared"
    console.print(said, markup=False, highlight=False, soft_wrap=True)
    if not done.same:
        console.print(_numbers(done))
    if done.machine:
        console.print(_machine(done))
    if done.parts:
        said = f"the run was trained in parts, and replayed as the first: {done.parts}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if not done.same:
        raise Differs(_verdict(done))
    names = ", ".join(done.by_quantity())
    console.print(f"the same to the last bit: {names}", style="green", highlight=False)


def _differing(done: Replay) -> dict[str, list[Pair]]:
    grouped = done.by_quantity().items()
    differing = {name: [pair for pair in pairs if pair.relative] for name, pairs in grouped}
    return {name: pairs for name, pairs in differing.items() if pairs}


def _numbers(done: Replay) -> Table:
    """For each quantity the first step that differs, by how much, and the largest difference."""
    table = Table(title="numbers that differ", box=box.SIMPLE)
    table.add_column("")
    for header in ("first at step", "the run's", "here", "relative", "largest"):
        table.add_column(header, justify="right")
    for name, pairs in _differing(done).items():
        first = pairs[0]
        largest = max(pair.relative for pair in pairs)
        values = f"{first.there:.9g}", f"{first.here:.9g}"  # float32 to the last bit
        table.add_row(name, str(first.step), *values, f"{first.relative:.1e}", f"{largest:.1e}")
    return table


def _machine(done: Replay) -> Table:
    table = Table(title="what differs around them", box=box.SIMPLE)
    for header in ("", "the run's", "here"):
        table.add_column(header, overflow="fold")
    for name, values in done.machine.items():
        shown = ("unknown" if value is None else str(value) for value in values)
        table.add_row(name, *map(Text, shown))
    return table


def _verdict(done: Replay) -> str:
    first = min((pairs[0] for pairs in _differing(done).values()), key=lambda pair: pair.step)
    why = f"what differs: {', '.join(done.machine)}"
    if done.parts and done.first_part is not None and first.step > done.first_part:
        why = f"the run itself went on elsewhere after step {done.first_part}"
    elif not done.machine:
        why = "versions, device, threads and dtype are the run's"
    return (
        f"{done.folder}: not the same here, from step {first.step} on "
        f"({first.quantity}, relative difference {first.relative:.1e}); {why}"
    )
