"""A step of training and a pass of evaluation at the sizes of speed.py, and their peak memory.

Not timed: what they compile is in PyTorch's cache on disk when it is.
"""

from __future__ import annotations

from functools import partial

import torch

from posbench.speed import memory, work
from scripts.gpu import common
from scripts.gpu.part import Case, Row, Settings

SIZES = "model=small speed.tokens=16384 speed.rounds=3 speed.seconds=0.2".split()
TINY = (
    "model=tiny model.width=32 model.heads=2 model.layers=1 speed.tokens=128 speed.rounds=1 "
    "speed.seconds=0 speed.vocabulary=64 eval.targets=8 runtime.threads=1"
).split()
ORDER = [
    ("train", 2048),
    ("train", 512),
    ("eval", 2048),
    ("train", 8192),
    ("eval", 8192),
    ("eval", 512),
]

Wanted = tuple[str, str, int]


def cases(settings: Settings) -> list[Case]:
    return [
        Case(" ".join(map(str, one)), partial(tried, one, settings), family=one[0])
        for one in wanted(settings)
    ]


def wanted(settings: Settings) -> list[Wanted]:
    """Encoding, mode and length, the most informative first."""
    if settings.rehearse:
        return [("t5", "train", 32)]
    return [(name, *one) for one in ORDER for name in common.TIMED]


def words(settings: Settings) -> list[str]:
    return TINY if settings.rehearse else SIZES


def tried(one: Wanted, settings: Settings) -> Row:
    """Raises Failed where it cannot be done."""
    name, mode, length = one
    config = common.timed(name, settings, *words(settings)).at(mode, length)
    device = torch.device(settings.device)
    found = memory.measure(config, mode, length, device)
    torch.cuda.empty_cache()
    return {"peak_mib": round(found.used / 2**20, 1), "windows": work.windows(config, length)}
