"""Peak memory of one layer's attention: run as a process, which does nothing else.

It is asked in JSON on stdin, [name, kernel or null, length, training, two-sided] each, and answers
with the bytes. One process serves many: the kernel's high-water mark is reset in between, and
blocks that are free are not kept (posbench/speed/memory.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import torch
from hydra import compose, initialize_config_module
from torch import Tensor

from posbench.attention import KERNELS, choose
from posbench.config import Config, load
from posbench.encodings import Encoding, Shape, Span
from posbench.machine import runtime
from posbench.model import from_config
from posbench.speed.memory import ENOUGH
from tests.helpers.places import ROOT

SHAPE = Shape(width=64, heads=2, layers=6)
CPU = torch.device("cpu")
REHEARSED = 300  # tokens: what libraries load and keep is there before the mark is reset

Asked = tuple[str, str | None, int, bool] | tuple[str, str | None, int, bool, bool]
"""Name, kernel, length, training, and whether keys after the query are seen."""


def possible() -> bool:
    """Whether a process's mark can be read and reset: on Linux."""
    return os.access("/proc/self/clear_refs", os.W_OK)


def peaks(asked: Sequence[Asked]) -> list[int]:
    """In bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.peaks"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(ENOUGH)},
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def _encoding(name: str, length: int, two_sided: bool) -> Encoding:
    """As shipped, but for one that is not as long."""
    with initialize_config_module("posbench.conf", version_base="1.3"):
        config = load(compose("train", [f"encoding={name}", f"run.name={name}"]), Config)
    limited = {"learned": "max_length", "randomized": "positions"}
    for kind, key in limited.items():
        if config.run.name.startswith(kind) and key in config.encoding:
            config.encoding[key] = max(length, REHEARSED)
    shape = dataclasses.replace(SHAPE, two_sided=two_sided)
    return from_config.encoding(config.encoding, shape)


def _parts(encoding: Encoding) -> dict[Encoding, tuple[Encoding, int]]:
    """Those that serve a layer, and a layer's number there."""
    return {part: (part, number) for part, number in map(encoding.at, range(SHAPE.layers))}


def _attend(encoding: Encoding, layer: int, kernel: str, length: int, training: bool) -> None:
    span = encoding.place(Span.window(length, two_sided=encoding.shape.two_sided))
    size = (1, SHAPE.heads, length, SHAPE.head_width)
    q, k, v = (torch.randn(size, requires_grad=training) for _ in range(3))
    x = torch.randn(1, length, SHAPE.width, requires_grad=training)
    out: Tensor = KERNELS[kernel](q, k, v, encoding, layer, span, x=x)
    assert bool(out.isfinite().all())
    if training:
        out.sum().backward()


def _peak(
    name: str, kernel: str | None, length: int, training: bool, two_sided: bool = False
) -> int:
    """The largest of those that serve a layer."""
    found = []
    for part, layer in _parts(_encoding(name, length, two_sided)).values():
        part.train(training)
        chosen = kernel or choose(part)
        with torch.set_grad_enabled(training):
            _attend(part, layer, chosen, REHEARSED, training)
            runtime.reset_peak_memory(CPU)
            before = runtime.peak_memory(CPU)
            _attend(part, layer, chosen, length, training)
            found.append(runtime.peak_memory(CPU) - before)
    return max(found)


if __name__ == "__main__":
    torch.set_num_threads(1)  # each has buffers of its own
    print(json.dumps([_peak(*each) for each in json.load(sys.stdin)]))
