"""All measurements, every round included, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from posbench.config import SpeedCommand
from posbench.machine import provenance
from posbench.speed import limits
from posbench.speed.measure import Cell, Side
from posbench.speed.rounds import Rounds

Json = dict[str, object]


def place(config: SpeedCommand) -> Path:
    """The record's path, <folder>/<run.name>.json; makes the folder. Raises OSError."""
    path = Path(config.folder) / f"{config.run.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def record(
    config: SpeedCommand, cells: Sequence[Cell], device: torch.device, dtype: torch.dtype
) -> Json:
    """The JSON object of all cells. dtype is that of training.

    Rates are in tokens, operations or bytes per second; memory is RAM in bytes.
    """
    asked = ("seed", "encoding", "model", "speed", "runtime")
    return {
        "encoding": config.run.name,
        "baseline": config.speed.baseline,
        "machine": provenance.here(device, dtype)
        | {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "matmul_side": limits.side(dtype, device),
            "copied_bytes": 4 * limits.COPIED,
        },
        "settings": {key: dataclasses.asdict(config)[key] for key in asked}
        | {"compile": config.train.compile, "train_length": config.train.length},
        "spread": "half the interquartile range of the rounds",
        "cells": [_cell(cell) for cell in cells],
    }


def _cell(cell: Cell) -> Json:
    return {
        "mode": cell.mode,
        "length": cell.length,
        "windows": cell.windows,
        "tokens": cell.tokens,
        "dtype": cell.dtype,
        "encoding": _side(cell, cell.encoding),
        "baseline": _side(cell, cell.baseline),
        "matmul_per_second": _rounds(cell.matmul),
        "copied_bytes_per_second": _rounds(cell.copy),
    }


def _side(cell: Cell, side: Side) -> Json:
    used = side.memory
    return {
        "name": side.name,
        "kernel": side.kernel,
        "reason": side.reason,
        "tokens_per_second": _rounds(side.rates),
        "speed_ratio": _rounds(cell.speed_ratio(side)),
        "memory": None if used is None else dataclasses.asdict(used) | {"used": used.used},
        "memory_ratio": cell.memory_ratio(side),
        "operations": None if side.cost is None else side.cost.operations,
        "bytes": None if side.cost is None else side.cost.bytes,
        "share_of_matmul": _rounds(cell.share_of_matmul(side)),
        "share_of_copy": _rounds(cell.share_of_copy(side)),
    }


def _rounds(rounds: Rounds | None) -> Json | None:
    if rounds is None:
        return None
    return {"rounds": rounds.each, "median": rounds.median, "spread": rounds.spread}
