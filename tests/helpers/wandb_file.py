"""An offline W&B run, read back from its file."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from posbench.tracking.background import _worker

INTERNAL = ("_step", "_runtime", "_timestamp")


def settle() -> None:
    """Until all is done that was asked of trackers, and W&B's own process has ended.

    W&B writes from a process of its own: until that ends, not all is written.
    """
    _worker(os.getpid()).submit(wandb.teardown).result()


def records(folder: Path) -> list[Record]:
    """The records of the one W&B run in folder."""
    settle()
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return read(path)


def read(path: Path) -> list[Record]:
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    # W&B 0.31 has no reader in Python. The framing is LevelDB's log: blocks of 32 KiB, in them
    # pieces of a record behind crc (4 bytes), length (2) and kind (1: whole, 4: last piece).
    found, piece, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):
            found.append(Record.FromString(piece))
            piece = b""
    return found


def rows(folder: Path, axis: str = "step") -> list[dict[str, Any]]:
    """What was logged over an axis, without what W&B adds."""
    items = [r.history.item for r in records(folder) if r.HasField("history")]
    named = [{i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in r} for r in items]
    assert [row["_step"] for row in named] == list(range(len(named)))
    plain = [{k: v for k, v in row.items() if k not in INTERNAL} for row in named]
    return [row for row in plain if axis in row]


def opened(folder: Path) -> Record:
    return next(r for r in records(folder) if r.HasField("run"))


def summary(folder: Path) -> dict[str, Any]:
    """The last value that the summary was given for each key."""
    updates = [u for r in records(folder) for u in r.summary.update]
    return {u.key or ".".join(u.nested_key): json.loads(u.value_json) for u in updates}


def axes(folder: Path) -> dict[str, str]:
    """Metric -> the one that it is drawn over."""
    defined = [r.metric for r in records(folder) if r.HasField("metric")]
    return {metric.name: metric.step_metric for metric in defined}
