"""Mixes of encodings by layer, and RoPE stretched to longer contexts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, ON_CPU
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.cope import CoPE
from posbench.encodings.extension import (
    NTK,
    DynamicNTK,
    Interpolated,
    LogNRoPE,
    Streaming,
    YaRN,
)
from posbench.encodings.fox import FoX
from posbench.encodings.nope import NoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from tests.helpers import naive, naive_more
from tests.helpers.cases import assert_same
from tests.helpers.cases_more import Case, define, inputs, randomised, run
from tests.helpers.naive_more import by_pair
from tests.helpers.tolerance import EXACT, FORMULA

SHAPE = Shape(width=8, heads=2, layers=4)

each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


# Pattern


def _shaw(shape: Shape) -> Encoding:
    return Shaw(shape, k=2)


SHAW = Case("shaw", _shaw, by_pair(naive.shaw), naive.shaw_value)
FOX = Case("fox", FoX, naive_more.fox)
LAYERS = {"near": (SHAW, 3), "far": (FOX, None)}


def _pattern() -> Encoding:
    pattern = Pattern(
        SHAPE,
        pattern=["near", "far", "near", "near"],
        parts={"near": _shaw, "far": FoX},
        windows={"near": 3},
    )
    return randomised(pattern).double()


@each_kernel
@pytest.mark.parametrize(
    ("layer", "name", "number"), [(0, "near", 0), (1, "far", 0), (2, "near", 1), (3, "near", 2)]
)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 9)])
def test_each_layer_is_its_parts(
    kernel: str, layer: int, name: str, number: int, queries: int, keys: int
) -> None:
    """Values and gradients by every parameter of all parts: no layer reaches another's."""
    pattern, qkvx = _pattern(), inputs(SHAW, queries, keys)
    part = pattern.get_submodule(f"parts.{name}")
    assert pattern.at(layer) == (part, number)
    case, window = LAYERS[name]
    see = naive_more.see_last(window or keys)
    actual = run(kernel, pattern, qkvx, layer=layer)
    out = naive_more.attention(qkvx, part, number, case.logit, case.value, see=see)
    leaves = [*qkvx, *pattern.parameters()]
    assert len(actual) == 1 + len(leaves)
    torch.testing.assert_close(actual[0], out, rtol=EXACT, atol=EXACT)
    expected = define(case, part, qkvx, layer=number, see=see)  # type: ignore[arg-type]
    by_parameter = dict(zip(map(id, [*qkvx, *part.parameters()]), expected[1:], strict=True))
    for leaf, gradient in zip(leaves, actual[1:], strict=True):
        torch.testing.assert_close(
            gradient, by_parameter.get(id(leaf), torch.zeros_like(leaf)), rtol=EXACT, atol=EXACT
        )


def test_parts_own_parameters_for_their_layers_only() -> None:
    sizes = {name: p.shape[0] for name, p in _pattern().named_parameters()}
    assert sizes == {
        "parts.near.key_table": 3,
        "parts.near.value_table": 3,
        "parts.far.weight": 1,
        "parts.far.bias": 1,
    }


@pytest.mark.parametrize(
    ("layers", "names"), [(8, "aabcaabc"), (6, "aabcaa"), (4, "aabc"), (3, "abc")]
)
def test_patterns_repeat_and_short_models_take_the_end(layers: int, names: str) -> None:
    parts: dict[str, Any] = {"a": NoPE, "b": FoX, "c": RoPE}
    pattern = Pattern(Shape(8, heads=2, layers=layers), pattern=list("aabc"), parts=parts)
    served = [pattern.at(layer) for layer in range(layers)]
    assert [type(part) for part, _ in served] == [parts[name] for name in names]
    assert [number for _, number in served] == [names[:n].count(c) for n, c in enumerate(names)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pattern": ["a", "z"]}, "z"),
        ({"pattern": []}, "pattern"),
        ({"windows": {"z": 3}}, "z"),
        ({"windows": {"a": 0}}, "0"),
        ({"parts": {"a": NoPE, "z": NoPE}}, "z"),
    ],
)
def test_impossible_patterns_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"pattern": ["a"], "parts": {"a": NoPE}} | options
    with pytest.raises(ValueError, match=named):
        Pattern(SHAPE, **given)


def test_fused_refuses_a_layer_that_fills_scores() -> None:
    pattern = Pattern(
        SHAPE, pattern=["a", "b", "a", "a"], parts={"a": NoPE, "b": CoPE}, windows={}
    ).double()
    case = Case("", NoPE, by_pair(naive.nope))
    with pytest.raises(ValueError, match="scores"):
        run("fused", pattern, inputs(case, 5, 5), layer=1)
    assert_same(
        run("reference", pattern, inputs(case, 5, 5), layer=0)[:1],
        define(case, NoPE(SHAPE), inputs(case, 5, 5))[:1],
        EXACT,
    )


# RoPE beyond its length

WIDE = Shape(width=64, heads=1, layers=1)
TWO = Shape(width=16, heads=2, layers=1)


def _turned(encoding: Encoding, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
    """x [S, d] at positions start, start + 1, ... as queries and as keys."""
    span = Span.window(len(x), start=start)
    q, k = encoding.rotate(x[None, None], x[None, None], span, layer=0)
    return q[0, 0], k[0, 0]


def _angles(encoding: Encoding, length: int = 2) -> list[float]:
    """The angle by which one step turns each of 32 pairs, half layout."""
    ones = torch.zeros(length, 64, dtype=torch.float64)
    ones[:, :32] = 1
    cos, sin = _turned(encoding, ones)[0][1].chunk(2)
    return torch.atan2(sin, cos).tolist()


@pytest.mark.parametrize("kind", [Interpolated, NTK, DynamicNTK, YaRN])
def test_factor_one_is_rope_bit_for_bit(kind: type[RoPE]) -> None:
    """DynamicNTK within its length only: its base grows with the window even so."""
    x = torch.randn(100 if kind is DynamicNTK else 700, 64)
    encoding = kind(WIDE, factor=1.0, original_length=100)  # type: ignore[call-arg]
    for got, expected in zip(_turned(encoding, x), _turned(RoPE(WIDE), x), strict=True):
        assert torch.equal(got, expected)


def test_interpolation_halves_every_angle() -> None:
    got = _angles(Interpolated(WIDE, factor=2.0, original_length=100))
    assert got == pytest.approx([t / 2 for t in naive_more.rope(64)], rel=FORMULA)


@pytest.mark.parametrize("kind", [NTK, YaRN])
def test_fastest_pair_stays_and_slowest_is_interpolated(kind: type[RoPE]) -> None:
    got = _angles(kind(WIDE, factor=8.0, original_length=512))  # type: ignore[call-arg]
    theta = naive_more.rope(64)
    assert got[0] == pytest.approx(theta[0], rel=FORMULA)
    assert got[-1] == pytest.approx(theta[-1] / 8, rel=EXACT)
    assert all(t / 8 * (1 - 1e-9) <= g <= t * (1 + 1e-9) for g, t in zip(got, theta, strict=True))


def test_dynamic_ntk_is_rope_up_to_its_length_and_hugging_faces_formula_past_it() -> None:
    encoding = DynamicNTK(WIDE, factor=2.0, original_length=100)
    assert _angles(encoding, 100) == pytest.approx(naive_more.rope(64), rel=FORMULA)
    base = 10000 * (2 * 300 / 100 - 1) ** (64 / 62)
    assert _angles(encoding, 300) == pytest.approx(naive_more.rope(64, base), rel=FORMULA)


def test_dynamic_ntk_is_stateless() -> None:
    """A long text must not change a short one after it."""
    encoding, x = DynamicNTK(WIDE, factor=2.0, original_length=100), torch.randn(500, 64)
    before = _turned(encoding, x[:50])
    _turned(encoding, x)
    after = _turned(encoding, x[:50])
    assert all(torch.equal(b, a) for b, a in zip(before, after, strict=True))


def test_yarn_attention_factor() -> None:
    """0.1 ln s + 1 on q and on k, so its square on their product; a given one wins."""
    x = torch.randn(5, 64, dtype=torch.float64)
    plain = x @ x.T
    for given, factor in ((None, 0.1 * math.log(8) + 1), (1.0, 1.0), (0.5, 0.5)):
        encoding = YaRN(WIDE, factor=8.0, original_length=512, attention_factor=given)
        q, k = _turned(encoding, x)
        ratio = (q @ k.T).diagonal() / plain.diagonal()
        assert ratio.tolist() == pytest.approx([factor**2] * 5, rel=EXACT)


@pytest.mark.parametrize("kind", [Interpolated, NTK, DynamicNTK, YaRN])
@pytest.mark.parametrize(("key", "value"), [("factor", 0.5), ("original_length", 0)])
def test_impossible_extensions_are_refused(kind: type[RoPE], key: str, value: float) -> None:
    options = {"factor": 2.0, "original_length": 100, key: value}
    with pytest.raises(ValueError, match=key):
        kind(WIDE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1])
def test_lengths_without_a_logarithm_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"length={length}"):
        LogNRoPE(WIDE, original_length=length)


def test_streaming_within_its_cache_is_rope() -> None:
    q, k, v, _ = inputs(Case("", RoPE, by_pair(naive.nope), head_width=8), 9, 24)
    streaming, rope = (
        KERNELS["reference"](q, k, v, encoding, 0, Span.window(9, memory=15))
        for encoding in (Streaming(TWO, original_length=24), RoPE(TWO))
    )
    torch.testing.assert_close(streaming, rope, rtol=EXACT, atol=EXACT)
