"""What changes from training step to training step: weights, segment memory, randomness.

Shapes: B batch, T tokens, M memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from posbench import build, checkpoint
from posbench.attention.fused import hide_from_compilers
from posbench.config import Config
from posbench.loss import cross_entropy
from posbench.model import Transformer
from posbench.optim import optimizer, schedule
from posbench.segments import Batch


class Stream(Protocol):
    """Batches as a pure function of their number: the position is the whole resume state."""

    def batch(self, step: int) -> Batch: ...


class NotFinite(Exception):
    """A loss or gradient norm that is infinite or no number."""

    def __init__(self, step: int, loss: float, gradient: float) -> None:
        super().__init__(f"the loss is {loss}, the gradient norm {gradient} at step {step}")


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
