"""A model of 125M parameters in training: which share of the matrix product's rate it reaches.

Width 768, 12 layers, 12 heads, a vocabulary of 50,304, 16 windows of 1,024, bfloat16. Operations
are those that have to be done (posbench/speed/cost.py): where attention is causal half the square.
"""

from __future__ import annotations

from functools import partial

import torch

from posbench.config import SpeedCommand
from posbench.machine import runtime
from posbench.model import from_config
from posbench.speed import limits, work
from posbench.speed.cost import Pass, cost
from posbench.speed.rounds import Best, Rounds, Steady, alternate
from scripts.gpu import common
from scripts.gpu.part import Case, Row, Settings

NAMES = ("t5", "nope", "alibi", "rope")
ROUNDS = 3
SIZES = (
    "model=kerple2022 train.length=1024 speed.tokens=16384 speed.vocabulary=50304 "
    "speed.seconds=0.5"
).split()
TINY = (
    "model=tiny model.width=32 model.heads=2 model.layers=1 train.length=32 speed.tokens=64 "
    "speed.vocabulary=64 speed.seconds=0 runtime.threads=1"
).split()


def cases(settings: Settings) -> list[Case]:
    common.shrink(settings)
    asked = [(name, how) for how in ("eager", "compiled") for name in NAMES]
    if settings.rehearse:
        asked = [("t5", "eager")]
    return [
        Case(f"{name} {how}", partial(measured, name, how == "compiled", settings))
        for name, how in asked
    ]


def configuration(name: str, settings: Settings) -> SpeedCommand:
    asked = TINY if settings.rehearse else SIZES
    subject = common.timed(name, settings, *asked)
    return subject.at("eval", 0)  # train.length stays as it is asked


def measured(name: str, compiled: bool, settings: Settings) -> Row:
    """Steps of training and the matrix product, in turn. Raises RuntimeError where one fails."""
    device = torch.device(settings.device)
    config = common.compiling(configuration(name, settings), compiled)
    length, dtype = config.train.length, work.dtype(config, "train", device)
    runtime.reset_peak_memory(device)
    found = alternate(
        {
            "steps": Steady(lambda: work.training(config, length, device), config.speed.seconds),
            "matmul": Best(lambda: limits.matmul(dtype, device), limits.TRIES),
        },
        ROUNDS,
    )
    steps, matmul = found["steps"], found["matmul"]
    if not isinstance(steps, Rounds) or not isinstance(matmul, Rounds):
        raise RuntimeError(f"steps: {steps}; matrix product: {matmul}")
    peak = runtime.peak_memory(device)
    torch.cuda.empty_cache()
    return _row(config, steps, matmul, device) | {"peak_mib": round(peak / 2**20, 1)}


def _row(config: SpeedCommand, steps: Rounds, matmul: Rounds, device: torch.device) -> Row:
    length, windows = config.train.length, work.windows(config, config.train.length)
    model = from_config.model(config, config.speed.vocabulary).to(device)
    dtype = work.dtype(config, "train", device)
    one = Pass(True, windows, length, length, dtype.itemsize)
    each = cost(model, config.model, one).operations / (windows * length)
    share = steps.times(each).over(matmul)
    return {
        "kernel": model.kernel,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_second": steps.median,
        "spread": steps.spread,
        "step_seconds": windows * length / steps.median,
        "operations_per_token": each,
        "matmul_per_second": matmul.median,
        "share_of_matmul": share.median,
        "share_spread": share.spread,
    }
