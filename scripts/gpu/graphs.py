"""The demo's small model in training, eager, compiled and replayed as CUDA graphs.

The losses of the first steps have to be alike: a replay that overwrites what is still needed, as
Transformer-XL's memory, shows there. Then tokens/s of each, one after the other; other parts run
beside this one, so these are rough: --only graphs measures them alone.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial

import torch

from posbench.config import SpeedCommand
from posbench.model import from_config
from posbench.speed import work
from posbench.training.trainer import Trainer
from scripts.gpu import common
from scripts.gpu.part import Case, Row, Settings

NAMES = ("nope", "transformer_xl", "alibi", "t5")
WAYS = {"eager": (False, False), "compiled": (True, False), "graphs": (True, True)}
STEPS = 8  # of which the losses are compared: the first ones warm up, then graphs are recorded
TIMED = 100
APART = 2e-3  # of a loss, float32: compiled kernels round otherwise
SIZES = "model=tiny train.length=128 speed.tokens=1024 runtime.dtype=float32".split()
TINY = (
    "model=tiny model.width=32 model.heads=2 model.layers=1 train.length=32 speed.tokens=64 "
    "speed.vocabulary=64 runtime.threads=1 runtime.dtype=float32"
).split()


def cases(settings: Settings) -> list[Case]:
    names = NAMES[1:2] if settings.rehearse else NAMES
    return [Case(name, partial(compared, name, settings)) for name in names]


def compared(name: str, settings: Settings) -> Row:
    """Losses and tokens/s of the three ways, of the same model and batches."""
    config = common.timed(name, settings, *(TINY if settings.rehearse else SIZES)).at("eval", 0)
    timed = 2 if settings.rehearse else TIMED
    found = {way: trained(config, *asked, settings, timed) for way, asked in WAYS.items()}
    eager = found["eager"]["losses"]
    apart = max(
        abs(mine - its) / its
        for each in found.values()
        for mine, its in zip(each["losses"], eager, strict=True)
    )
    return {"ok": apart < APART, "apart": apart, "ways": found}


def trained(
    config: SpeedCommand, compiled: bool, graphs: bool, settings: Settings, timed: int
) -> Row:
    """The first steps' losses, seconds until they were made, and tokens/s of the later ones."""
    device = torch.device(settings.device)
    batch = work.windows(config, config.train.length)
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, batch=batch, accumulate=1),
        runtime=dataclasses.replace(config.runtime, cuda_graphs=graphs),
    )
    config = common.compiling(config, compiled)
    model = from_config.model(config, config.speed.vocabulary).to(device).train()
    trainer = Trainer(model, work.RandomStream(config), config, device)
    started = time.perf_counter()
    losses = [trainer.optimize()[0] for _ in range(STEPS)]
    ready = time.perf_counter()
    for _ in range(timed):
        trainer.advance()
    trainer.read()
    seconds = time.perf_counter() - ready
    return {
        "losses": losses,
        "first_steps_seconds": ready - started,
        "tokens_per_second": timed * batch * config.train.length / seconds,
    }
