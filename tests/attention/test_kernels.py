"""The fused kernel computes what the reference defines, in every cell and at every size."""

from __future__ import annotations

import sys
import unittest.mock

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, ON_CPU, choose
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias
from posbench.model.transformer import build
from tests.helpers import naive
from tests.helpers.cases import NINE, SOME, Case, Everything, assert_same, inputs, run
from tests.helpers.tolerance import EXACT, FORMULA, HALF, SINGLE, relative

fused, reference = KERNELS["fused"], KERNELS["reference"]
each_case = pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
BLOCKS = [(5, 3, 3), (5, 5, 5), (5, 29, 29), (5, 13, 40), (64, 129, 129), (64, 70, 150)]


@pytest.fixture(autouse=True)
def _bfloat16_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in windows too long for `WIDE`."""
    monkeypatch.setattr(sys.modules["posbench.attention.fused"], "WIDE", 0)


@pytest.fixture
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    for name in ("BLOCK", "TABLE_BLOCK"):
        monkeypatch.setattr(sys.modules["posbench.attention.fused"], name, size)
    monkeypatch.setattr(sys.modules["posbench.attention.fused"], "BUILT", 4 * size * size)
    monkeypatch.setattr(sys.modules["posbench.attention.terms"], "KEY_BLOCK", 3)
    return size


def _compare(
    case: Case,
    queries: int,
    keys: int,
    dtype: torch.dtype = torch.float64,
    tolerance: float = EXACT,
    hidden: Tensor | None = None,
) -> None:
    encoding, qkv = case.encoding(dtype), inputs(case, queries, keys, dtype=dtype)
    expected = run(reference, encoding, qkv, hidden)
    assert_same(run(fused, encoding, qkv, hidden), expected, tolerance)


@each_case
@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
def test_fused_is_the_reference(case: Case, length: int) -> None:
    _compare(case, length, length)


@each_case
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (128, 128), (300, 300), (3, 200)])
def test_fused_is_the_reference_in_float32(case: Case, queries: int, keys: int) -> None:
    _compare(case, queries, keys, torch.float32, tolerance=SINGLE)


@each_case
@pytest.mark.parametrize(("block", "queries", "keys"), BLOCKS, indirect=["block"])
def test_blocks_of_queries_do_not_show(case: Case, block: int, queries: int, keys: int) -> None:
    _compare(case, queries, keys)


@each_case
@pytest.mark.parametrize(
    ("block", "queries", "keys"), [(5, 13, 40), (64, 7, 9)], indirect=["block"]
)
def test_hidden_memory(case: Case, block: int, queries: int, keys: int) -> None:
    hidden = torch.zeros(2, keys, dtype=torch.bool)
    hidden[1, : keys - queries] = True
    hidden[0, 1] = True
    _compare(case, queries, keys, hidden=hidden)


@each_case
def test_large_logits(case: Case) -> None:
    """Parameters of size 100: weights saturate, and nothing overflows."""
    encoding, qkv = case.encoding(size=100.0), inputs(case, 20, 33)
    out, *_ = run(fused, encoding, qkv)
    expected, *_ = run(reference, encoding, qkv)
    assert out.isfinite().all()
    torch.testing.assert_close(out, expected, rtol=EXACT, atol=EXACT)


def test_large_bias() -> None:
    """A span and a number of heads that overflowed the strides of other kernels."""
    case = Case("", ALiBi, heads=32)
    encoding, (q, k, v) = case.encoding(torch.float32), inputs(case, 8, 8192, 1, torch.float32)
    span = Span.window(8, memory=8184)
    with torch.no_grad():
        out = fused(q, k, v, encoding, 0, span)
        torch.testing.assert_close(
            out, reference(q, k, v, encoding, 0, span), rtol=4 * SINGLE, atol=SINGLE
        )


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (1025, 1025)])
def test_a_bias_may_have_any_strides(
    queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query in the last block: nothing is padded, and the view must not read across heads."""
    monkeypatch.setattr(sys.modules["posbench.attention.fused"], "_short", lambda *_: False)

    class Transposed(ALiBi):
        def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
            return super().distance_bias(distance, layer).T.contiguous().T

    _compare(Case("transposed", Transposed, heads=4), queries, keys)


# Which kernel


class Scored(Encoding):
    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        return 2 * logits


def test_fused_refuses_scores_by_name() -> None:
    shape = Shape(8, heads=2, layers=1)
    with pytest.raises(ValueError, match="scores"):
        choose(Scored(shape), "fused")
    with pytest.raises(ValueError, match="scores"):
        build(shape, 9, Scored, seed=0, feed_forward=8, attention="fused")


def test_auto_takes_fused_where_it_can() -> None:
    assert choose(Scored(Shape(8, heads=2, layers=1))) == "blocked"
    assert all(choose(case.encoding()) == "fused" for case in SOME)


def test_unknown_kernel_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"(?s)flash.*(fused.*reference|reference.*fused)"):
        choose(Scored(Shape(8, heads=2, layers=1)), "flash")


def test_reference_applies_scores_before_the_mask() -> None:
    """Doubled logits are those of doubled queries; the mask stays."""
    case = Case("scored", Scored)
    q, k, v = inputs(case, 4, 6)
    span = Span.window(4, memory=2)
    out = reference(q, k, v, case.encoding(), 0, span)
    expected = naive.attention(2 * q, k, v, case.encoding(), 0, naive.nope, naive.no_value)
    torch.testing.assert_close(out, expected, rtol=EXACT, atol=EXACT)


# Dropout


@pytest.mark.parametrize("kernel", ["reference", "fused"])
@pytest.mark.parametrize("name", ["nope", "alibi-h6", "shaw-k2"])
def test_dropout_is_unbiased(kernel: str, name: str) -> None:
    """The mean over 4000 draws, to six standard errors."""
    case = next(case for case in SOME if case.name == name)
    encoding, span = case.encoding(), Span.window(5)
    q, k, v = (x.detach().repeat(4000, 1, 1, 1) for x in inputs(case, 5, 5, batch=1))
    torch.manual_seed(0)
    dropped = KERNELS[kernel](q, k, v, encoding, 1, span, dropout=0.5)
    whole = KERNELS[kernel](q[:1], k[:1], v[:1], encoding, 1, span)
    error = (dropped.mean(0) - whole[0]).abs() / (dropped.std(0) / 4000**0.5)
    assert (dropped[0] != dropped[1]).any()
    assert error.max() < 6


@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_position_values_use_the_dropped_weights(kernel: str) -> None:
    """With V(n) = -v the output vanishes, but only if both meet the same weights."""
    encoding = Shaw(Shape(8, heads=2, layers=1), k=2).double()
    with torch.no_grad():
        encoding.value_table.fill_(-1.0)
    q = torch.randn(2, 2, 9, 4, dtype=torch.float64)
    span = Span.window(9)
    out = KERNELS[kernel](q, q, torch.ones_like(q), encoding, 0, span, dropout=0.5)
    torch.testing.assert_close(out, torch.zeros_like(out), rtol=0, atol=FORMULA)


# Precision


@each_case
@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_bfloat16_autocast(case: Case, kernel: str) -> None:
    encoding = case.encoding(torch.float32)
    q, k, v = inputs(case, 9, 12, dtype=torch.float32)
    span = Span.window(9, memory=3)
    expected = reference(q, k, v, encoding, 1, span)
    with torch.autocast("cpu", torch.bfloat16):
        half = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
        out = KERNELS[kernel](half[0], half[1], half[2], encoding, 1, span)
    torch.testing.assert_close(out.float(), expected, rtol=4 * HALF, atol=4 * HALF)
    out.float().sum().backward()
    leaves = [*half, *encoding.parameters()]
    assert all(x.grad is None or x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_mask_stays_exact_in_bfloat16(kernel: str) -> None:
    """Queries of zero and one-hot values: the output is the weights, softmax(-m n).

    A mask rounded to bfloat16 would move some of them by 3 %: slope 0.7071, distance 14.
    """
    encoding, span = ALiBi(Shape(12 * 16, heads=12, layers=1)), Span.window(1, memory=15)
    q, k = torch.zeros(1, 12, 1, 16), torch.randn(1, 12, 16, 16)
    v = torch.eye(16).expand(1, 12, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = KERNELS[kernel](q.bfloat16(), k.bfloat16(), v.bfloat16(), encoding, 0, span)
    slopes = torch.tensor(naive.alibi_slopes(12))
    expected = torch.softmax(-slopes[:, None] * torch.arange(15, -1, -1), dim=-1)
    limit = relative(torch.float32, 1)
    torch.testing.assert_close(out[0, :, 0].float(), expected, rtol=HALF, atol=limit)


@each_case
@pytest.mark.parametrize("kernel", ON_CPU)
def test_nothing_in_a_kernel_is_rounded_by_autocast(case: Case, kernel: str) -> None:
    """Hooks included: for float32 inputs autocast changes no bit."""
    encoding, shape = case.encoding(torch.float32), case.shape
    q, k, v = torch.randn(3, 1, shape.heads, 40, shape.head_width).unbind()
    expected = KERNELS[kernel](q, k, v, encoding, 1, Span.window(40))
    with torch.autocast("cpu", torch.bfloat16):
        assert KERNELS[kernel](q, k, v, encoding, 1, Span.window(40)).equal(expected)


def test_learned_bias_is_not_rounded_by_autocast() -> None:
    """64.125 is no bfloat16: a rounded mask would make the two weights equal."""
    encoding = T5Bias(Shape(8, heads=2, layers=1))
    with torch.no_grad():
        encoding.bias.fill_(64.0)[:, 0] = 64.125
    q, v = torch.zeros(1, 2, 2, 4).bfloat16(), torch.eye(2, 4).expand(1, 2, 2, 4).bfloat16()
    weights = torch.softmax(torch.tensor([64.0, 64.125]), dim=0)
    with torch.autocast("cpu", torch.bfloat16):
        for kernel in ON_CPU.values():
            out = kernel(q, q, v, encoding, 0, Span.window(2))
            torch.testing.assert_close(out[0, 0, 1, :2].float(), weights, rtol=HALF, atol=0)


@pytest.mark.parametrize("kernel", ["reference", "fused"])
@pytest.mark.parametrize("name", ["nope", "alibi"])
def test_content_logits_are_not_rounded_by_autocast(kernel: str, name: str) -> None:
    """q . k of 256 and 256.25: neighbours in bfloat16 are 2 apart there."""
    _assert_close_logits_differ(NINE[name](Shape(4, heads=1, layers=1)), kernel, in_content=True)


@pytest.mark.parametrize("kernel", ["reference", "fused"])
@pytest.mark.parametrize("cell", ["keys", "queries"])
def test_position_logits_are_not_rounded_by_autocast(kernel: str, cell: str) -> None:
    """The same numbers as q . R(n) or k . Q(n)."""
    encoding = Everything(Shape(4, heads=1, layers=1))
    encoding.rotate = lambda q, k, span, layer: (0 * q, 0 * k)
    with torch.no_grad():
        table = encoding.get_parameter(cell)
        table[0, 0, :2] = torch.tensor([[32.0, 1, 0, 0], [32, 0, 0, 0]])
    _assert_close_logits_differ(encoding, kernel, in_content=False)


def _assert_close_logits_differ(encoding: Encoding, kernel: str, in_content: bool) -> None:
    """Two keys whose logits are 128 + 1/8 (the query's own) and 128, before any bias."""
    x = torch.tensor([8.0, 0.25, 0, 0]).expand(1, 1, 2, 4).bfloat16()
    k = torch.tensor([[32.0, 0, 0, 0], [32, 1, 0, 0]])[None, None].bfloat16() if in_content else x
    v = torch.eye(2, 4)[None, None].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = KERNELS[kernel](x, k, v, encoding, 0, Span.window(2))
        bias = encoding.distance_bias(torch.tensor([1, 0]), layer=0)
    logits = torch.tensor([[128.0, 128.125]]) + (0 if bias is None else bias.float())
    weights = torch.softmax(logits, dim=-1)[0]
    torch.testing.assert_close(out[0, 0, 1, :2].float(), weights, rtol=HALF, atol=0)


@pytest.mark.parametrize("name", NINE)
def test_a_model_says_what_computes_it_where_weights_are_dropped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["posbench.attention.fused"]
    watched = unittest.mock.Mock(wraps=module.blocked_attention)
    monkeypatch.setattr(module, "blocked_attention", watched)
    model = build(Shape(16, heads=2, layers=2), 9, NINE[name], seed=0, feed_forward=8, dropout=0.1)
    model.train()(torch.zeros(1, 8, dtype=torch.long))
    said = "fused (blocked in training, for dropout)" if watched.called else "fused"
    assert model.kernel == said
