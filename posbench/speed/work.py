"""What is timed: a training step and a pass of evaluation, as `posbench train` and `eval` do them.

B windows of T random tokens. Training is `Trainer.optimize` in the middle of a document, so that
segment memory is full; a tiny learning rate keeps the weights as initialised. Evaluation is
`evaluation.score.score` over windows of `fixed_targets`, the default protocol of `posbench eval`:
float32, no gradient, no segment memory, logits of the last eval.targets tokens alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from posbench.config import SpeedCommand
from posbench.corpus.segments import Batch
from posbench.evaluation.masked import passes
from posbench.evaluation.score import score
from posbench.evaluation.windows import Window
from posbench.machine import runtime
from posbench.model import footprint, from_config
from posbench.speed.rounds import Work
from posbench.training.trainer import Trainer

RATE = 1e-9  # learning rate: training cannot diverge
BATCHES = 4  # used in turn


class RandomStream:
    """Batches of random tokens, made beforehand; every segment continues the one before."""

    def __init__(self, config: SpeedCommand) -> None:
        windows, length = config.train.batch, config.train.length
        tokens = random_tokens(config, BATCHES, windows, length + 1)
        fresh = np.zeros(windows, dtype=np.bool_)
        self.batches = [Batch(part[:, :-1], part[:, 1:], fresh) for part in tokens]

    def batch(self, step: int) -> Batch:
        return self.batches[step % len(self.batches)]


def random_tokens(config: SpeedCommand, *size: int) -> NDArray[np.int64]:
    return np.random.default_rng(config.seed).integers(config.speed.vocabulary, size=size)


def windows(config: SpeedCommand, length: int) -> int:
    """B, the windows of a pass: as many as speed.tokens has room for, at least one."""
    return max(1, config.speed.tokens // length)


def scored(config: SpeedCommand, length: int) -> int:
    """How many tokens of a window evaluation computes logits for."""
    return min(config.eval.targets, length)


def dtype(config: SpeedCommand, mode: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: autocast's in training. Raises UserError if unknown."""
    trained = runtime.training_dtype(config.runtime.dtype, device)
    return trained if mode == "train" else torch.float32


def training(config: SpeedCommand, length: int, device: torch.device) -> Work:
    """One optimizer step over B windows; Work.amount is its tokens."""
    model = from_config.model(config, config.speed.vocabulary).to(device).train()
    batch, remembered = windows(config, length), model.encoding.memory_length
    train = dataclasses.replace(config.train, length=length, batch=batch, accumulate=1)
    config = dataclasses.replace(
        config, train=train, optim=dataclasses.replace(config.optim, lr=RATE)
    )
    autocast = dtype(config, "train", device)
    footprint.require_training(model, config.model, config.train, device, autocast.itemsize)
    stream = RandomStream(config)
    reduced = None if autocast is torch.float32 else autocast
    trainer = Trainer(model, stream, config, device, reduced)

    def step() -> None:
        trainer.optimize()
        wait(device)

    return Work(step, batch * length, warm=1 + math.ceil(remembered / length))


def evaluation(config: SpeedCommand, length: int, device: torch.device) -> Work:
    """One forward pass over B windows of as many documents; Work.amount is its tokens."""
    model = from_config.model(config, config.speed.vocabulary).to(device).eval()
    tokens = windows(config, length) * length
    footprint.require_pass(f"{tokens:,} tokens", tokens, config.model, torch.float32, device)
    documents = list(random_tokens(config, windows(config, length), length + 1))
    asked = [Window(n, 0, length, scored(config, length)) for n in range(len(documents))]
    if model.shape.two_sided:
        first = length - scored(config, length)
        asked = [passes(each, first, length, length + 1, config.eval.folds)[0] for each in asked]
    return Work(lambda: score(model, documents, asked, tokens, device), tokens, warm=1)


def wait(device: torch.device) -> None:
    """Wait until the device has done all its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


MODES: dict[str, Callable[[SpeedCommand, int, torch.device], Work]] = {
    "train": training,
    "eval": evaluation,
}
