"""How many graphs are compiled for lengths 128 to 4096, of one encoding in one process."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch._dynamo.utils import counters

from posbench.attention import KERNELS
from posbench.conformance.subject import Subject
from posbench.encodings import Encoding, Span
from scripts.gpu import common
from scripts.gpu.part import Case, Row, Settings

NAMES = ("t5", "transformer_xl", "deberta")
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 1000, 300, 128)
ALLOWED = 4  # as tests/attention/test_flex.py: one in training, the others for all lengths
MODEL = "model.width=64 model.heads=2 model.layers=2 train.length=512".split()


def cases(settings: Settings) -> list[Case]:
    common.allow_gradients(settings)
    lengths = tuple(n // 8 for n in LENGTHS) if settings.rehearse else LENGTHS
    names = NAMES[:1] if settings.rehearse else NAMES
    return [Case(name, partial(count, name, settings.device, lengths)) for name in names]


def count(name: str, device: str, lengths: tuple[int, ...]) -> Row:
    """Trained at the first length, then evaluated at all."""
    kind = torch.device(device)
    subject = Subject(common.composed(f"encoding={name}", *MODEL), kind)
    encoding = subject.encoding(torch.float32)
    torch._dynamo.reset()
    counters.clear()
    _attend(encoding, lengths[0], kind).square().sum().backward()
    found: list[Row] = [{"length": lengths[0], "mode": "train", "graphs": _graphs()}]
    with torch.no_grad():
        for length in lengths:
            started = time.perf_counter()
            _attend(encoding, length, kind).sum().item()
            seconds = round(time.perf_counter() - started, 2)
            row = {"length": length, "mode": "eval", "graphs": _graphs(), "seconds": seconds}
            found.append(row)
            print(name, row, flush=True)
    return {"graphs": _graphs(), "ok": 0 < _graphs() <= ALLOWED, "each": found}


def _graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def _attend(encoding: Encoding, length: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    heads, width = encoding.shape.heads, encoding.shape.head_width
    q = torch.randn(2, heads, length, width, generator=generator).to(device).requires_grad_()
    return KERNELS["flex"](q, q, q, encoding, 1, Span.window(length, device=device))
