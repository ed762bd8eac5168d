"""Two-sided attention: every kernel is the reference, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from posbench.attention import KERNELS, fused
from posbench.attention.flex import Seen, block_mask, refused
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import SIDES, ALiBi
from posbench.encodings.dape import DAPE
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.logn import LogN
from posbench.encodings.nope import NoPE
from posbench.encodings.randomized import RandomizedALiBi, RandomizedRoPE, RandomizedT5
from posbench.encodings.rope import RoPE
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.shaw import Shaw
from posbench.encodings.ssmax import SSMax
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers.tolerance import EXACT

SHAPE = Shape(16, 2, 2, two_sided=True)
MADE: dict[str, Callable[[], Encoding]] = {
    "nope": lambda: NoPE(SHAPE),
    "rope": lambda: RoPE(SHAPE),
    **{f"alibi {sides}": partial(ALiBi, SHAPE, "paper", sides) for sides in SIDES},
    "alibi learned": lambda: ALiBi(SHAPE, "learned"),
    "t5": lambda: T5Bias(SHAPE, 8, 9),
    "shaw": lambda: Shaw(SHAPE, 5),
    "shaw keys": lambda: Shaw(SHAPE, 5, values=False),
    "deberta": lambda: DeBERTa(SHAPE, 6),
    "deberta code": lambda: DeBERTa(SHAPE, 6, p2c_index="code"),
    "transformer_xl": lambda: TransformerXL(SHAPE),
    "kerple log": lambda: KerpleLog(SHAPE),
    "kerple power": lambda: KerplePower(SHAPE),
    "sandwich": lambda: Sandwich(SHAPE, 8),
    "ssmax": lambda: SSMax(SHAPE, 20),
    "logn": lambda: LogN(SHAPE, 20),
    "dape": lambda: DAPE(SHAPE, 4),
    "randomized rope": lambda: RandomizedRoPE(SHAPE, 500),
    "randomized alibi": lambda: RandomizedALiBi(SHAPE, 500),
    "randomized t5": lambda: RandomizedT5(SHAPE, 500, 0, 8, 9),
}
each = pytest.mark.parametrize("name", MADE)


@pytest.fixture(autouse=True)
def _flex_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def moved(name: str, window: int | None) -> Encoding:
    """With every parameter moved at random, so that none is too small or too alike to show."""
    torch.manual_seed(1)
    encoding = MADE[name]().double().eval()
    encoding.window = window
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    encoding.after_step()
    return encoding


def ran(kernel: str, encoding: Encoding, length: int) -> list[Tensor]:
    """The output [B, H, T, d], then its gradients by q, k, v and every parameter."""
    generator = torch.Generator().manual_seed(length)
    size = (2, SHAPE.heads, length, SHAPE.head_width)
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(4)]
    leaves = [x.requires_grad_() for x in drawn[:3]]
    span = encoding.place(Span.window(length, two_sided=True))
    q, k, v = leaves
    out = KERNELS[kernel](q, k, v, encoding, 0, span)
    wanted = [*leaves, *encoding.parameters()]
    grads = torch.autograd.grad(out, wanted, drawn[3], allow_unused=True)
    return [
        out,
        *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)),
    ]


def agrees(kernel: str, encoding: Encoding, length: int) -> None:
    expected = ran("reference", encoding, length)
    for a, e in zip(ran(kernel, encoding, length), expected, strict=True):
        scale = max(1.0, e.abs().max().item())
        torch.testing.assert_close(a, e, rtol=EXACT, atol=EXACT * scale)


@each
@pytest.mark.parametrize(("length", "window"), [(1, None), (40, None), (200, None), (200, 5)])
def test_blocked_and_fused_are_the_reference(name: str, length: int, window: int | None) -> None:
    encoding = moved(name, window)
    agrees("blocked", encoding, length)
    if not encoding.fills("scores"):
        agrees("fused", encoding, length)


@each
@pytest.mark.parametrize(("length", "window"), [(40, None), (100, None), (100, 7)])
def test_fused_is_the_reference_in_small_blocks(
    name: str, length: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far pieces on both sides, and weights that are computed again."""
    for key, value in {"BLOCK": 16, "LEAST_BLOCK": 8, "TABLE_BLOCK": 8, "KEPT": 0}.items():
        monkeypatch.setattr(fused, key, value)
    if not (encoding := moved(name, window)).fills("scores"):
        agrees("fused", encoding, length)


@each
@pytest.mark.parametrize(("length", "window"), [(5, None), (140, None), (140, 7)])
def test_flex_is_the_reference(name: str, length: int, window: int | None) -> None:
    encoding = moved(name, window)
    if refused(encoding) is None:
        agrees("flex", encoding, length)


@pytest.mark.parametrize(("keys", "window"), [(256, None), (300, None), (300, 40), (640, 200)])
def test_the_block_mask_is_the_pairs(keys: int, window: int | None) -> None:
    padded = keys + -keys % 128
    made = block_mask(padded, padded, Seen(0, window, keys), torch.device("cpu"))
    theirs = torch_flex.create_block_mask(made.mask_mod, None, None, padded, padded, device="cpu")
    assert torch.equal(made.to_dense(), theirs.to_dense())
    i, j = torch.arange(padded)[:, None], torch.arange(padded)
    seen = (j < keys) & ((i - j).abs() < (window or padded))
    zero = torch.tensor(0)
    assert torch.equal(made.mask_mod(zero, zero, i, j).expand_as(seen), seen)
