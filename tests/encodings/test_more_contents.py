"""The further encodings that depend on contents or counts: published numbers, known faults."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention import KERNELS, ON_CPU
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.cable import CABLE
from posbench.encodings.cope import CoPE
from posbench.encodings.fox import FoX
from posbench.encodings.logn import LogN
from posbench.encodings.ssmax import SSMax
from posbench.encodings.t5 import T5Bias, T5Unscaled
from tests.helpers.cases_more import NEW, Case, inputs, randomised, run
from tests.helpers.tolerance import FORMULA, HALF, SINGLE, ULPS

BASE = Shape(width=768, heads=12, layers=12)
SMALL = Shape(width=8, heads=2, layers=2)

each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


def _case(name: str) -> Case:
    return next(case for case in NEW if case.name == name)


# CoPE


def test_cope_starts_at_zero() -> None:
    encoding = CoPE(SMALL, positions=5)
    assert encoding.table.shape == (2, 4, 5)
    assert not encoding.table.any()


def test_cope_counts_the_querys_own_gate() -> None:
    """p_ii = sigma(q.k / sqrt d), not 0: with the table a ramp, q.e[p] is q.1 p / d."""
    shape = Shape(4, heads=1, layers=1)
    encoding = CoPE(shape, positions=3).double()
    with torch.no_grad():
        encoding.table.copy_(torch.arange(3.0).expand(1, 4, 3))
    q = torch.tensor([[[[1.0, 2, -0.5, 0.5]]]], dtype=torch.float64)
    k = torch.tensor([[[[0.3, -0.1, 0.7, 0.2]]]], dtype=torch.float64)
    plain = q @ k.mT / 2
    got = encoding.scores(plain, q, k, Span.window(1), layer=0)
    gate = 1 / (1 + math.exp(-plain.item()))
    assert got.item() == pytest.approx(plain.item() + gate * q.sum().item() / 2, rel=FORMULA)


def test_cope_gates_of_the_future_do_not_count() -> None:
    """sigma(0) = 1/2 leaks where gates are masked before the sigmoid."""
    case = _case("cope-4")
    encoding, (q, k, v, x) = case.encoding(), inputs(case, 9, 9)
    changed = k.detach().clone()
    changed[:, :, 6:] = 5 * torch.randn_like(changed[:, :, 6:])
    before = run("reference", encoding, (q, k, v, x))[0]
    after = run("reference", encoding, (q, changed.requires_grad_(), v, x))[0]
    assert torch.equal(before[:, :, :6], after[:, :, :6])
    assert not torch.equal(before[:, :, 6:], after[:, :, 6:])


# FoX and CABLE


@pytest.mark.parametrize(("kind", "sign"), [(FoX, 1), (CABLE, -1)])
@pytest.mark.parametrize("autocast", [False, True])
def test_decay_is_float32_whatever_the_autocast(
    kind: type[FoX | CABLE], sign: int, autocast: bool
) -> None:
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    q = torch.zeros(2, 2, 9, 4).bfloat16()
    v = torch.eye(9, 4).expand(2, 2, 9, 4).bfloat16()
    exact = randomised(kind(SMALL)).double()
    expected = F.logsigmoid(sign * (x.double() @ exact.weight[1].mT + exact.bias[1])).mT  # type: ignore[index]
    encoding = randomised(kind(SMALL))
    seen: list[Tensor] = []
    decay = encoding.decay

    def spy(x: Tensor, layer: int) -> Tensor | None:
        seen.append(decay(x, layer))  # type: ignore[arg-type]
        return seen[-1]

    encoding.decay = spy
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for kernel in ON_CPU.values():
            kernel(q, q, v, encoding, 1, Span.window(9), x=x)
    assert len(seen) == len(ON_CPU)
    for got in seen:
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=SINGLE, atol=SINGLE)


@each_kernel
@pytest.mark.parametrize("kind", [FoX, CABLE])
def test_decays_do_not_lose_digits_over_long_distances(
    kind: type[FoX | CABLE], kernel: str
) -> None:
    """4096 tokens before the last eight: sums in bfloat16, and differences of them, lose all."""
    shape = Shape(8, heads=1, layers=1)
    encoding = kind(shape)
    with torch.no_grad():
        encoding.weight.zero_()
        encoding.bias.fill_(0.5 if kind is FoX else -0.5)
    step = math.log(1 / (1 + math.exp(-0.5)))
    q, x = torch.zeros(1, 1, 4104, 8).bfloat16(), torch.zeros(1, 4104, 8).bfloat16()
    v = F.pad(torch.eye(8), (0, 0, 4096, 0))[None, None].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = KERNELS[kernel](q[:, :, :8], q, v, encoding, 0, Span.window(8, memory=4096), x=x)
    weights = torch.softmax(step * torch.arange(4103, -1, -1, dtype=torch.float64), 0)[-8:]
    torch.testing.assert_close(out[0, 0, -1].double(), weights, rtol=HALF, atol=0)


@each_kernel
@pytest.mark.parametrize("name", ["fox", "cable"])
def test_nothing_in_a_decay_is_rounded_by_autocast(name: str, kernel: str) -> None:
    encoding = _case(name).encoding(torch.float32)
    qkvx = inputs(_case(name), 40, 40, dtype=torch.float32)
    expected = run(kernel, encoding, qkvx)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(kernel, encoding, qkvx)[0], expected)


@each_kernel
@pytest.mark.parametrize("kind", [FoX, CABLE])
def test_a_gate_that_closes_shuts_out_everything_before_it(
    kind: type[FoX | CABLE], kernel: str
) -> None:
    """Token 3 of 6 forgets: it and its successors stay visible; nothing becomes NaN."""
    shape = Shape(8, heads=1, layers=1)
    encoding = kind(shape).double()
    sign = 1 if kind is FoX else -1
    with torch.no_grad():
        encoding.weight.copy_(sign * torch.eye(8)[:1])
        encoding.bias.zero_()
    x = torch.zeros(1, 6, 8, dtype=torch.float64)
    x[..., 0] = 1e4
    x[0, 3, 0] = -1e4
    q, v = torch.zeros(1, 1, 6, 8, dtype=torch.float64), torch.eye(6, 8, dtype=torch.float64)
    out = KERNELS[kernel](q, q, v[None, None], encoding, 0, Span.window(6), x=x)
    assert out[0, 0, -1, :6].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3], abs=FORMULA)


# DAPE


def test_dape_is_masked_after_its_network() -> None:
    """f of -inf would be NaN, and f of the future finite: neither reaches the output."""
    case = _case("dape")
    encoding, (q, k, v, x) = case.encoding(), inputs(case, 9, 9)
    changed = k.detach().clone()
    changed[:, :, 6:] *= 100
    before = run("reference", encoding, (q, k, v, x))
    after = run("reference", encoding, (q, changed.requires_grad_(), v, x))
    assert all(g.isfinite().all() for g in before + after)
    assert torch.equal(before[0][:, :, :6], after[0][:, :, :6])


def test_dape_is_given_finite_logits() -> None:
    case = _case("dape")
    encoding, qkvx = case.encoding(), inputs(case, 3, 7)
    scores = encoding.scores

    def check(logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        assert logits.isfinite().all()
        return scores(logits, q, k, span, layer)

    encoding.scores = check
    assert run("reference", encoding, qkvx)[0].isfinite().all()


# SSMax and LogN


@pytest.mark.parametrize("length", [2, 128, 1000])
def test_ssmax_starts_with_a_mean_temperature_of_one(length: int) -> None:
    encoding = SSMax(SMALL, length=length)
    mean = sum(math.log(n) for n in range(1, length + 1)) / length
    assert encoding.s.shape == (2, 2)
    assert (encoding.s * mean).flatten().tolist() == pytest.approx([1.0] * 4, rel=SINGLE)


@each_kernel
@pytest.mark.parametrize("name", ["ssmax", "logn", "logn_rope"])
def test_temperatures_count_the_querys_own_keys(name: str, kernel: str) -> None:
    """Extending the window changes nothing before."""
    case = _case(name)
    encoding, (q, k, v, x) = case.encoding(), inputs(case, 30, 30)
    whole = KERNELS[kernel](q, k, v, encoding, 1, Span.window(30), x=x)
    for length in (1, 5, 29):
        q_, k_, v_ = (y[:, :, :length] for y in (q, k, v))
        part = KERNELS[kernel](q_, k_, v_, encoding, 1, Span.window(length), x=x[:, :length])
        torch.testing.assert_close(whole[:, :, :length], part, rtol=FORMULA, atol=FORMULA)


def test_logn_is_nope_up_to_its_length() -> None:
    case = _case("logn")
    q, k, v, x = inputs(case, 9, 9)
    scaled, plain = (
        KERNELS["reference"](q, k, v, encoding, 1, Span.window(9), x=x)
        for encoding in (LogN(case.shape, length=6), Encoding(case.shape))
    )
    torch.testing.assert_close(scaled[:, :, :6], plain[:, :, :6], rtol=FORMULA, atol=FORMULA)
    assert ((scaled - plain)[:, :, 6:].abs().amax((0, 1, 3)) > 1e-4).all()


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("kind", [SSMax, LogN])
def test_a_training_length_without_a_logarithm_is_refused(
    kind: type[SSMax | LogN], length: int
) -> None:
    with pytest.raises(ValueError, match=f"length={length}"):
        kind(SMALL, length=length)


# T5 without 1/sqrt(d)


def test_t5_unscaled_moves_the_root_into_the_first_queries() -> None:
    encoding = T5Unscaled(BASE)
    assert encoding.scale == 1
    assert encoding.query_gain == pytest.approx(64**-0.5, rel=ULPS)
    assert T5Bias(BASE).query_gain == 1
    assert T5Bias(BASE).scale == pytest.approx(64**-0.5, rel=ULPS)
