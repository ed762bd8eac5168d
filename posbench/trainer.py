"""The training loop: segment memory, checkpoints, clean stops.

Shapes: B batch, T tokens, M memory.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench import build, checkpoint
from posbench.config import Config
from posbench.errors import UserError
from posbench.files import append_row, read_rows, write_text
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

    def __init__(self, loss: float, gradient: float) -> None:
        super().__init__(f"the loss is {loss}, the gradient norm {gradient}")


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
            torch._dynamo.reset()  # what earlier jobs of the process left
            self.forward = cast(Transformer, torch.compile(model))
        self.memory: list[Tensor] = []  # one [B, M, D] a layer
        self.hidden: Tensor | None = None  # [B, M]: memory of another document
        self.step = 0

    def optimize(self) -> tuple[float, float]:
        """One optimizer step; the mean loss in nats and the gradient norm before clipping.

        Raises NotFinite, and leaves the weights alone, if either is no number.
        """
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
        loss, gradient = total.item(), norm.item()
        if not math.isfinite(loss + gradient):
            raise NotFinite(loss, gradient)  # before the weights take it in
        self.optimizer.step()
        self.model.encoding.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss, gradient

    def _loss(self, batch: Batch) -> Tensor:
        inputs = torch.as_tensor(batch.inputs).to(self.device)
        targets = torch.as_tensor(batch.targets).to(self.device)
        memory, hidden = self._recall(torch.as_tensor(batch.fresh).to(self.device))
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=enabled):
            states, self.memory = self.forward(inputs, memory, hidden)
            logits = self.model.logits(states)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def _recall(self, fresh: Tensor) -> tuple[list[Tensor] | None, Tensor | None]:
        """The memory this batch may see, and what of it is hidden: a fresh row sees none."""
        keep, length = self.model.encoding.memory_length, self.config.train.length
        if keep == 0:
            return None, None
        hidden = self.hidden
        memory: list[Tensor] | None = self.memory or None
        if memory is not None and hidden is not None:
            hidden = hidden | fresh[:, None]
            if bool(hidden.all()):
                memory = hidden = None
        now = torch.zeros(len(fresh), length, dtype=torch.bool, device=self.device)
        self.hidden = (now if hidden is None else torch.cat((hidden, now), 1))[:, -keep:]
        return memory, hidden if hidden is not None and bool(hidden.any()) else None

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
        self.hidden = extra["hidden"].to(self.device) if "hidden" in extra else None
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
    with stop_requests() as stop:
        while trainer.step < config.train.steps:
            started = time.perf_counter()
            try:
                loss, norm = trainer.optimize()
            except NotFinite as error:
                raise _advice(error, trainer.step + 1, folder) from error
            rate = tokens / (time.perf_counter() - started)
            row = {"step": trainer.step, "loss": loss, "tokens_per_second": rate}
            watch(row)
            last = trainer.step == config.train.steps
            if trainer.step % config.tracking.every == 0 or last:
                lr = trainer.optimizer.param_groups[0]["lr"]
                row |= {"grad_norm": norm, "lr": lr, "peak_memory": peak_memory(trainer.device)}
                append_row(metrics, row)
                record(row)
            if trainer.step % config.train.checkpoint_every == 0 or last or stop.is_set():
                trainer.save(folder)
            if stop.is_set():
                raise Stopped(
                    f"stopped at step {trainer.step} of {config.train.steps}; "
                    "the same command, without run.overwrite, goes on"
                )


def _advice(error: NotFinite, step: int, folder: Path) -> Diverged:
    good = checkpoint.latest(folder)
    return Diverged(
        f"{error} at step {step}; last good checkpoint: {good or 'none yet'}. Try a lower "
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
