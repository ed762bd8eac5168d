"""Formulas of distance and position inside torch's flex_attention, one pair at a time.

No library at hand has these encodings. The formulas are written here from the papers, for one
query and one key; what lays them out, masks and differentiates them is torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.fire import FIRE
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.logn import LogN
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.ssmax import SSMax
from tests.helpers.cases import LAYER
from tests.helpers.oracle_agreement import Oracle, agrees, close, draw, kernels
from tests.helpers.oracle_modules import each_dtype, each_length, randomized, shape, widened

flex: Any = pytest.importorskip("torch.nn.attention.flex_attention")

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""scale q . k, the head h = 0 .. H-1, the query's position i, the distance n -> the logit."""

HEADS = 3
HIDDEN = 2


def _alibi_geometric(e: ALiBi) -> Score:
    return lambda score, h, i, n: score - 2.0 ** (-8 * (h + 1.0) / HEADS) * n


def _alibi_learned(e: ALiBi) -> Score:
    slopes = e.log_slopes
    assert slopes is not None
    return lambda score, h, i, n: score - slopes[h].exp() * n


def _kerple_log(e: KerpleLog) -> Score:
    return lambda score, h, i, n: score - e.r1[h] * (1 + e.r2[h] * n).log()


def _kerple_power(e: KerplePower) -> Score:
    return lambda score, h, i, n: score - e.r1[h] * (1.0 * n) ** e.r2[h]


def _sandwich(e: Sandwich) -> Score:
    size = e.size
    period = 10_000 ** (2 * torch.arange(1, size // 2 + 1).double() / size)

    def score(score: Tensor, h: Tensor, i: Tensor, n: Tensor) -> Tensor:
        bias = ((n / period).cos().sum() - size / 2) / (8 * (h + 1) / HEADS)
        return score + bias.to(score.dtype)

    return score


def _fire(e: FIRE) -> Score:
    """Its threshold is 20. Parameters are read one number at a time: others have no gradient."""
    c, m, w1, b1, w2, b2 = (p[LAYER : LAYER + 1] for p in e.parameters())

    def score(score: Tensor, h: Tensor, i: Tensor, n: Tensor) -> Tensor:
        zero = torch.zeros_like(h)
        longest = torch.maximum((20 * m[zero]).abs(), i)
        ratio = ((c[zero] * n).abs() + 1).log() / (((c[zero] * longest).abs() + 1).log() + 1e-6)
        out = b2[zero, h]
        for u in range(HIDDEN):
            hidden = (ratio * w1[zero, zero + u] + b1[zero, zero + u]).relu()
            out = out + hidden * w2[zero, zero + u, h]
        return score + out

    return score


def _ssmax(e: SSMax) -> Score:
    s = e.s[LAYER]
    return lambda score, h, i, n: score * s[h] * (i + 1.0).log()


def _logn(e: LogN) -> Score:
    return lambda score, h, i, n: score * ((i + 1.0).log() / math.log(16)).clamp(min=1)


FORMULAS: dict[str, tuple[Callable[[Shape], Encoding], Callable[..., Score]]] = {
    "alibi-geometric": (lambda shape: ALiBi(shape, slopes="geometric"), _alibi_geometric),
    "alibi-learned": (lambda shape: ALiBi(shape, slopes="learned"), _alibi_learned),
    "kerple-log": (KerpleLog, _kerple_log),
    "kerple-power": (KerplePower, _kerple_power),
    "sandwich": (lambda shape: Sandwich(shape, size=16), _sandwich),
    "fire": (lambda shape: FIRE(shape, hidden=HIDDEN, threshold=20.0), _fire),
    "ssmax": (lambda shape: SSMax(shape, length=16), _ssmax),
    "logn": (lambda shape: LogN(shape, length=16), _logn),
}


def _attention(score: Score) -> Oracle:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        memory = keys - queries

        def logit(dot: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i = i + memory
            return score(dot, h, i, (i - j).clamp(min=0))

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return j <= i + memory

        block = flex.create_block_mask(seen, None, None, queries, keys, device="cpu")
        out: Tensor = flex.flex_attention(q, k, v, score_mod=logit, block_mask=block)
        return out

    return attend


def _encoding(name: str, dtype: torch.dtype) -> Encoding:
    encoding = FORMULAS[name][0](shape(HEADS))
    randomized(encoding, dtype)
    if name.startswith("kerple"):
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.abs_().add_(0.1)  # they must be positive
    return encoding


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@each_dtype
@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run eagerly, flex_attention has gradients on a CPU too; it refuses them by this check."""
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    torch._dynamo.reset()  # each formula is traced, and too many of them refused
    encoding = _encoding(name, dtype)
    agrees(encoding, _attention(FORMULAS[name][1](encoding)), 30, 80, dtype)


@each_length
@pytest.mark.parametrize("name", FORMULAS)
def test_values(name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untraced: quicker."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    encoding = _encoding(name, torch.float64).requires_grad_(False)
    q, k, v = (x.detach() for x in draw(encoding, length, length, torch.float64))
    with widened(torch.float64):
        expected = _attention(FORMULAS[name][1](encoding))(q, k, v)
    for kernel in kernels(encoding):
        actual = KERNELS[kernel](q, k, v, encoding, LAYER, Span.window(length))
        close(actual, expected, 1e-10, kernel)
