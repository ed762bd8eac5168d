"""The flex kernel computes what the reference defines. On a CPU, operation by operation, it does
what it compiles on CUDA; there flex_attention only refuses gradients, and is told not to."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import create_block_mask

from posbench.attention import KERNELS, flex_tables
from posbench.attention.flex import Seen, block_mask, flex_attention, refused
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.fox import FoX
from posbench.encodings.randomized import RandomizedALiBi, RandomizedT5
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.model.transformer import build
from tests.helpers import cases, cases_more
from tests.helpers.cases import with_gradients
from tests.helpers.marks import a_few, slow
from tests.helpers.tolerance import EXACT, HALF, SINGLE, relative

module = importlib.import_module("posbench.attention.flex")  # posbench.attention.flex: the module

Case = cases.Case | cases_more.Case
EVERY: list[Case] = [*cases.CASES, *cases_more.NEW]
SERVED = [case for case in EVERY if refused(case.make(case.shape)) is None]
NAMES = "nope transformer_xl t5-8-16 deberta-k3-c2p+p2c-paper rope-half fox fire xpos".split()
SOME = [case for case in SERVED if case.name in NAMES]

each_case = pytest.mark.parametrize("case", a_few(SERVED, 8), ids=lambda case: case.name)
some_cases = pytest.mark.parametrize("case", a_few(SOME, 3), ids=lambda case: case.name)


def _anywhere(*tensors: Tensor) -> None:
    """In place of the check that refuses gradients on a CPU."""


@pytest.fixture(autouse=True)
def gradients_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_validate_device", _anywhere)


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Nothing has been compiled yet, and reaching PyTorch's limit is an error."""
    torch._dynamo.reset()
    module._compiled.cache_clear()
    counters.clear()
    yield
    torch._dynamo.reset()
    module._compiled.cache_clear()


def _leaves(
    shape: Shape, queries: int, keys: int, dtype: torch.dtype, device: str = "cpu", batch: int = 2
) -> list[Tensor]:
    """q [B, H, T, d], k and v [B, H, S, d], x [B, S, D]: N(0, 1), the same for one size."""
    generator = torch.Generator().manual_seed(queries + 1000 * keys)
    heads = [(shape.heads, length, shape.head_width) for length in (queries, keys, keys)]
    drawn = [
        torch.randn(batch, *size, generator=generator, dtype=torch.float64)
        for size in [*heads, (keys, shape.width)]
    ]
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def _run(kernel: str, encoding: Encoding, leaves: list[Tensor], span: Span) -> list[Tensor]:
    """The output, then its gradients by q, k, v, x and every parameter."""
    q, k, v, x = leaves
    out = KERNELS[kernel](q, k, v, encoding, cases.LAYER, span, x=x)
    return with_gradients(out, encoding, leaves)


def _compare(
    encoding: Encoding,
    queries: int,
    keys: int,
    dtype: torch.dtype = torch.float64,
    tolerance: float = EXACT,
    hidden: Tensor | None = None,
) -> None:
    keys = min(keys, encoding.max_length or keys)
    queries, encoding = min(queries, keys), encoding.to(dtype)
    leaves = _leaves(encoding.shape, queries, keys, dtype)
    span = dataclasses.replace(Span.window(queries, keys - queries), hidden=hidden)
    expected = _run("reference", encoding, leaves, span)
    _same(_run("flex", encoding, leaves, span), expected, tolerance)


def _same(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Relative, and beside the largest entry: a parameter's gradient is a sum over all pairs."""
    for a, e in zip(actual, expected, strict=True):
        size = max(1.0, e.abs().max().item())
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance * size)


@each_case
@pytest.mark.parametrize(("queries", "keys"), [(129, 129), (5, 140)])
def test_flex_is_the_reference(case: Case, queries: int, keys: int) -> None:
    _compare(case.encoding(), queries, keys)


@some_cases
@pytest.mark.parametrize("length", [1, 128, 129, *slow(127)])
def test_lengths_around_a_block_in_float32(case: Case, length: int) -> None:
    _compare(case.encoding(), length, length, torch.float32, tolerance=SINGLE)


@some_cases
@pytest.mark.parametrize(("queries", "keys"), [(13, 40), (129, 260)])
def test_hidden_memory(case: Case, queries: int, keys: int) -> None:
    hidden = torch.zeros(2, keys, dtype=torch.bool)
    hidden[1, : keys - queries] = True
    hidden[0, 1] = True
    _compare(case.encoding(), queries, keys, hidden=hidden)


@some_cases
@pytest.mark.parametrize(("queries", "keys"), [(150, 150), (129, 300)])
@pytest.mark.parametrize("window", [40, *slow(1, 1000)])
def test_windows(case: Case, queries: int, keys: int, window: int) -> None:
    encoding = case.encoding()
    encoding.window = window
    _compare(encoding, queries, keys)


@some_cases
@pytest.mark.parametrize("window", [None, 40])
def test_blocks_of_queries_do_not_show(
    case: Case, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_tables, "LARGEST", 1)  # the least block has SIDE queries
    encoding = case.encoding()
    encoding.window = window
    _compare(encoding, 300, 340)


@pytest.mark.parametrize("make", [RandomizedALiBi, RandomizedT5, TransformerXL])
def test_positions_with_gaps(make: type[Encoding]) -> None:
    shape = Shape(width=8, heads=2, layers=2)
    encoding = cases_more.randomised(make(shape)).double()
    positions = torch.arange(0, 600, 4)  # 150 of them
    span = Span(positions[10:], positions, consecutive=False)
    leaves = _leaves(shape, 140, 150, torch.float64)
    expected = _run("reference", encoding, leaves, span)
    _same(_run("flex", encoding, leaves, span), expected, 1e-10)


@some_cases
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16(case: Case, autocast: bool) -> None:
    """Inputs alone are rounded: tables, and so a parameter's gradient, are not."""
    encoding = case.encoding().float()
    *qkv, x = _leaves(case.shape, 129, 129, torch.bfloat16)
    half = [*qkv, x.float().detach().requires_grad_()]
    whole = [each.float().detach().requires_grad_() for each in half]
    span = Span.window(129)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, *gradients = _run("flex", encoding, half, span)
    expected, *expected_gradients = _run("reference", encoding, whole, span)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=2 * HALF, atol=2 * HALF)
    for g, e in zip(gradients, expected_gradients, strict=True):
        assert (g.float() - e).norm() <= 0.05 * max(1.0, e.norm().item())


def test_learned_bias_is_not_rounded_by_autocast() -> None:
    """64.125 is no bfloat16: a rounded table would make the two weights equal."""
    encoding = T5Bias(Shape(8, heads=2, layers=1))
    with torch.no_grad():
        encoding.bias.fill_(64.0)[:, 0] = 64.125
    q, v = torch.zeros(1, 2, 2, 4).bfloat16(), torch.eye(2, 4).expand(1, 2, 2, 4).bfloat16()
    weights = torch.softmax(torch.tensor([64.0, 64.125]), dim=0)
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(q, q, v, encoding, 0, Span.window(2))
    torch.testing.assert_close(out[0, 0, 1, :2].float(), weights, rtol=HALF, atol=0)


def test_decays_are_exact_far_from_the_start() -> None:
    """Sums near 20,000, where neighbours in float32 are 0.002 apart: so would the weights be."""
    encoding = FoX(Shape(8, heads=1, layers=1))
    with torch.no_grad():
        encoding.weight.zero_()
        encoding.bias.fill_(-5.0)
        step = torch.nn.functional.logsigmoid(encoding.bias.double()).item()
        q, x = torch.zeros(1, 1, 4104, 8), torch.zeros(1, 4104, 8)
        v = torch.nn.functional.pad(torch.eye(8), (0, 0, 4096, 0))[None, None]
        out = flex_attention(q[:, :, :8], q, v, encoding, 0, Span.window(8, memory=4096), x=x)
    weights = torch.softmax(step * torch.arange(7, -1, -1, dtype=torch.float64), 0)
    limit = relative(torch.float32, 64)
    torch.testing.assert_close(out[0, 0, -1].double(), weights, rtol=limit, atol=0)


# Block masks


@pytest.mark.parametrize("window", [None, 1, 100, 128, 129, 300])
@pytest.mark.parametrize(
    ("queries", "keys", "memory"), [(128, 128, 0), (512, 512, 0), (256, 640, 300), (128, 512, 384)]
)
def test_block_masks_are_pytorchs(
    queries: int, keys: int, memory: int, window: int | None
) -> None:
    """Counted from sizes here, from all the pairs there."""
    made = block_mask(queries, keys, Seen(memory, window, None), torch.device("cpu"))
    theirs = create_block_mask(made.mask_mod, None, None, queries, keys, device="cpu")
    behind = torch.arange(queries)[:, None] + memory - torch.arange(keys)
    seen = (behind >= 0) & (behind < (window or keys))
    pairs = torch.meshgrid(torch.arange(queries), torch.arange(keys), indexing="ij")
    nothing = torch.zeros((), dtype=torch.int32)
    assert torch.equal(made.mask_mod(nothing, nothing, *pairs), seen)
    assert torch.equal(made.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(made, name), getattr(theirs, name)), name


def test_each_length_has_a_block_mask_of_its_own() -> None:
    """attention-gym#31: one made for another length is wrong, or refused."""
    cpu = torch.device("cpu")
    made = {n: block_mask(n, n, Seen(0, None, None), cpu) for n in (128, 256, 512)}
    assert [mask.seq_lengths for mask in made.values()] == [(n, n) for n in made]
    assert all(block_mask(n, n, Seen(0, None, None), cpu) is mask for n, mask in made.items())
    assert block_mask(256, 256, Seen(0, 40, None), cpu) is not made[256]
    assert block_mask(256, 256, Seen(3, None, None), cpu) is not made[256]
    assert block_mask.cache_info().maxsize is not None


# Compilation


def _evaluate(encoding: Encoding, length: int, batch: int = 1) -> None:
    leaves = [
        x.detach() for x in _leaves(encoding.shape, length, length, torch.float32, batch=batch)
    ]
    q, k, v, x = leaves
    with torch.no_grad():
        span = Span.window(length)
        out, expected = (
            KERNELS[name](q, k, v, encoding, 0, span, x=x) for name in ("flex", "reference")
        )
    torch.testing.assert_close(out, expected, rtol=4 * SINGLE, atol=SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("make", [T5Bias, DeBERTa, FoX])
def test_lengths_1x_to_32x_stay_within_the_recompile_limit(
    make: type[Encoding], uncompiled: None
) -> None:
    """pytorch#141486. Training at 128 is compiled once. So is evaluation, but PyTorch takes 1 for
    a constant, be it a block or a row, and has a second look at what is padded."""
    encoding = make(Shape(width=4, heads=1, layers=2))
    leaves = _leaves(encoding.shape, 128, 128, torch.float32)
    with torch._dynamo.config.patch(recompile_limit=2):  # 8 is PyTorch's
        for _ in range(3):
            _run("flex", encoding, leaves, Span.window(128))
        assert counters["stats"]["unique_graphs"] == 1
        for length in [128, 256, 512, 1024, 2048, 4096, 1000, 300, 128]:
            _evaluate(encoding, length)
        assert counters["stats"]["unique_graphs"] <= 4
        for length in (300, 512, 1024):
            _evaluate(encoding, length, batch=1024 // length + 1)
        assert counters["stats"]["unique_graphs"] <= 6


@pytest.mark.slow
def test_encodings_in_one_process_stay_within_the_recompile_limit(uncompiled: None) -> None:
    """Each is trained and evaluated, with memory and without; at the limit PyTorch would raise."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for case in SOME:
            encoding = case.encoding().float()
            for queries, keys in [(130, 130), (200, 300)]:
                q, k, v, x = _leaves(case.shape, queries, keys, torch.float32)
                span = Span.window(queries, memory=keys - queries)
                assert flex_attention(q, k, v, encoding, 1, span, x=x).requires_grad
                with torch.no_grad():
                    flex_attention(q, k, v, encoding, 1, span, x=x)
    assert module._compiled.cache_info().currsize > torch._dynamo.config.recompile_limit


@pytest.mark.slow
@pytest.mark.parametrize("make", [T5Bias, TransformerXL])
def test_inside_a_compiled_model(make: type[Encoding], uncompiled: None) -> None:
    """train.compile: no break in the graph, and the same numbers."""
    model = build(Shape(16, 2, 2), 30, make, seed=1, feed_forward=16)
    tokens = torch.randint(30, (2, 150), generator=torch.Generator().manual_seed(0))
    found = []
    for kernel, run in (("reference", model), ("flex", torch.compile(model, backend="eager"))):
        model.kernels = [kernel] * 2
        states, _ = run(tokens)
        loss = states[:, 50:].square().sum()
        found.append([states, *torch.autograd.grad(loss, list(model.parameters()))])
    assert not counters["graph_break"]
    _same(found[1], found[0], 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (129, 129), (256, 300), (5, 1030)])
@some_cases
def test_on_cuda(case: Case, queries: int, keys: int, dtype: torch.dtype) -> None:
    encoding = case.encoding().float().to("cuda")
    *qkv, x = _leaves(case.shape, queries, keys, dtype, "cuda")
    here = [*qkv, x.float().detach().requires_grad_()]
    exact = [each.float().detach().requires_grad_() for each in here]
    span = Span.window(queries, memory=keys - queries, device="cuda")
    expected = _run("reference", encoding, exact, span)
    tolerance = 8 * SINGLE if dtype == torch.float32 else 2 * HALF
    for a, e in zip(_run("flex", encoding, here, span), expected, strict=True):
        assert (a.float() - e).norm() <= tolerance * max(1.0, e.norm().item())
