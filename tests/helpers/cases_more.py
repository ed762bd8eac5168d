"""The encodings that test_more_definitions.py tests, each beside its naive definition.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from posbench.attention import KERNELS
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cable import CABLE
from posbench.encodings.cope import CoPE
from posbench.encodings.dape import DAPE
from posbench.encodings.extension import (
    NTK,
    DynamicNTK,
    Interpolated,
    LogNRoPE,
    Streaming,
    YaRN,
)
from posbench.encodings.fire import FIRE
from posbench.encodings.fox import FoX
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.logn import LogN
from posbench.encodings.p_rope import PRoPE
from posbench.encodings.partial_rope import PartialRoPE
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.ssmax import SSMax
from posbench.encodings.t5 import T5Unscaled
from posbench.encodings.xpos import XPos
from tests.helpers import cases, naive, naive_more
from tests.helpers.cases import LAYER, LAYERS, SOME, Make, with_gradients
from tests.helpers.naive_more import Logit, by_pair, rotated

POSITIVE = {"r1", "r2"}
"""Parameters that must be positive: KERPLE's."""


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding, and what the attention under it is by definition."""

    name: str
    make: Make
    logit: Logit
    value: naive_more.Value | None = None
    heads: int = 2
    head_width: int = 4

    @property
    def shape(self) -> Shape:
        return Shape(width=self.heads * self.head_width, heads=self.heads, layers=LAYERS)

    def encoding(self, dtype: torch.dtype = torch.float64) -> Encoding:
        return randomised(self.make(self.shape)).to(dtype)


def randomised(encoding: Encoding) -> Encoding:
    """With parameters N(0, 1/4), the positive ones U(0.1, 1.6): none is too small to matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoding.named_parameters():
            if name.split(".")[-1] in POSITIVE:
                drawn = 0.1 + 1.5 * torch.rand(parameter.shape, generator=generator)
            else:
                drawn = 0.5 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn)
    return encoding


def _wide(name: str, kind: Any, logit: Logit, heads: int = 2, **options: Any) -> Case:
    """Eight dimensions a head: four pairs to turn."""
    return Case(name, lambda shape: kind(shape, **options), logit, heads=heads, head_width=8)


def _extended(name: str, kind: Any, frequencies: naive_more.Frequencies, **options: Any) -> Case:
    return _wide(name, kind, rotated(frequencies, "half"), **options)


def _alibi(slopes: str, heads: int, logit: naive.Logit) -> Case:
    def make(shape: Shape) -> Encoding:
        return ALiBi(shape, slopes=slopes)

    return Case(f"alibi-{slopes}-h{heads}", make, by_pair(logit), heads=heads)


def _p_rope(fraction: str, layout: str) -> Case:
    logit = rotated(naive_more.p_rope(fraction), layout)
    options: dict[str, Any] = {"layout": layout, "fraction": float(fraction)}
    return _wide(f"p_rope-{fraction}-{layout}", PRoPE, logit, **options)


def _partial(fraction: str, layout: str) -> Case:
    logit = rotated(naive_more.partial(fraction), layout)
    options: dict[str, Any] = {"layout": layout, "fraction": float(fraction)}
    return _wide(f"partial_rope-{fraction}-{layout}", PartialRoPE, logit, **options)


STREAM = Case(
    "streaming",
    lambda shape: Streaming(shape, original_length=6, sinks=2, recent=4),
    naive_more.streaming("half"),
    head_width=8,
)

DYNAMIC = _extended(
    "dynamic_ntk",
    DynamicNTK,
    naive_more.dynamic_ntk(4.0, 8),
    factor=4.0,
    original_length=8,
)
"""Its frequencies depend on the length of the window, so not on positions alone."""

NEW = [
    _alibi("geometric", 3, naive_more.alibi_geometric),
    _alibi("learned", 3, naive_more.alibi_learned),
    Case("kerple_log", KerpleLog, by_pair(naive_more.kerple_log)),
    Case("kerple_power", KerplePower, by_pair(naive_more.kerple_power)),
    Case("fire", lambda shape: FIRE(shape, threshold=8.0), by_pair(naive_more.fire(8.0))),
    Case("fire-512", lambda shape: FIRE(shape, hidden=5), by_pair(naive_more.fire(512.0))),
    Case("sandwich", Sandwich, by_pair(naive_more.sandwich(128)), heads=5),
    Case("sandwich-8", lambda shape: Sandwich(shape, size=8), by_pair(naive_more.sandwich(8))),
    _wide("xpos", XPos, by_pair(naive_more.xpos())),
    _wide(
        "xpos-fast",
        XPos,
        by_pair(naive_more.xpos(0.2, 8.0, "half")),
        layout="half",
        gamma=0.2,
        scale_base=8.0,
    ),
    _p_rope("0.75", "half"),
    _p_rope("0.3", "interleaved"),
    _partial("0.25", "half"),
    _partial("0.75", "interleaved"),
    Case("cope", CoPE, naive_more.cope),
    Case("cope-4", lambda shape: CoPE(shape, positions=4), naive_more.cope),
    Case("fox", FoX, naive_more.fox),
    Case("cable", CABLE, naive_more.cable),
    Case("dape", lambda shape: DAPE(shape, hidden=5), naive_more.dape, heads=3),
    Case("ssmax", lambda shape: SSMax(shape, length=16), naive_more.ssmax),
    Case("logn", lambda shape: LogN(shape, length=6), naive_more.logn(6, by_pair(naive.nope))),
    Case("t5_unscaled", T5Unscaled, by_pair(naive_more.t5_unscaled)),
    _extended(
        "interpolated",
        Interpolated,
        naive_more.interpolated(4.0),
        factor=4.0,
        original_length=8,
    ),
    _extended("ntk", NTK, naive_more.ntk(4.0), factor=4.0, original_length=8),
    DYNAMIC,
    _wide(
        "yarn",
        YaRN,
        rotated(naive_more.yarn(4.0, 512), "half", 0.1 * math.log(4) + 1),
        factor=4.0,
        original_length=512,
    ),
    _wide(
        "yarn-given",
        YaRN,
        rotated(naive_more.yarn(4.0, 64, 0.5, 4.0), "interleaved", 0.9),
        factor=4.0,
        original_length=64,
        alpha=0.5,
        beta=4.0,
        attention_factor=0.9,
        layout="interleaved",
    ),
    _wide(
        "logn_rope",
        LogNRoPE,
        naive_more.logn(6, rotated(lambda d, length: naive_more.rope(d), "half")),
        original_length=6,
    ),
]


def _old(case: cases.Case) -> Case:
    value: Any = None if case.value is naive.no_value else case.value
    return Case(case.name, case.make, by_pair(case.logit), value, case.heads)


OLD = [_old(case) for case in SOME]
"""Those of cases.py, for what is new to them: windows, and positions with gaps."""

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(
    case: Case, queries: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float64
) -> Inputs:
    """q [B, H, T, d], k and v [B, H, S, d], x [B, S, D]: N(0, 1), the same for one size."""
    generator = torch.Generator().manual_seed(queries + 1000 * keys)

    def draw(*size: int) -> Tensor:
        drawn = torch.randn(batch, *size, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).requires_grad_()

    q, k, v = (draw(case.heads, length, case.head_width) for length in (queries, keys, keys))
    return q, k, v, draw(keys, case.shape.width)


def run(
    kernel: str, encoding: Encoding, qkvx: Inputs, span: Span | None = None, layer: int = LAYER
) -> list[Tensor]:
    """The output, then its gradients by q, k, v, x and every parameter."""
    q, k, v, x = qkvx
    span = span or Span.window(q.shape[2], memory=k.shape[2] - q.shape[2])
    out = KERNELS[kernel](q, k, v, encoding, layer, span, x=x)
    return with_gradients(out, encoding, qkvx)


def define(
    case: Case, encoding: Encoding, qkvx: Inputs, layer: int = LAYER, **how: Any
) -> list[Tensor]:
    """What run should return; how: positions and see of naive_more.attention."""
    out = naive_more.attention(qkvx, encoding, layer, case.logit, case.value, **how)
    return with_gradients(out, encoding, qkvx)
