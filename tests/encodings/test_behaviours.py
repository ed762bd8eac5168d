"""What users of other harnesses were bitten by, where no other test of this folder has it."""

from __future__ import annotations

import pytest
import torch

from posbench.attention import KERNELS, ON_CPU
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.extension import DynamicNTK, YaRN
from posbench.encodings.fox import FoX
from posbench.encodings.learned import Learned
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.model.transformer import build
from tests.helpers.cases import CASES, Case

each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", [c for c in CASES if c.name != "pairwise"], ids=lambda c: c.name)
def test_a_row_that_sees_itself_alone_is_never_nan(
    case: Case, dtype: torch.dtype, kernel: str
) -> None:
    """xformers#684: -inf and half precision. The first row sees one key, the others all."""
    encoding = case.encoding(torch.float32)
    q, k, v = torch.randn(3, 2, case.heads, 12, 4, generator=torch.Generator().manual_seed(0))
    half = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    hidden = torch.zeros(2, 12, dtype=torch.bool)
    hidden[0, :11] = True
    span = Span(torch.tensor([11]), torch.arange(12), hidden)
    out = KERNELS[kernel](half[0][:, :, -1:], half[1], half[2], encoding, 1, span)
    out.float().sum().backward()
    assert out.isfinite().all()
    assert all(x.grad is None or x.grad.isfinite().all() for x in half)


@each_kernel
def test_the_zero_of_alibi_is_the_querys_own_key(kernel: str) -> None:
    """x-transformers#103: with M keys of memory, row i's unpenalised key is M + i."""
    case = next(case for case in CASES if case.name == "alibi-h4")
    encoding, span = case.make(Shape(48, 4, 1)), Span.window(5, memory=7)
    q, k = torch.zeros(1, 4, 5, 12), torch.zeros(1, 4, 12, 12)
    v = torch.eye(12)[None, None].expand(1, 4, -1, -1)
    out = KERNELS[kernel](q, k, v, encoding, 0, span)
    assert out.argmax(-1).eq(torch.arange(7, 12)).all()


def test_a_learned_window_past_the_table_fails_before_any_kernel() -> None:
    """esm#49: an index past the end poisons a GPU. The model refuses before it looks up a row."""
    model = build(
        Shape(8, 2, 1), 9, lambda shape: Learned(shape, max_length=4), seed=0, feed_forward=8
    )
    model.encoding.embed = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="4 positions, not 5"):
        model(torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize("kind", [DynamicNTK, YaRN])
def test_context_extension_never_meets_cached_keys(kind: type[DynamicNTK | YaRN]) -> None:
    """transformers#25104: keys turned under one window's base are wrong in the next."""
    encoding = kind(Shape(16, 2, 1), factor=2.0, original_length=8)
    assert encoding.memory_length == 0


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda shape: TransformerXL(shape, memory_length=-1), "memory_length=-1"),
        (lambda shape: T5Bias(shape, buckets=31), "buckets=31"),
        (lambda shape: Learned(shape, max_length=4, beyond="wrap"), "beyond=wrap"),
    ],
)
def test_a_value_that_cannot_be_is_named(make: type[Encoding], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        make(Shape(8, 2, 1))


def test_decay_without_the_layers_input_is_an_error_that_says_so() -> None:
    q = torch.randn(1, 2, 3, 4)
    for kernel in ON_CPU.values():
        with pytest.raises(ValueError, match=r"decay.*x must be given"):
            kernel(q, q, q, FoX(Shape(8, 2, 1)), 0, Span.window(3))
