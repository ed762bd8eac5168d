"""posbench beside an oracle at one size, also with memory and with a layer's input.

An oracle takes q [B, H, T, d], k and v [B, H, S, d], S >= T, and x [B, S, D] where the encoding
fills `decay`; it gives [B, H, T, d]. See modules.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention import KERNELS, ON_CPU, choose
from posbench.encodings import Encoding, Span
from tests.helpers.cases import LAYER, with_gradients
from tests.helpers.oracle_modules import LENGTHS, TOLERANCE, widened

Oracle = Callable[..., Tensor]

each_square = pytest.mark.parametrize(
    ("queries", "keys"), [(n, n) for n in LENGTHS], ids=[str(n) for n in LENGTHS]
)
with_memory = pytest.mark.parametrize(
    ("queries", "keys"),
    [*((n, n) for n in LENGTHS), (1, 7), (5, 128), (20, 200)],
    ids=lambda n: str(n),
)


def unseen(queries: int, keys: int) -> Tensor:
    """[T, S], True where a query must not see a key."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def additive(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """The same, as what is added to logits; [1, 1, T, S]."""
    logits = torch.zeros(1, 1, queries, keys, dtype=dtype)
    return logits.masked_fill(unseen(queries, keys), torch.finfo(dtype).min)


def last_rows(oracle: Oracle) -> Oracle:
    """An oracle that knows no memory, asked as if all keys had queries."""

    def attend(q: Tensor, k: Tensor, *rest: Tensor) -> Tensor:
        return oracle(F.pad(q, (0, 0, k.shape[2] - q.shape[2], 0)), k, *rest)[:, :, -q.shape[2] :]

    return attend


def in_float64(oracle: Oracle) -> Oracle:
    """An oracle whose own float32 is too rough to compare with: it computes in float64."""

    def attend(*leaves: Tensor) -> Tensor:
        with widened(torch.float64):
            out = oracle(*(x.double() for x in leaves))
        return out.to(leaves[0].dtype)

    return attend


def kernels(encoding: Encoding) -> list[str]:
    """Those that can serve the encoding."""
    return list(ON_CPU) if choose(encoding) == "fused" else ["reference"]


def agrees(
    encoding: Encoding,
    oracle: Oracle,
    queries: int,
    keys: int,
    dtype: torch.dtype,
    layer: int = LAYER,
    tolerance: float | None = None,
) -> None:
    """Asserts equal outputs and gradients by q, k, v, x and every parameter, in all kernels."""
    tolerance = tolerance or TOLERANCE[dtype]
    leaves = draw(encoding, queries, keys, dtype)
    with widened(dtype):
        expected = with_gradients(oracle(*leaves), encoding, leaves)
    names = ["output", *"qkvx"[: len(leaves)], *(name for name, _ in encoding.named_parameters())]
    for kernel in kernels(encoding):
        q, k, v, *x = leaves
        two_sided = encoding.shape.two_sided
        span = Span.window(queries, memory=keys - queries, two_sided=two_sided)
        out = KERNELS[kernel](q, k, v, encoding, layer, span, x=x[0] if x else None)
        actual = with_gradients(out, encoding, leaves)
        for name, a, e in zip(names, actual, expected, strict=True):
            where = f"{kernel}: {name}"
            close(a, e, tolerance, where)


def close(a: Tensor, e: Tensor, tolerance: float, where: str) -> None:
    """Of one dtype, and equal to tolerance, relative and beside the largest entry.

    A parameter's gradient sums over all pairs, a million of them at length 1000: what rounding
    leaves goes with the size of the terms, which the largest entry shows and a small one hides.
    """
    size = max(1.0, e.abs().max().item())

    def message(text: str) -> str:
        return f"{where}\n{text}"

    torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance * size, msg=message)


def draw(encoding: Encoding, queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, and x for an encoding that looks at it: N(0, 1), the same for one size."""
    generator = torch.Generator().manual_seed(queries + 1000 * keys)
    shape = encoding.shape
    batch = 2 if keys < 1000 else 1
    sizes: list[tuple[int, ...]] = [
        (batch, shape.heads, n, shape.head_width) for n in (queries, keys, keys)
    ]
    if encoding.fills("decay"):
        sizes.append((batch, keys, shape.width))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for size in sizes
    ]
