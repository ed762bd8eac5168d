"""One step of gpt125m.py's models, compiled: seconds until it is, and whether it is at all."""

from __future__ import annotations

import time
from functools import partial

import torch

from posbench.speed import work
from scripts.gpu import common, gpt125m
from scripts.gpu.part import Case, Row, Settings


def cases(settings: Settings) -> list[Case]:
    names = gpt125m.NAMES[:1] if settings.rehearse else gpt125m.NAMES
    return [Case(f"{name} compiled", partial(step, name, settings)) for name in names]


def step(name: str, settings: Settings) -> Row:
    """The first step, and one that is compiled."""
    config = common.compiling(gpt125m.configuration(name, settings), True)
    made = work.training(config, config.train.length, torch.device(settings.device))
    row: Row = {}
    for key in ("first_step_seconds", "second_step_seconds"):
        started = time.perf_counter()
        made.call()
        row[key] = time.perf_counter() - started
    return row
