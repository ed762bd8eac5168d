"""The training loop around a Trainer's steps: rows, checkpoints, clean stops."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from posbench.config import TrainConfig
from posbench.errors import UserError
from posbench.machine.distributed import World
from posbench.machine.files import append_row, read_rows, sync, write_text
from posbench.machine.runtime import memory_for, peak_memory
from posbench.training import checkpoint
from posbench.training.trainer import NotFinite, Trainer

log = logging.getLogger("posbench")


class Watcher(Protocol):
    """A function that is called with rows of training."""

    def __call__(self, row: dict[str, float]) -> None: ...


class Diverged(UserError):
    """The loss became infinite or nan."""


class Stopped(KeyboardInterrupt):
    """Training was stopped by a signal, after a checkpoint."""


def fit(
    trainer: Trainer,
    folder: Path,
    watch: Watcher,
    record: Watcher,
    begin: Callable[[int], None] = lambda step: None,
) -> None:
    """Train to the last step, from the newest checkpoint if there is one.

    begin is called in rank 0 with the step after which training begins or resumes.

    metrics.jsonl and record get a row every tracking.every steps; on a resume record gets the
    earlier rows again. watch gets a shorter row for each step whose numbers are read: every step
    on a CPU, elsewhere those with a row or a checkpoint.
    Raises Stopped after Ctrl-C or SIGTERM, once saved, and Diverged when the loss is not finite.
    """
    config, world = trainer.config, trainer.world
    metrics = folder / "metrics.jsonl"
    _restore(trainer, folder)
    world.on_first(lambda: _tidy(folder, metrics, trainer.step))
    world.on_first(lambda: begin(trainer.step))
    for row in read_rows(metrics):
        record(row)
    trainer.model.train()
    tokens = config.train.batch * config.train.length * config.train.accumulate
    each = trainer.device.type == "cpu"  # elsewhere reading a number means waiting for it
    with stop_requests() as stop:
        before, started = trainer.step, time.perf_counter()
        while trainer.step < config.train.steps:
            with memory_for(*step_needs(config.train)):
                trainer.advance()
            last = trainer.step == config.train.steps
            due = trainer.step % config.tracking.every == 0 or last
            stopped = world.any(stop.is_set())
            save = trainer.step % config.train.checkpoint_every == 0 or last or stopped
            if not (each or due or save):
                continue
            try:
                loss, norm = trainer.read()
            except NotFinite as error:
                with world.together():  # the loss is of all processes
                    raise _advice(error, folder) from error
            seconds = time.perf_counter() - started
            rate = tokens * (trainer.step - before) / seconds
            row = {"step": trainer.step, "loss": loss, "tokens_per_second": rate}
            watch(row)
            if due:
                lr = trainer.optimizer.param_groups[0]["lr"]
                row |= {"grad_norm": norm, "lr": lr, "peak_memory": peak_memory(trainer.device)}
                _write(world, metrics, row)
                record(row)
            if save:
                if world.leads and metrics.exists():
                    sync(metrics)  # no checkpoint outlives its rows
                trainer.save(folder)
            if stopped:
                raise Stopped(
                    f"stopped at step {trainer.step} of {config.train.steps}; "
                    "the same command, without run.overwrite, goes on"
                )
            before, started = trainer.step, time.perf_counter()


def _restore(trainer: Trainer, folder: Path) -> None:
    """Restore the newest undamaged checkpoint, if there are any. Raises Damaged if all are."""
    world, damage = trainer.world, list[checkpoint.Damaged]()
    for place in world.on_first(lambda: list(checkpoint.newest_first(folder))):
        found: checkpoint.Damaged | None = None
        try:
            trainer.restore(place)
        except checkpoint.Damaged as error:
            found = error
        if world.any(found is not None):
            damage.append(found or checkpoint.Damaged(f"{place}: damaged for another process"))
            continue
        for each in damage if world.leads else []:
            log.warning("%s; going on from the one before it, %s", each, place.name)
        return
    if damage:
        with world.together():
            raise checkpoint.Damaged(
                f"{damage[0]}, and there is no other; run.overwrite=true begins again"
            )


def _write(world: World, metrics: Path, row: dict[str, float]) -> None:
    world.on_first(lambda: append_row(metrics, row))


def step_needs(train: TrainConfig) -> tuple[str, str]:
    """For `runtime.memory_for`: what a step is, and advice for what needs less memory."""
    what = f"a training step of train.batch={train.batch} x train.length={train.length}"
    return what, "try a smaller train.batch, and as much more train.accumulate"


def _advice(error: NotFinite, folder: Path) -> Diverged:
    good = checkpoint.latest(folder)
    return Diverged(
        f"{error}; last good checkpoint: {good or 'none yet'}. Try a lower "
        "optim.lr, a longer optim.warmup or runtime.dtype=float32, with run.overwrite=true"
    )


def _tidy(folder: Path, metrics: Path, step: int) -> None:
    """Remove old checkpoints and rows beyond the restored step that a killed run left."""
    checkpoint.prune(folder)
    _forget_after(metrics, step)


def _forget_after(metrics: Path, step: int) -> None:
    """Drop the rows after a step: a resumed run writes them again."""
    rows = read_rows(metrics)
    if any(row["step"] > step for row in rows):
        kept = (json.dumps(row) + "\n" for row in rows if row["step"] <= step)
        write_text(metrics, "".join(kept))


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second Ctrl-C interrupts at once."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def request(number: int, frame: FrameType | None) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    previous = {
        number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
