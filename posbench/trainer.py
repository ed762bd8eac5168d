"""The training loop: segment memory, checkpoints, clean stops.

Shapes: B batch, T tokens, M memory.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from posbench import build, checkpoint
from posbench.attention.fused import hide_from_compilers
from posbench.config import Config
from posbench.errors import UserError
from posbench.files import append_row, read_rows, write_text
from posbench.loss import cross_entropy
from posbench.model import Transformer
from posbench.optim import optimizer, schedule
from posbench.runtime import peak_memory
from posbench.segments import Batch


class Stream(Protocol):
    """Batches as a pure function of their number: the position is the whole resume state."""

    def batch(self, step: int) -> Batch: ...


class Watcher(Protocol):
    """What looks on while a run trains."""

    def __call__(self, row: dict[str, float]) -> None: ...


class NotFinite(Exception):
    """A loss or gradient norm that is infinite or no number."""

    def __init__(self, step: int, loss: float, gradient: float) -> None:
        super().__init__(f"the loss is {loss}, the gradient norm {gradient} at step {step}")


class Diverged(UserError):
    """Training came to a loss that is no number."""


class Stopped(KeyboardInterrupt):
    """Training was asked to stop, and has saved."""


class Trainer:
    """Everything that changes from step to step."""

    def __init__(
        self,
        model: Transformer,
        stream: Stream,
        config: Config,
        device: torch.device,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.stream, self.config, self.device = model, stream, config, device
        self.autocast = autocast
        self.optimizer = optimizer(model, config.optim, build.positional(config))
        self.forward = model
        if config.train.compile:
            hide_from_compilers()
            torch._dynamo.reset()  # what earlier jobs of the process left
            self.forward = cast(Transformer, torch.compile(model))
        self.memory: list[Tensor] = []  # one [B, M, D] a layer
        self.hidden: Tensor | None = None  # [B, M]: memory of another document
        self.step = 0
        self.latest = torch.zeros(2, device=device)  # the loss, and the gradient norm
        self.broken = torch.zeros(3, device=device)  # step, loss, norm where one was no number

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products."""
        return self.autocast or torch.float32

    def optimize(self) -> tuple[float, float]:
        """One optimizer step; the mean loss in nats and the gradient norm before clipping.

        Raises NotFinite, and leaves the weights alone, if either is no number.
        """
        self.advance()
        return self.read()

    def advance(self) -> None:
        """One optimizer step. On CUDA it is only launched: nothing here waits for a number."""
        rate = schedule(self.step, self.config.train.steps, self.config.optim)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_multiplier"]
        accumulate = self.config.train.accumulate
        total = torch.zeros((), device=self.device)
        for part in range(accumulate):
            share = self._loss(self.stream.batch(self.step * accumulate + part)) / accumulate
            share.backward()
            total += share.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip)
        self.latest = torch.stack((total, norm))
        bad = ~self.latest.isfinite().all()
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # then it does nothing
        self.optimizer.step()
        self.model.encoding.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        now = torch.cat((self.latest.new_full((1,), self.step), self.latest))
        self.broken = torch.where(bad & (self.broken[0] == 0), now, self.broken)

    def read(self) -> tuple[float, float]:
        """The latest step's loss in nats and gradient norm, waited for.

        Raises NotFinite if in any step since the last time one of them was no number.
        """
        loss, norm, step, *broken = torch.cat((self.latest, self.broken)).tolist()
        if step:
            self.broken = torch.zeros_like(self.broken)
            raise NotFinite(int(step), *broken)
        return loss, norm

    def _loss(self, batch: Batch) -> Tensor:
        inputs, targets = self._moved(batch.inputs), self._moved(batch.targets)
        memory, hidden = self._recall(torch.as_tensor(batch.fresh))
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=enabled):
            states, self.memory = self.forward(inputs, memory, hidden)
            weight = self.model.tokens.weight
            return cross_entropy(states.flatten(0, 1), weight, targets.flatten())

    def _moved(self, x: np.ndarray) -> Tensor:
        """On the device, without waiting for it."""
        moved = torch.as_tensor(x)
        if self.device.type == "cuda":
            moved = moved.pin_memory()
        return moved.to(self.device, non_blocking=True)

    def _recall(self, fresh: Tensor) -> tuple[list[Tensor] | None, Tensor | None]:
        """The memory this batch may see, and what of it is hidden: a fresh row sees none.

        What is hidden is known here, and kept here: the device is not asked.
        """
        keep, length = self.model.encoding.memory_length, self.config.train.length
        if keep == 0:
            return None, None
        hidden = self.hidden
        memory: list[Tensor] | None = self.memory or None
        if memory is not None and hidden is not None:
            hidden = hidden | fresh[:, None]
            if bool(hidden.all()):
                memory = hidden = None
        now = torch.zeros(len(fresh), length, dtype=torch.bool)
        self.hidden = (now if hidden is None else torch.cat((hidden, now), 1))[:, -keep:]
        if hidden is None or not bool(hidden.any()):
            return memory, None
        return memory, hidden.to(self.device, non_blocking=True)

    def save(self, folder: Path) -> Path:
        extra = {"random": torch.get_rng_state()}
        if self.device.type == "cuda":
            extra["random_cuda"] = torch.cuda.get_rng_state(self.device)
        if self.hidden is not None:
            extra["hidden"] = self.hidden
        extra |= {f"memory.{number:03d}": past for number, past in enumerate(self.memory)}
        return checkpoint.save(folder, self.step, self.model, self.optimizer, extra)

    def restore(self, folder: Path) -> None:
        checkpoint.load_model(folder, self.model)
        self.step, extra = checkpoint.load_training(folder, self.model, self.optimizer)
        torch.set_rng_state(extra["random"])
        if "random_cuda" in extra:
            torch.cuda.set_rng_state(extra["random_cuda"], self.device)
        self.hidden = extra.get("hidden")
        memory = sorted(name for name in extra if name.startswith("memory."))
        self.memory = [extra[name].to(self.device) for name in memory]


def fit(trainer: Trainer, folder: Path, watch: Watcher, record: Watcher) -> None:
    """Train to the last step, from the newest checkpoint if there is one.

    metrics.jsonl and record get a row every tracking.every steps, watch a shorter one every step.
    Raises Stopped after Ctrl-C or SIGTERM, once saved, and Diverged when the loss is not finite.
    """
    config = trainer.config
    metrics = folder / "metrics.jsonl"
    if (newest := checkpoint.latest(folder)) is not None:
        trainer.restore(newest)
    _forget_after(metrics, trainer.step)
    trainer.model.train()
    tokens = config.train.batch * config.train.length * config.train.accumulate
    each = trainer.device.type == "cpu"  # elsewhere reading a number means waiting for it
    with stop_requests() as stop:
        before, started = trainer.step, time.perf_counter()
        while trainer.step < config.train.steps:
            trainer.advance()
            last = trainer.step == config.train.steps
            due = trainer.step % config.tracking.every == 0 or last
            stopped = stop.is_set()
            save = trainer.step % config.train.checkpoint_every == 0 or last or stopped
            if not (each or due or save):
                continue
            try:
                loss, norm = trainer.read()
            except NotFinite as error:
                raise _advice(error, folder) from error
            seconds = time.perf_counter() - started
            rate = tokens * (trainer.step - before) / seconds
            row = {"step": trainer.step, "loss": loss, "tokens_per_second": rate}
            watch(row)
            if due:
                lr = trainer.optimizer.param_groups[0]["lr"]
                row |= {"grad_norm": norm, "lr": lr, "peak_memory": peak_memory(trainer.device)}
                append_row(metrics, row)
                record(row)
            if save:
                trainer.save(folder)
            if stopped:
                raise Stopped(
                    f"stopped at step {trainer.step} of {config.train.steps}; "
                    "the same command, without run.overwrite, goes on"
                )
            before, started = trainer.step, time.perf_counter()


def _advice(error: NotFinite, folder: Path) -> Diverged:
    good = checkpoint.latest(folder)
    return Diverged(
        f"{error}; last good checkpoint: {good or 'none yet'}. Try a lower "
        "optim.lr, a longer optim.warmup or runtime.dtype=float32, with run.overwrite=true"
    )


def _forget_after(metrics: Path, step: int) -> None:
    """Drop the rows that a resumed run is about to write again."""
    rows = read_rows(metrics)
    if any(row["step"] > step for row in rows):
        kept = (json.dumps(row) + "\n" for row in rows if row["step"] <= step)
        write_text(metrics, "".join(kept))


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Set on the first Ctrl-C or SIGTERM; a second Ctrl-C interrupts at once."""
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
