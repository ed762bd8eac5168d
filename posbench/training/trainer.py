"""The state of training and one step of it: weights, optimizer, segment memory, random numbers.

Memory is an encoding's segment memory here, never RAM. Shapes: B lanes of a batch, shared out
among the processes; T tokens, M memory, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from posbench.attention.fused import hide_from_compilers
from posbench.config import Config
from posbench.corpus.segments import Batch
from posbench.machine import runtime
from posbench.machine.distributed import ALONE, World
from posbench.model.transformer import Transformer
from posbench.objectives import Vocabulary, objective
from posbench.training import checkpoint
from posbench.training.loss import cross_entropy
from posbench.training.optim import optimizer, positional, schedule


class Stream(Protocol):
    """Batches as a pure function of their number, so that a resume needs the number only."""

    def batch(self, step: int) -> Batch: ...


class NotFinite(Exception):
    """A loss or gradient norm that is infinite or no number."""

    def __init__(self, step: int, loss: float, gradient: float) -> None:
        super().__init__(f"the loss is {loss}, the gradient norm {gradient} at step {step}")


class Trainer:
    """Model, optimizer, stream and all other state that a checkpoint holds."""

    def __init__(
        self,
        model: Transformer,
        stream: Stream,
        config: Config,
        device: torch.device,
        autocast: torch.dtype | None = None,
        world: World = ALONE,
    ) -> None:
        self.model, self.stream, self.config, self.device = model, stream, config, device
        self.autocast, self.world = autocast, world
        self.objective = objective(config)
        self.vocabulary = Vocabulary(len(model.tokens.weight), self.objective.masks)
        self.objective.require(config.train.length, self.vocabulary)
        self.optimizer = optimizer(model, config.optim, positional(config))
        self.graphs = config.train.compile and config.runtime.cuda_graphs
        self.forward = model
        if config.train.compile:
            runtime.require_compiler(device)
            hide_from_compilers()
            torch._dynamo.reset()  # what earlier jobs of the process left
            mode = "reduce-overhead" if self.graphs else "default"
            self.forward = cast(Transformer, torch.compile(model, mode=mode))
        self.forward = cast(Transformer, world.parallel(self.forward))
        self.memory: list[Tensor] = []  # one [lanes, M, D] a layer
        self.hidden: Tensor | None = None  # [B, M], of all lanes: memory of another document
        self.step = 0
        self.latest = torch.zeros(2, device=device)  # the loss, and the gradient norm
        self.broken = torch.zeros(3, device=device)  # step, loss, norm where one was no number

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return self.autocast or torch.float32

    def optimize(self) -> tuple[float, float]:
        """One optimizer step; the mean loss in nats and the gradient norm before clipping.

        Raises NotFinite, and leaves the weights alone, if either is no number.
        """
        self.advance()
        return self.read()

    def advance(self) -> None:
        """One optimizer step. On CUDA it is launched without waiting for its numbers."""
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's tensors are not needed
        rate = schedule(self.step, self.config.train.steps, self.config.optim)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_multiplier"]
        accumulate = self.config.train.accumulate
        total = torch.zeros((), device=self.device)
        for part in range(accumulate):
            number = self.step * accumulate + part
            batch = self.stream.batch(number)
            weight = len(batch.fresh[self._lanes(batch)]) / len(batch.fresh)
            with self._compiling(), self.world.adding(self.forward, last=part == accumulate - 1):
                share = self._loss(batch, number) * weight / accumulate
                (share * self.world.size).backward()  # it is the mean of processes that is taken
            total += share.detach()
        self.world.sum(total)
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

    def _compiling(self) -> AbstractContextManager[None]:
        """Context of a pass: the first one may compile, and the compiler may fail."""
        return runtime.compiling() if self.config.train.compile else nullcontext()

    def read(self) -> tuple[float, float]:
        """Wait for the latest step; its loss in nats and its gradient norm.

        Raises NotFinite if one of them was no number in any step since the last call.
        """
        loss, norm, step, *broken = torch.cat((self.latest, self.broken)).tolist()
        if step:
            self.broken = torch.zeros_like(self.broken)
            raise NotFinite(int(step), *broken)
        return loss, norm

    def _lanes(self, batch: Batch) -> slice:
        """The lanes of this process."""
        return self.world.share(len(batch.fresh))

    def _loss(self, batch: Batch, number: int) -> Tensor:
        """The mean over the targets of this process's lanes, in nats, in the number'th batch."""
        lanes = self._lanes(batch)
        example = self.objective.example(
            batch.inputs[lanes],
            batch.targets[lanes],
            self.config.seed,
            number,
            range(lanes.start, lanes.stop),
            self.vocabulary,
        )
        inputs, targets = self._moved(example.inputs), self._moved(example.targets)
        places = None if example.places is None else self._moved(example.places)
        memory, hidden = self._recall(torch.as_tensor(batch.fresh))
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=enabled):
            states, self.memory = self.forward(inputs, memory, hidden)
            if self.graphs:  # the next replay overwrites what this one returned
                self.memory = [past.clone() for past in self.memory]
            weight = self.model.tokens.weight
            if places is not None:
                states = states.gather(1, places[..., None].expand(-1, -1, states.shape[2]))
            return cross_entropy(states.flatten(0, 1), weight, targets.flatten())

    def _moved(self, x: np.ndarray) -> Tensor:
        """x on the device, copied without waiting."""
        moved = torch.as_tensor(x)
        if self.device.type == "cuda":
            moved = moved.pin_memory()
        return moved.to(self.device, non_blocking=True)

    def _recall(self, fresh: Tensor) -> tuple[list[Tensor] | None, Tensor | None]:
        """This process's memory, and a mask of what of it is hidden: of a fresh lane all.

        The mask is kept on the CPU and for all lanes, so that the device need not be asked and
        every process's memory has the same length.
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
        lanes = self.world.share(len(fresh))
        return memory, hidden[lanes].to(self.device, non_blocking=True)

    def seed(self) -> None:
        """Seed the random numbers of training.

        Rank 0 draws what a single process would. So do the others without dropout, so that an
        encoding with random positions draws the same for all lanes; with dropout their numbers
        follow from seed, rank and step.
        """
        seed = self.config.seed
        if self.world.rank and self.config.model.dropout:
            words = f"{seed} rank {self.world.rank} step {self.step}"
            seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8])
        torch.manual_seed(seed)

    def save(self, folder: Path) -> Path:
        """Write a checkpoint of all processes; its folder."""
        random = {"random": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["random_cuda"] = torch.cuda.get_rng_state(self.device)
        memory = [past.cpu() for past in self.memory]
        everyone = self.world.gather_at_first((random, memory))

        def write() -> Path:
            extra = {} if self.hidden is None else {"hidden": self.hidden}
            for rank, (states, _) in enumerate(everyone):
                extra |= {name + _suffix(rank): state for name, state in states.items()}
            layers = zip(*(memory for _, memory in everyone), strict=True)
            for number, parts in enumerate(layers):
                extra[f"memory.{number:03d}"] = torch.cat(parts)
            return checkpoint.save(folder, self.step, self.model, self.optimizer, extra)

        return self.world.on_first(write)

    def restore(self, folder: Path) -> None:
        """Resume from a checkpoint, to the last bit on the same machine with as many threads and
        processes.

        With more processes dropout differs in those that are new.
        """
        checkpoint.load_model(folder, self.model)
        self.step, extra = checkpoint.load_training(folder, self.model, self.optimizer)
        self._restore_random(extra)
        self.hidden = extra.get("hidden")
        memory = sorted(name for name in extra if name.startswith("memory."))
        lanes = self.world.share(self.config.train.batch)
        self.memory = [extra[name][lanes].to(self.device) for name in memory]

    def _restore_random(self, extra: Mapping[str, Tensor]) -> None:
        own = _suffix(self.world.rank if self.config.model.dropout else 0)
        if f"random{own}" not in extra:
            self.seed()
            return
        torch.set_rng_state(extra[f"random{own}"])
        if f"random_cuda{own}" in extra:
            torch.cuda.set_rng_state(extra[f"random_cuda{own}"], self.device)


def _suffix(rank: int) -> str:
    """The suffix of a rank's random states in a checkpoint."""
    return f".{rank:03d}" if rank else ""
