"""Numbers that were published for the further encodings, and the faults others made in them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, ON_CPU
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cable import CABLE
from posbench.encodings.cope import CoPE
from posbench.encodings.dape import DAPE
from posbench.encodings.fire import FIRE
from posbench.encodings.fox import FoX
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.logn import LogN
from posbench.encodings.p_rope import PRoPE
from posbench.encodings.partial_rope import PartialRoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.ssmax import SSMax
from posbench.encodings.t5 import T5Unscaled
from posbench.encodings.xpos import XPos
from tests.helpers import naive, naive_more
from tests.helpers.cases_more import NEW, Case, inputs, randomised, run
from tests.helpers.tolerance import EXACT, FORMULA, SINGLE, ULPS, relative

BASE = Shape(width=768, heads=12, layers=12)
SMALL = Shape(width=8, heads=2, layers=2)

each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


def _case(name: str) -> Case:
    return next(case for case in NEW if case.name == name)


def _bias(encoding: Encoding, distances: int) -> Tensor:
    bias = encoding.distance_bias(torch.arange(distances), layer=0)
    assert bias is not None
    return bias.detach()


def _count(encoding: Encoding) -> int:
    return sum(p.numel() for p in encoding.parameters())


def test_parameter_counts() -> None:
    n, h, d, width = 12, 12, 64, 768
    assert _count(ALiBi(BASE, slopes="geometric")) == 0
    assert _count(ALiBi(BASE, slopes="learned")) == h
    assert _count(KerpleLog(BASE)) == _count(KerplePower(BASE)) == 2 * h == 24
    assert _count(FIRE(BASE)) == n * (33 * h + 66)
    assert _count(CoPE(BASE, positions=64)) == n * d * 64
    assert _count(FoX(BASE)) == _count(CABLE(BASE)) == n * (width * h + h)
    w = 32
    assert _count(DAPE(BASE)) == n * (2 * h * w + w + w * h + h) + 2 * h
    assert _count(SSMax(BASE, length=128)) == n * h
    assert _count(T5Unscaled(BASE)) == 32 * h
    for kind in (Sandwich, XPos, PRoPE, PartialRoPE):
        assert _count(kind(BASE)) == 0
    assert _count(LogN(BASE, length=128)) == 0


# ALiBi


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_geometric_slopes(heads: int) -> None:
    expected = [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
    bias = _bias(ALiBi(Shape(16 * heads, heads, 1), slopes="geometric"), 2)
    assert (-bias[:, 1]).tolist() == pytest.approx(expected, rel=ULPS)


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_learned_starts_as_the_papers(heads: int) -> None:
    shape = Shape(16 * heads, heads, 1)
    learned, paper = ALiBi(shape, slopes="learned"), ALiBi(shape)
    torch.testing.assert_close(
        _bias(learned, 100).double(),
        _bias(paper, 100).double(),
        rtol=relative(torch.float32, 16),
        atol=0,
    )
    assert (-_bias(paper, 2)[:, 1]).tolist() == pytest.approx(naive.alibi_slopes(heads))


def test_alibi_refuses_unknown_slopes() -> None:
    with pytest.raises(ValueError, match=r"slopes=steep.*paper.*geometric.*learned"):
        ALiBi(SMALL, slopes="steep")


# KERPLE


def test_kerple_starts_within_the_papers_ranges() -> None:
    """Uniform: the mean of 4000 is within 0.05 of the range's middle."""
    torch.manual_seed(0)
    shape = Shape(4000, heads=4000, layers=1)
    log, power = KerpleLog(shape), KerplePower(shape)
    for r, top in ((log.r1, 2), (log.r2, 1), (power.r1, 1), (power.r2, 2)):
        assert r.min() >= 0
        assert 0.99 * top < r.max() <= top
        assert r.mean().item() == pytest.approx(top / 2, abs=0.05)


@pytest.mark.parametrize("kind", [KerpleLog, KerplePower])
def test_kerple_is_moved_back_within_its_bounds(kind: type[KerpleLog | KerplePower]) -> None:
    encoding = kind(SMALL)
    with torch.no_grad():
        encoding.r1.copy_(torch.tensor([-1.0, 3.0]))
        encoding.r2.copy_(torch.tensor([0.0, 3.0]))
    encoding.after_step()
    assert encoding.r1.tolist() == pytest.approx([0.01, 3])
    assert encoding.r2.tolist() == pytest.approx([0.01, 2 if kind is KerplePower else 3])


def test_kerple_is_shared_by_the_layers_and_not_divided() -> None:
    """-r1 ln(1 + r2 n) and -r1 n^r2 as they stand: no 1/sqrt(d) on them."""
    for kind, expected in (
        (KerpleLog, [0, -0.5 * math.log(3), -0.5 * math.log(5)]),
        (KerplePower, [0, -0.5, -0.5 * 4]),
    ):
        encoding = kind(SMALL).double()
        with torch.no_grad():
            encoding.r1.fill_(0.5)
            encoding.r2.fill_(2.0)
        for layer in (0, 1):
            bias = encoding.distance_bias(torch.arange(3), layer)
            assert bias is not None
            assert bias[1].tolist() == pytest.approx(expected, abs=FORMULA)


@pytest.mark.parametrize("exponent", [0.0, 1e-30, 0.01, 0.5])
@each_kernel
def test_kerple_power_has_finite_gradients_at_distance_zero(exponent: float, kernel: str) -> None:
    """The gradient of 0^r is 0 ln 0."""
    encoding = KerplePower(SMALL).double()
    with torch.no_grad():
        encoding.r2.fill_(exponent)
    for gradient in run(kernel, encoding, inputs(_case("kerple_power"), 5, 5)):
        assert gradient.isfinite().all()
    assert _bias(encoding, 1).tolist() == [[0.0], [0.0]]


# FIRE


def test_fire_starts_at_the_papers_values() -> None:
    encoding = FIRE(BASE)
    assert encoding.c.tolist() == pytest.approx([0.1] * 12)
    assert encoding.threshold_scale.tolist() == [1.0] * 12


def _fire_bias(encoding: FIRE, length: int) -> Tensor:
    bias = encoding.position_bias(Span.window(length), layer=0)
    assert bias is not None
    return bias.detach()


def test_fire_is_normalised_by_the_query_position_past_the_threshold() -> None:
    """Up to it a pure function of distance; past it the ratio, so the first key is always 1."""
    encoding = randomised(FIRE(SMALL, threshold=8.0)).double()
    assert isinstance(encoding, FIRE)
    with torch.no_grad():
        encoding.threshold_scale.fill_(1.0)
    bias = _fire_bias(encoding, 40)
    for i in range(1, 9):
        torch.testing.assert_close(bias[:, i, 1 : i + 1], bias[:, i - 1, :i], rtol=FORMULA, atol=0)
    assert (bias[:, 20, 1:21] - bias[:, 19, :20]).abs().max() > 1e-3
    torch.testing.assert_close(bias[:, 9:, 0], bias[:, 39:, 0].expand(-1, 31), rtol=SINGLE, atol=0)


def test_fire_does_not_know_the_length_of_the_sequence() -> None:
    encoding = randomised(FIRE(SMALL, threshold=8.0)).double()
    assert isinstance(encoding, FIRE)
    short, long = _fire_bias(encoding, 20), _fire_bias(encoding, 50)
    torch.testing.assert_close(long[:, :20, :20].tril(), short.tril(), rtol=ULPS, atol=ULPS)


# Sandwich


@pytest.mark.parametrize("heads", [1, 2, 8, 12])
def test_sandwich_is_zero_at_zero_and_falls_with_cosines(heads: int) -> None:
    """A widely copied version leaves out the cosine and is then linear in n."""
    bias = _bias(Sandwich(Shape(16 * heads, heads, 1)), 5000)
    assert bias[:, 0].abs().max() < 1e-12
    assert (bias[:, 1:] < 0).all()
    assert bias[0].min() >= -128 / (8 / heads)  # 64 cosines are -64 or more; a line passes that
    for h in (1, heads):
        for n in (1, 17, 4999):
            expected = naive_more.sandwich_bias(n, h, heads, 128)
            assert bias[h - 1, n].item() == pytest.approx(expected, abs=SINGLE)
    if heads > 1:
        assert (bias[0, 1:] < bias[-1, 1:]).all()


# xPos


def _relative_only(q: Tensor, k: Tensor, scale_base: float) -> Tensor:
    """Logits of the last query q [d] over keys k [S, d], interleaved, of distances alone."""
    d, n = len(q), torch.arange(len(k) - 1, -1, -1, dtype=torch.float64)[:, None]
    c = torch.arange(0, d, 2, dtype=torch.float64)
    zeta = (c / d + 0.4) / 1.4
    turn = torch.polar(zeta ** (n / scale_base), n * 10000 ** (-c / d))
    complex_q, complex_k = (
        torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) for x in (q, k)
    )
    return (complex_q * turn * complex_k.conj()).real.sum(-1) / math.sqrt(d)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale_base", [64.0, 512.0])
def test_xpos_does_not_overflow(kernel: str, dtype: torch.dtype, scale_base: float) -> None:
    """At L=9000 and scale_base=64 the scale of a query alone is 1e76."""
    length, queries, shape = 9000, 3, Shape(8, heads=1, layers=1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, length, 8, generator=generator, dtype=torch.float64).to(dtype)
    span = Span.window(queries, memory=length - queries)
    encoding = XPos(shape, scale_base=scale_base)
    out = KERNELS[kernel](q[:, :, -queries:], k, v, encoding, 0, span)
    expected = _relative_only(q[0, 0, -1], k[0, 0], scale_base).softmax(0) @ v[0, 0].double()
    assert out.isfinite().all()
    tolerance = EXACT if dtype == torch.float64 else SINGLE
    torch.testing.assert_close(out[0, 0, -1].double(), expected, rtol=0, atol=tolerance)


@each_kernel
def test_xpos_turned_in_float64_meets_masks(kernel: str) -> None:
    """A mask beside float64 queries and keys must not stay float32."""
    q, k, v = torch.randn(3, 1, 1, 200, 8, generator=torch.Generator().manual_seed(0))
    encoding = XPos(Shape(8, heads=1, layers=1), scale_base=1.0)
    encoding.window = 50
    out = KERNELS[kernel](q, k, v, encoding, 0, Span.window(200))
    q, k, v = q.double(), k.double(), v.double()
    expected = KERNELS["reference"](q, k, v, encoding, 0, Span.window(200))
    torch.testing.assert_close(out.double(), expected, rtol=SINGLE, atol=SINGLE)


def test_xpos_is_finite_at_every_position_and_backwards() -> None:
    length, shape = 4500, Shape(2, heads=1, layers=1)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, length, 2).unbind())
    out = KERNELS["fused"](q, k, v, XPos(shape, scale_base=16.0), 0, Span.window(length))
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (out, *gradients))


def test_xpos_fast_pairs_fade_most() -> None:
    """After scale_base steps pair c has kept zeta_c, from 0.4 / 1.4 of the fastest on."""
    shape = Shape(8, heads=1, layers=1)
    span = Span(torch.tensor([512]), torch.tensor([0, 512]), consecutive=False)
    kept = []
    for c in range(0, 8, 2):
        x = torch.zeros(1, 1, 2, 8, dtype=torch.float64)
        x[..., c] = 1
        q, k = XPos(shape).rotate(x[:, :, 1:], x, span, layer=0)
        kept.append((q @ k.mT)[0, 0, 0, 0].item() / math.cos(512 * 10000 ** (-c / 8)))
    assert kept == pytest.approx([(c / 8 + 0.4) / 1.4 for c in range(0, 8, 2)], rel=EXACT)
    assert kept[0] == pytest.approx(0.2857, abs=1e-4)


# p-RoPE and partial RoPE


def _turned(encoding: Encoding, position: int, d: int) -> Tensor:
    """Ones of width d, at a position."""
    x = torch.ones(1, 1, 1, d, dtype=torch.float64)
    where = torch.tensor([position])
    return encoding.rotate(x, x, Span(where, where), layer=0)[0][0, 0, 0]


@pytest.mark.parametrize(
    ("fraction", "d", "kept"), [(0.75, 64, 24), (0.3, 8, 1), (0.29, 200, 29), (0.57, 200, 57)]
)
def test_p_rope_rounds_down_and_not_by_accident(fraction: float, d: int, kept: int) -> None:
    """0.29 * 100 is 28.999999999999996 in float64."""
    turned = _turned(PRoPE(Shape(d, heads=1, layers=1), fraction=fraction), 7, d)
    assert (turned[: d // 2] != 1).sum() == kept


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_p_rope_keeps_ropes_own_highest_frequencies(fraction: float) -> None:
    """Not those of a RoPE of the kept width: that is partial_rope."""
    shape, half = Shape(32, heads=1, layers=1), 16
    kept = int(fraction * half)
    whole, some = (
        _turned(e, 7, 32).unflatten(0, (2, half))
        for e in (RoPE(shape), PRoPE(shape, fraction=fraction))
    )
    torch.testing.assert_close(some[:, :kept], whole[:, :kept], rtol=FORMULA, atol=FORMULA)
    assert torch.equal(some[:, kept:], torch.ones(2, half - kept, dtype=torch.float64))
    assert (whole[:, kept:] != 1).all()
    partial = _turned(PartialRoPE(shape, fraction=fraction), 7, 32)
    own = _turned(RoPE(Shape(2 * kept, heads=1, layers=1)), 7, 2 * kept)
    torch.testing.assert_close(partial[: 2 * kept], own, rtol=FORMULA, atol=FORMULA)
    assert torch.equal(partial[2 * kept :], torch.ones(32 - 2 * kept, dtype=torch.float64))


def test_whole_fractions_are_rope() -> None:
    shape = Shape(32, heads=2, layers=1)
    expected = _turned(RoPE(shape), 1000, 16)
    for kind in (PRoPE, PartialRoPE):
        got = _turned(kind(shape, fraction=1.0), 1000, 16)
        torch.testing.assert_close(got, expected, rtol=FORMULA, atol=FORMULA)


@pytest.mark.parametrize("kind", [PRoPE, PartialRoPE])
@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_impossible_fractions_are_refused(kind: type[RoPE], fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        kind(Shape(32, heads=2, layers=1), fraction=fraction)  # type: ignore[call-arg]
