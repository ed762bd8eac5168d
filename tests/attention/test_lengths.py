"""The fused kernel is the reference at every length, in every dtype, for every kind of encoding,
whatever wants a gradient and however the tensors lie in memory."""

from __future__ import annotations

import dataclasses
import functools
import sys
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, choose, fused
from posbench.attention.fused import hide_from_compilers
from posbench.attention.pieces import Piece
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias
from posbench.model.transformer import build
from tests.helpers import naive
from tests.helpers.cases import LAYER, Clipped, Everything, assert_same
from tests.helpers.cases_more import NEW, OLD, Case, Inputs, inputs, run
from tests.helpers.inductor import needs_inductor
from tests.helpers.marks import a_few
from tests.helpers.naive_more import by_pair
from tests.helpers.tolerance import EXACT, HALF, SINGLE

KINDS = [
    case
    for case in (*OLD, *NEW)
    if case.name
    in {
        "nope",
        "rope-half",
        "xpos",
        "logn_rope",
        "ssmax",
        "alibi-h6",
        "alibi-learned-h3",
        "kerple_log",
        "kerple_power",
        "sandwich",
        "t5-32-128",
        "t5_unscaled",
        "shaw-k2",
        "shaw-k16-keys",
        "transformer_xl",
        "deberta-k3-c2p+p2c-paper",
        "deberta-k16-c2p+p2c-paper",
        "fox",
        "cable",
        "everything",
        "clipped",
    }
]
"""One or two of each kind that the fused kernel serves."""

CLIPPED = [case for case in KINDS if case.encoding().clip is not None]

ALLOWED = {torch.float32: SINGLE, torch.bfloat16: 3 * HALF / 2}  # of the largest entry, or of 1

BIASED = [
    case for case in KINDS if case.name in {"alibi-h6", "sandwich", "kerple_log", "t5-32-128"}
]

each_kind = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
each_clipped = pytest.mark.parametrize("case", CLIPPED, ids=lambda case: case.name)


def as_leaves(given: Inputs, dtype: torch.dtype) -> Inputs:
    q, k, v, x = (each.detach().to(dtype).requires_grad_() for each in given)
    return q, k, v, x


@functools.lru_cache(maxsize=1)  # serves both dtypes
def defined(case: Case, length: int) -> list[Tensor]:
    """The reference in float64, of numbers that bfloat16 holds exactly."""
    return run("reference", case.encoding(), as_leaves(_rounded(case, length), torch.float64))


def assert_near(actual: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    """As near as ALLOWED says of dtype; expected is float64."""
    for number, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
        largest = max(1.0, float(wanted.abs().max()))
        off = float((found.double() - wanted).abs().max()) / largest
        assert off <= ALLOWED[dtype], (number, off)


def _rounded(case: Case, length: int) -> Inputs:
    return inputs(case, length, length, batch=1 if length > 1000 else 2, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@each_kind
@pytest.mark.parametrize("length", [1, 127, 128, 129, pytest.param(2000, marks=pytest.mark.slow)])
def test_values_and_gradients_at_every_length(case: Case, length: int, dtype: torch.dtype) -> None:
    """Both dtypes get the same numbers, and are held to the reference in float64.

    In bfloat16 the step is 2^-8 of a number: each rounding is off by half of that at most. On the
    way to a gradient there are six: of the rotated q and of k, of the weights, of the output (from
    which the softmax's gradient takes its mean), of the logits' gradient, and of the result. The
    first two move a logit by its own size times as much, here a few nats, which the sum over keys
    evens out; so each is given a whole step. Logits, biases and tables' gradients are float32: no
    error may grow with the length.
    """
    encoding = case.encoding(torch.float32)
    assert choose(encoding) == "fused"
    actual = run("fused", encoding, as_leaves(_rounded(case, length), dtype))
    assert_near(actual, defined(case, length), dtype)


@pytest.mark.parametrize("kept", [1000, 0])
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@each_kind
@pytest.mark.parametrize("length", [127, 129])
def test_what_lengths_decide_does_not_show(
    case: Case, length: int, dtype: torch.dtype, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether backward is given the weights; and a CPU's bfloat16 is not made float32."""
    for name, value in (("KEPT", kept), ("WIDE", 0)):
        monkeypatch.setattr(sys.modules["posbench.attention.fused"], name, value)
    actual = run("fused", case.encoding(torch.float32), as_leaves(_rounded(case, length), dtype))
    assert_near(actual, defined(case, length), dtype)


@pytest.mark.parametrize(("keys", "kept"), [(32, True), (33, False)])
def test_weights_are_kept_of_short_windows(
    keys: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 head widths of 4, where something learns."""
    module = sys.modules["posbench.attention.fused"]
    watched = unittest.mock.Mock(side_effect=module.attend_keeping)
    monkeypatch.setattr(module, "attend_keeping", watched)
    case = next(case for case in KINDS if case.name == "shaw-k16-keys")
    encoding, given = case.encoding(), inputs(case, 20, keys)
    attend("fused", encoding, given)
    assert watched.call_count == kept
    with torch.no_grad():
        attend("fused", encoding, given)
    assert watched.call_count == kept


@each_kind
@pytest.mark.parametrize("built", [2**20, 1])
def test_weights_are_kept_a_few_rows_at_a_time(
    case: Case, built: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, hidden keys and memory too, in blocks of 3 queries."""
    module = sys.modules["posbench.attention.fused"]
    for name, value in (("KEPT", 1000), ("TABLE_BLOCK", 8), ("BUILT", built)):
        monkeypatch.setattr(module, name, value)
    hidden = torch.zeros(3, 40, dtype=torch.bool)
    hidden[1, :10] = True
    for window, mask in ((None, None), (7, None), (None, hidden)):
        encoding, given = case.encoding(), inputs(case, 29, 40, batch=3)
        encoding.window = window
        span = dataclasses.replace(Span.window(29, 11), hidden=mask)
        expected = run("reference", encoding, given, span)
        assert_same(run("fused", encoding, given, span), expected, EXACT)


# Beyond a clip


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """The far pieces that are computed, forward and backward."""
    seen: list[Piece] = []
    for name in ("forward", "backward"):
        module = sys.modules[f"posbench.attention.{name}"]
        terms = module.far_terms

        def watched(t: object, piece: Piece, plan: object, terms: Callable = terms) -> object:
            seen.append(piece)
            return terms(t, piece, plan)

        monkeypatch.setattr(module, "far_terms", watched)
    return seen


class Turned(Clipped):
    """Q meets keys that are not turned: (q + Q) . k is not what is asked for."""

    rotate = Everything.rotate


class Passing(Clipped):
    """What a clip says nothing of."""

    def decay(self, x: Tensor, layer: int) -> Tensor:
        return -x.unflatten(-1, (self.shape.heads, -1)).square().mean(-1).mT


@pytest.mark.parametrize("kind", [Turned, Passing])
def test_a_clip_that_cannot_be_used_is_not(kind: type[Clipped], far: list[Piece]) -> None:
    case = Case("", kind, by_pair(naive.nope))
    encoding, given = case.encoding(), inputs(case, 130, 400)
    assert_same(run("fused", encoding, given), run("reference", encoding, given), EXACT)
    assert not far


@each_clipped
@pytest.mark.parametrize(("queries", "keys"), [(1, 400), (130, 400), (400, 400)])
def test_windows_far_beyond_the_clip(
    case: Case, queries: int, keys: int, far: list[Piece]
) -> None:
    """With memory, too."""
    encoding, qkvx = case.encoding(), inputs(case, queries, keys)
    assert_same(run("fused", encoding, qkvx), run("reference", encoding, qkvx), EXACT)
    assert len(far) >= 2
    assert far[-1].columns.stop == keys


@each_clipped
@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, 3])
def test_windows_about_as_long_as_the_clip(case: Case, beyond: int) -> None:
    encoding = case.encoding()
    assert encoding.clip is not None
    qkvx = inputs(case, encoding.clip + beyond, encoding.clip + beyond)
    assert_same(run("fused", encoding, qkvx), run("reference", encoding, qkvx), EXACT)


@each_clipped
def test_a_clip_beyond_the_window_is_none(case: Case, far: list[Piece]) -> None:
    encoding, qkvx = case.encoding(), inputs(case, 40, 70)
    expected = run("reference", encoding, qkvx)
    encoding.clip = 10**9
    assert_same(run("fused", encoding, qkvx), expected, EXACT)
    assert not far


@each_clipped
def test_gradients_beyond_the_clip_do_not_drift_in_float32(case: Case, far: list[Piece]) -> None:
    """All of a far piece's share is what is left of a sum: with a batch and memory, too."""
    qkvx = inputs(case, 600, 900, dtype=torch.float32)
    expected = run("reference", case.encoding(), as_leaves(qkvx, torch.float64))
    actual = run("fused", case.encoding(torch.float32), qkvx)
    for found, wanted in zip(actual, expected, strict=True):
        largest = max(1.0, float(wanted.abs().max()))
        assert float((found.double() - wanted).abs().max()) <= 2e-5 * largest
    assert far


# What hides keys


@each_kind
@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (130, 300), (300, 300)])
def test_hidden_keys(case: Case, queries: int, keys: int) -> None:
    """Any but the last ones, and in one row all of the memory."""
    hidden = torch.rand(2, keys, generator=torch.Generator().manual_seed(0)) < 0.5
    hidden[0, : keys - queries] = True
    hidden[:, keys - queries] = False
    hidden[:, -1] = False
    span = dataclasses.replace(Span.window(queries, keys - queries), hidden=hidden)
    encoding, qkvx = case.encoding(), inputs(case, queries, keys)
    expected = run("reference", encoding, qkvx, span)
    assert_same(run("fused", encoding, qkvx, span), expected, EXACT)


@each_kind
@pytest.mark.parametrize("window", [1, 2, 50, 129, 300])
def test_windows_of_the_last_keys(case: Case, window: int) -> None:
    encoding, qkvx = case.encoding(), inputs(case, 200, 260)
    encoding.window = window
    assert_same(run("fused", encoding, qkvx), run("reference", encoding, qkvx), EXACT)


# Who wants a gradient


def attend(kernel: str, encoding: Encoding, given: Inputs) -> Tensor:
    q, k, v, x = given
    span = Span.window(q.shape[2], k.shape[2] - q.shape[2])
    return KERNELS[kernel](q, k, v, encoding, LAYER, span, x=x)


def one_gradient(kernel: str, encoding: Encoding, given: Inputs, leaf: Tensor) -> Tensor | None:
    """Of a fixed functional of the output; None where nothing leads from leaf to it."""
    out = attend(kernel, encoding, given)
    if not out.requires_grad:
        return None
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), leaf, allow_unused=True)[0]


@each_kind
def test_each_gradient_alone(case: Case) -> None:
    """All else frozen: the plan of a pass depends on what must be learned."""
    encoding, given = case.encoding(), inputs(case, 140, 170)
    leaves = {**dict(zip("qkvx", given, strict=True)), **dict(encoding.named_parameters())}
    for name, leaf in leaves.items():
        for each in leaves.values():
            each.requires_grad_(each is leaf)
        found, expected = (one_gradient(k, encoding, given, leaf) for k in ("fused", "reference"))
        assert (found is None) == (expected is None), name
        if found is not None and expected is not None:
            torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT, msg=name)


@each_kind
def test_frozen_tables(case: Case) -> None:
    """Gradients of q, k, v and x are what they are when the tables learn."""
    encoding, given = case.encoding(), inputs(case, 300, 330)
    out, *learned = run("reference", encoding, given)
    encoding.requires_grad_(False)
    found = attend("fused", encoding, given)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad((found * weight).sum(), given, allow_unused=True)
    for g, expected in zip(gradients, learned[:4], strict=True):
        assert_same([torch.zeros_like(expected) if g is None else g], [expected], EXACT)


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (1, 1),
        (1, 90),
        (127, 127),
        pytest.param(130, 200, marks=pytest.mark.slow),
        pytest.param(256, 256, marks=pytest.mark.slow),
        pytest.param(100, 300, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("case", BIASED, ids=lambda case: case.name)
def test_one_mask_for_a_short_window(
    case: Case,
    window: int | None,
    queries: int,
    keys: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a bias does not learn, and one block of queries is all there is."""
    module = sys.modules["posbench.attention.fused"]
    watched = unittest.mock.Mock(side_effect=module.whole_mask)
    monkeypatch.setattr(module, "whole_mask", watched)
    given = inputs(case, queries, keys, batch=80, dtype=torch.bfloat16)

    def gradients(kernel: str, dtype: torch.dtype) -> list[Tensor]:
        encoding = case.encoding(dtype).requires_grad_(False)
        encoding.window = window
        leaves = as_leaves(given, dtype)
        out = attend(kernel, encoding, leaves)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves[:3])]

    expected = gradients("reference", torch.float64)
    assert_near(gradients("fused", dtype), expected, dtype)
    watched.assert_called_once()


@pytest.mark.parametrize(
    ("changed", "batch", "queries", "keys"),
    [
        ("learns", 64, 100, 100),
        ("hides keys", 64, 100, 120),
        ("a mask larger than the queries", 2, 100, 100),
        ("more than one block", 128, 257, 257),
        ("keys beyond the distances there are", 512, 8, 1025),
    ],
)
def test_where_one_mask_is_not_written(
    changed: str, batch: int, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["posbench.attention.fused"]
    monkeypatch.setattr(module, "whole_mask", unittest.mock.Mock(side_effect=AssertionError))
    case = next(case for case in BIASED if case.name == "t5-32-128")
    encoding = case.encoding().requires_grad_(changed == "learns")
    given = inputs(case, queries, keys, batch)
    hidden = torch.zeros(batch, keys, dtype=torch.bool)
    hidden[:, : keys - queries] = changed == "hides keys"
    span = Span.window(queries, keys - queries)
    span = dataclasses.replace(span, hidden=hidden) if changed == "hides keys" else span
    with torch.set_grad_enabled(changed == "learns"):
        found, expected = (
            KERNELS[kernel](*given[:3], encoding, LAYER, span) for kernel in ("fused", "reference")
        )
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)


@each_kind
def test_without_gradients(case: Case) -> None:
    encoding, given = case.encoding(), inputs(case, 140, 170)
    with torch.no_grad():
        found = attend("fused", encoding, given)
    assert not found.requires_grad
    torch.testing.assert_close(found, attend("reference", encoding, given), rtol=0, atol=EXACT)


@each_kind
def test_a_gradient_of_a_gradient_is_refused(case: Case) -> None:
    """It would lack what leads through the sums that the backward pass is given."""
    encoding, given = case.encoding(), inputs(case, 5, 7)
    out = attend("fused", encoding, given)
    (first,) = torch.autograd.grad(out.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|not implemented"):
        first.sum().backward()


# How tensors lie in memory


def _by_token(x: Tensor) -> Tensor:
    """[B, H, T, d] as a view of [B, T, H, d]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _part_of_a_wider(x: Tensor) -> Tensor:
    return torch.cat((x + 1, x), dim=-1)[..., x.shape[-1] :]


def _every_other(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=-1)[..., ::2]


def _features_first(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


LAYOUTS = [_by_token, _part_of_a_wider, _every_other, _features_first]


@each_kind
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_any_strides_of_q_k_and_v(case: Case, layout: Callable[[Tensor], Tensor]) -> None:
    given = inputs(case, 140, 170)
    expected = run("reference", case.encoding(), given)
    q, k, v, x = given
    laid = layout(q).detach(), layout(k).detach(), layout(v).detach(), x
    assert not any(each.is_contiguous() for each in laid[:3])
    for each in laid[:3]:
        each.requires_grad_()
    assert_same(run("fused", case.encoding(), laid), expected, EXACT)


@each_kind
def test_one_head_and_row_for_all(case: Case) -> None:
    """q, k and v expanded: strides of zero."""
    q, k, v, x = (each.detach() for each in inputs(case, 140, 170))
    small = [each[:1, :1].clone().requires_grad_() for each in (q, k, v)]
    found = []
    for kernel in ("fused", "reference"):
        q, k, v = (each.expand(2, case.heads, -1, -1) for each in small)
        out = attend(kernel, case.encoding(), (q, k, v, x))
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), small)])
    assert_same(found[0], found[1], EXACT)


@each_kind
@pytest.mark.parametrize(("queries", "keys"), [(140, 170), (170, 170)])
def test_an_expanded_gradient_from_above(case: Case, queries: int, keys: int) -> None:
    """That of a sum is one number, strides of zero."""
    given, found = inputs(case, queries, keys), []
    for kernel in ("fused", "reference"):
        encoding = case.encoding()
        leaves = [*given, *encoding.parameters()]
        total = attend(kernel, encoding, given).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        pairs = zip(gradients, leaves, strict=True)
        found.append([torch.zeros_like(x) if g is None else g for g, x in pairs])
    assert_same(found[0], found[1], EXACT)


# Numerically, and compiled


def _small(name: str) -> Case:
    """With tables of ten distances, where they would have thousands."""
    case = next(case for case in KINDS if case.name == name)
    make: Any = case.make
    if name in ("everything", "clipped"):
        make = functools.partial(make, distances=10)
    return dataclasses.replace(case, make=make)


SMALL = [
    (_small("everything"), 4, 6),
    pytest.param(_small("clipped"), 3, 13, marks=pytest.mark.slow),
    (_small("shaw-k2"), 4, 6),
    (_small("deberta-k3-c2p+p2c-paper"), 4, 6),
    (_small("transformer_xl"), 4, 6),
    (_small("t5-32-128"), 5, 5),
    (_small("alibi-learned-h3"), 5, 5),
    (_small("fox"), 4, 6),
]


@pytest.mark.parametrize(("case", "queries", "keys"), SMALL, ids=lambda x: getattr(x, "name", x))
def test_gradients_are_differences(
    case: Case, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of q, k, v, x and every parameter, in pieces of two queries."""
    module = sys.modules["posbench.attention.fused"]
    for name, value in (("BLOCK", 2), ("TABLE_BLOCK", 8), ("BUILT", 12)):
        monkeypatch.setattr(module, name, value)
    encoding, given = case.encoding(), inputs(case, queries, keys, batch=1)

    def attention(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *tables: Tensor) -> Tensor:
        return attend("fused", encoding, (q, k, v, x))

    assert torch.autograd.gradcheck(attention, (*given, *encoding.parameters()))


BACKENDS = [
    "eager",
    pytest.param(
        "inductor",
        marks=[pytest.mark.slow, needs_inductor],
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "batch"),
    a_few([(T5Bias, 2), (Shaw, 2), (ALiBi, 2), (ALiBi, 30)], 1),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_compiled_it_trains_the_same(kind: type[Encoding], batch: int, backend: str) -> None:
    """200 tokens are beyond both clips; of 30 rows ALiBi's mask is written once."""
    hide_from_compilers()
    shape = Shape(16, heads=2, layers=2)
    tokens = torch.randint(9, (batch, 200), generator=torch.Generator().manual_seed(0))
    found = []
    for wrap in (lambda model: model, functools.partial(torch.compile, backend=backend)):
        model = build(shape, 9, kind, seed=0, feed_forward=16).train()
        states, _ = wrap(model)(tokens)
        loss = (model.logits(states).logsumexp(-1) - model.logits(states)[..., 0]).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append([loss.detach(), *gradients])
    assert_same(found[1], found[0], SINGLE)


class Table(Encoding):
    """One learned number for every distance, or one vector."""

    def __init__(self, shape: Shape, distances: int, vectors: bool) -> None:
        super().__init__(shape)
        self.table = torch.nn.Parameter(torch.randn(shape.heads, distances, shape.head_width) / 8)
        self.vectors = vectors

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor | None:
        return None if self.vectors else self.table[:, distance, 0]

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor | None:
        return self.table[:, distance] if self.vectors else None


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(("length", "built"), [(200, 2**20), (200, 2**12)])
def test_what_softmax_ignores_gets_no_gradient_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, length: int, built: int, vectors: bool
) -> None:
    """The same added to all logits of a row changes nothing. Where a rounded output was let into
    that gradient, Adam made full steps of the noise: Transformer-XL's slow sinusoids, constant in
    training, drifted, and its perplexity at 16 times the length went from 29 to 45.
    """
    monkeypatch.setattr(fused, "WIDE", 0)  # it is of windows that stay bfloat16
    monkeypatch.setattr(fused, "BUILT", built)  # all of a row at once, or in many pieces
    torch.manual_seed(0)
    shape = Shape(width=32, heads=2, layers=1)
    encoding = Table(shape, length, vectors)
    q, k, v = (torch.randn(4, 2, length, 16).bfloat16().requires_grad_() for _ in range(3))
    q = q + 2  # so that it matters for vectors too
    out = fused.fused_attention(q, k, v, encoding, 0, Span.window(length))
    out.backward(torch.randn_like(out) + out.detach())
    given = encoding.table.grad
    assert given is not None
    assert given.sum(1).norm() < 1e-5 * given.norm() * length**0.5
