"""Every encoding equals its paper: naive float64 loops, and the numbers that were published."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, choose
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings import sinusoid as sinusoids
from posbench.encodings.alibi import ALiBi, published
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers import naive
from tests.helpers.cases import CASES, LAYER, NINE, Case, assert_same, inputs, run, with_gradients
from tests.helpers.tolerance import EXACT, FORMULA, SINGLE, ULPS, close

SIZES = [(1, 1), (2, 2), (7, 7), (20, 20), (5, 9), (1, 120)]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_kernel = pytest.mark.parametrize("requested", ["reference", "auto"])


def _batch(queries: int) -> int:
    return 2 if queries < 10 else 1


@functools.cache
def _expected(case: Case, queries: int, keys: int, hide: bool = False) -> list[Tensor]:
    encoding = case.encoding()
    q, k, v = qkv = inputs(case, queries, keys, _batch(queries))
    hidden = _hidden(queries, keys) if hide else None
    out = naive.attention(q, k, v, encoding, LAYER, case.logit, case.value, hidden)
    return with_gradients(out, encoding, qkv)


def _hidden(queries: int, keys: int) -> Tensor:
    """Row 0 sees no memory, row 1 lacks its first key."""
    hidden = torch.zeros(_batch(queries), keys, dtype=torch.bool)
    hidden[0, : keys - queries] = True
    hidden[1, :1] = True
    return hidden


@each_case
@each_kernel
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_attention_is_the_papers(case: Case, requested: str, queries: int, keys: int) -> None:
    kernel = KERNELS[choose(encoding := case.encoding(), requested)]
    actual = run(kernel, encoding, inputs(case, queries, keys, _batch(queries)))
    assert_same(actual, _expected(case, queries, keys), EXACT)


@each_case
@each_kernel
def test_hidden_keys_do_not_exist(case: Case, requested: str) -> None:
    qkv, hidden = inputs(case, 5, 9), _hidden(5, 9)
    kernel = KERNELS[choose(encoding := case.encoding(), requested)]
    actual = run(kernel, encoding, qkv, hidden)
    assert_same(actual, _expected(case, 5, 9, hide=True), EXACT)


# Sinusoidal and learned: at the input


@pytest.mark.parametrize("width", [6, 7, 8])
def test_sinusoidal_input(width: int) -> None:
    encoding = Sinusoidal(Shape(width, heads=1, layers=1))
    positions = torch.tensor([0, 1, 2, 17, 4095, 100_000])
    x = torch.randn(2, len(positions), width, dtype=torch.float64)
    added = torch.tensor(
        [naive.interleaved(int(p), width) for p in positions], dtype=torch.float64
    )
    torch.testing.assert_close(encoding.embed(x, positions), x + added, rtol=0, atol=EXACT)


def test_sinusoidal_is_cast_last() -> None:
    encoding = Sinusoidal(Shape(64, heads=1, layers=1))
    expected = torch.tensor([naive.interleaved(100_000, 64)], dtype=torch.float64)
    for dtype, ulp in ((torch.float32, 1e-7), (torch.bfloat16, 4e-3)):
        got = encoding.embed(torch.zeros(1, 1, 64, dtype=dtype), torch.tensor([100_000]))
        assert got.dtype == dtype
        torch.testing.assert_close(got[0].double(), expected, rtol=0, atol=ulp)


@pytest.mark.parametrize("width", [6, 7, 64, 65])
def test_interleaved_sinusoid_closed_form_far_out(width: int) -> None:
    got = sinusoids.interleaved(torch.tensor([100_000]), width, 10000.0)
    assert got.dtype == torch.float64
    for c, value in enumerate(got[0].tolist()):
        angle = 100_000 / 10000 ** (2 * (c // 2) / width)
        assert value == pytest.approx(math.cos(angle) if c % 2 else math.sin(angle), abs=EXACT)


@pytest.mark.parametrize("width", [6, 64])
def test_concatenated_sinusoid_closed_form(width: int) -> None:
    positions = [0, 1, 100, 100_000]
    got = sinusoids.concatenated(torch.tensor(positions), width, 10000.0)
    expected = torch.tensor([naive.concatenated(p, width) for p in positions], dtype=got.dtype)
    torch.testing.assert_close(got, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_sinusoid_shifts_by_one_matrix(k: int) -> None:
    """PE(p + k) = M_k PE(p), M_k blocks of rotation by k / base^(2c/D), the same for every p."""
    width = 16
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for c in range(0, width, 2):
        angle = k / 10000 ** (c / width)
        matrix[c, c] = matrix[c + 1, c + 1] = math.cos(angle)
        matrix[c, c + 1], matrix[c + 1, c] = math.sin(angle), -math.sin(angle)
    positions = torch.tensor([0, 1, 5, 512, 9999])
    here = sinusoids.interleaved(positions, width, 10000.0)
    there = sinusoids.interleaved(positions + k, width, 10000.0)
    torch.testing.assert_close(there, here @ matrix.T, rtol=0, atol=EXACT)


def test_learned_input_and_gradient() -> None:
    encoding = Case("", lambda shape: Learned(shape, max_length=9)).encoding()
    x, positions = torch.randn(2, 3, 8, dtype=torch.float64), torch.tensor([8, 0, 3])
    out = encoding.embed(x, positions)
    (table,) = encoding.parameters()
    for row, p in enumerate([8, 0, 3]):
        assert torch.equal(out[:, row], x[:, row] + table[p])
    out.sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [2, 0, 0, 2, 0, 0, 0, 0, 2]


# ALiBi


HALVES = [2.0**-e for e in range(1, 9)]
SLOPES = {
    1: [1 / 256],
    2: [1 / 16, 1 / 256],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: HALVES,
    12: [*HALVES, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_published_slopes(heads: int) -> None:
    assert published(heads) == pytest.approx(SLOPES[heads], rel=ULPS)


def test_alibi_distances_stay_distinct_under_bfloat16() -> None:
    encoding = ALiBi(Shape(64, heads=8, layers=1)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        bias = encoding.distance_bias(torch.arange(4096), layer=0)
    assert bias.shape == (8, 4096)
    assert bias.dtype in (torch.float32, torch.float64)
    assert all(len(head.float().unique()) == 4096 for head in bias)
    expected = torch.tensor([[-m * n for n in range(4096)] for m in HALVES])
    assert torch.equal(bias.float(), expected)


def test_alibi_has_no_parameters() -> None:
    assert not ALiBi(Shape(64, heads=8, layers=1)).state_dict()


# T5


LATE_BUCKETS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_t5_first_distance_of_each_bucket() -> None:
    buckets = T5Bias(Shape(64, heads=4, layers=1)).bucket(torch.arange(10_000)).tolist()
    assert [buckets.index(b) for b in range(32)] == [*range(16), *LATE_BUCKETS]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 31


@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [
        (32, 128),
        (32, 1024),
        (16, 64),
        (8, 16),
        (8, 64),
        (8, 2500),
        (4, 50),
        (6, 81),
        (10, 160),
        (40, 640),
    ],
)
def test_t5_edges_are_exact(buckets: int, max_distance: int) -> None:
    """Where an edge is an integer, it opens its bucket: no rounding of logarithms."""
    encoding = T5Bias(Shape(8, 2, 1), buckets=buckets, max_distance=max_distance)
    got = encoding.bucket(torch.arange(2 * max_distance)).tolist()
    expected = [naive.t5_bucket(n, buckets, max_distance) for n in range(2 * max_distance)]
    assert got == expected


# Parameter counts and scales


def _count(encoding: Encoding) -> int:
    return sum(p.numel() for p in encoding.parameters())


def test_parameter_counts() -> None:
    shape = Shape(width=768, heads=12, layers=12)
    assert _count(T5Bias(shape)) == 32 * 12
    assert _count(Learned(shape, max_length=512)) == 512 * 768
    assert _count(Shaw(shape, k=16)) == 2 * 12 * 33 * 64
    assert _count(Shaw(shape, k=16, values=False)) == 12 * 33 * 64
    assert _count(TransformerXL(shape)) == 12 * 768 * 768 + 2 * 768
    assert _count(TransformerXL(shape, untie=True)) == 12 * 768 * 768 + 2 * 12 * 768
    assert _count(DeBERTa(shape)) == 2 * 12 * 768**2 + 1024 * 768
    assert _count(RoPE(shape)) == _count(Sinusoidal(shape)) == 0


@pytest.mark.parametrize(("c2p", "p2c", "terms"), [(0, 0, 1), (1, 0, 2), (0, 1, 2), (1, 1, 3)])
def test_deberta_scale_counts_its_terms(c2p: int, p2c: int, terms: int) -> None:
    encoding = DeBERTa(Shape(48, heads=4, layers=1), k=4, c2p=bool(c2p), p2c=bool(p2c))
    assert encoding.scale == pytest.approx(1 / math.sqrt(terms * 12), rel=ULPS)


def test_deberta_delta() -> None:
    assert [naive.deberta_delta(n, 3) for n in range(-5, 6)] == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]


def test_deberta_refuses_an_unknown_index() -> None:
    with pytest.raises(ValueError, match="p2c_index"):
        DeBERTa(Shape(8, 2, 1), p2c_index="flipped")


@pytest.mark.parametrize("name", [name for name in NINE if name != "deberta"])
def test_every_other_scale_is_one_over_root_d(name: str) -> None:
    encoding = NINE[name](Shape(48, heads=4, layers=1))
    assert encoding.scale == pytest.approx(12**-0.5, rel=ULPS)


# RoPE

each_layout = pytest.mark.parametrize("layout", ["half", "interleaved"])


def _turned(x: Tensor, positions: list[int], layout: str) -> Tensor:
    """x [T, d] turned by positions, as queries and, the same, as keys."""
    span = Span(torch.tensor(positions), torch.tensor(positions))
    shape = Shape(x.shape[1], heads=1, layers=1)
    q, k = RoPE(shape, layout=layout).rotate(x[None, None], x[None, None], span, layer=0)
    assert torch.equal(q, k)
    return q[0, 0]


@each_layout
def test_rope_leaves_position_zero_and_norms(layout: str) -> None:
    x = torch.randn(3, 16, dtype=torch.float64)
    turned = _turned(x, [0, 1, 5000], layout)
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1), rtol=FORMULA, atol=0)
    assert (turned[1:] - x[1:]).abs().amax(1).min() > 0.1


@each_layout
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, SINGLE)], ids=["f64", "f32"]
)
def test_rope_sees_distance_only(layout: str, dtype: torch.dtype, tolerance: float) -> None:
    length, generator = 512, torch.Generator().manual_seed(0)
    x = torch.randn(2, 16, generator=generator, dtype=torch.float64).to(dtype)
    products = [
        _turned(x, [start + distance, start], layout).prod(0).sum()
        for distance in (0, 1, 37, length - 1)
        for start in (0, 1, 10 * length)
    ]
    for first, *others in (products[n : n + 3] for n in range(0, len(products), 3)):
        for other in others:
            torch.testing.assert_close(other, first, rtol=tolerance, atol=4 * tolerance)


def test_rope_layouts_are_one_rotation_of_permuted_dimensions() -> None:
    x, positions = torch.randn(4, 16, dtype=torch.float64), [0, 3, 100, 70_000]
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    half = _turned(x[:, order], positions, "half")
    close(half, _turned(x, positions, "interleaved")[:, order], torch.float64, 4)


def test_rope_refuses_odd_heads_and_unknown_layouts() -> None:
    with pytest.raises(ValueError, match="head"):
        RoPE(Shape(10, heads=2, layers=1))
    with pytest.raises(ValueError, match="layout"):
        RoPE(Shape(8, heads=2, layers=1), layout="quarter")


# Shaw


def test_shaw_clips_at_any_length() -> None:
    encoding = Case("", lambda shape: Shaw(shape, k=16)).encoding()
    distance = torch.arange(10_000)
    for rows, table in (
        (encoding.distance_keys(distance, LAYER), "key_table"),
        (encoding.distance_values(distance, LAYER), "value_table"),
    ):
        assert rows is not None
        index = [max(-n, -16) + 16 for n in range(10_000)]
        expected = encoding.get_parameter(table)[LAYER][index]
        assert torch.equal(rows, expected.expand(rows.shape))


# Transformer-XL


def test_transformer_xl_width_must_make_pairs_of_sine_and_cosine() -> None:
    with pytest.raises(ValueError, match=r"width.*9"):
        TransformerXL(Shape(9, heads=3, layers=1))
