"""Third-party attention modules on given q, k and v, beside posbench's kernels.

An oracle takes q, k, v [B, H, T, d] and gives the causal attention's output [B, H, T, d]. It runs
the module's own forward: the projections are replaced by what they should return, and positional
weights are posbench's parameters in the module's layout, so that both sides have one set of
leaves to differentiate by.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posbench.attention import ON_CPU
from posbench.encodings import Encoding, Shape, Span
from tests.helpers.cases import LAYER, LAYERS, with_gradients
from tests.helpers.tolerance import EXACT, SINGLE

Oracle = Callable[[Tensor, Tensor, Tensor], Tensor]

LENGTHS = [1, 2, 7, 128, 1000]
TOLERANCE = {torch.float64: EXACT, torch.float32: SINGLE}
"""Absolute and relative."""

each_length = pytest.mark.parametrize("length", LENGTHS)
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


class Given(nn.Module):
    """A projection that returns what it was given."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


def shape(heads: int = 2, head_width: int = 8, two_sided: bool = False) -> Shape:
    return Shape(heads * head_width, heads, LAYERS, two_sided)


def merged(x: Tensor) -> Tensor:
    """[B, H, T, d] -> [B, T, H d], what a projection returns."""
    return x.transpose(1, 2).flatten(2)


def split(x: Tensor, like: Tensor) -> Tensor:
    """[B, T, H d] -> [B, H, T, d], shaped like q."""
    return x.unflatten(-1, (like.shape[1], -1)).transpose(1, 2)


def future(length: int) -> Tensor:
    """[1, 1, T, T], True where a query must not see a key."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]


def additive(length: int, dtype: torch.dtype) -> Tensor:
    """The same, as what is added to logits."""
    logits = torch.zeros(1, 1, length, length, dtype=dtype)
    return logits.masked_fill(future(length), torch.finfo(dtype).min)


def causal(encoding: Encoding, q: Tensor) -> Tensor | None:
    """The same for queries [B, H, T, d]; None for a two-sided encoding."""
    return None if encoding.shape.two_sided else additive(q.shape[2], q.dtype)


class _Float64(TorchFunctionMode):
    """float32, where code asks for it by name, becomes float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        wide = [torch.float64 if a is torch.float32 else a for a in args]
        named = {
            name: torch.float64 if a is torch.float32 else a for name, a in (kwargs or {}).items()
        }
        return func(*wide, **named)


@contextlib.contextmanager
def widened(dtype: torch.dtype) -> Iterator[None]:
    """Under float64, third-party code computes all in it.

    Most modules take softmax or angles in float32 whatever they are given; in float64 they would
    agree to 1e-7 only. Under float32 their code runs as it is.
    """
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(before)


def randomized(encoding: Encoding, dtype: torch.dtype, size: float = 0.5) -> Encoding:
    """With every parameter N(0, size^2)."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return encoding.to(dtype)


def assert_agrees(
    encoding: Encoding,
    oracle: Oracle,
    length: int,
    dtype: torch.dtype,
    tolerance: float | None = None,
    gain: float = 1.0,
) -> None:
    """Outputs and gradients by q, k, v and every parameter, in both kernels.

    gain: what posbench's queries are multiplied by.
    """
    tolerance = tolerance or TOLERANCE[dtype]
    # a parameter's float32 gradient is a sum over all pairs, and rounds with their number
    summed = tolerance * max(1.0, length / 100) if dtype == torch.float32 else tolerance
    generator = torch.Generator().manual_seed(length)
    batch = 2 if length < 1000 else 1
    size = (batch, encoding.shape.heads, length, encoding.shape.head_width)
    drawn = torch.randn(3, *size, generator=generator, dtype=torch.float64).to(dtype)
    q, k, v = qkv = [x.requires_grad_() for x in drawn]
    with widened(dtype):
        expected = with_gradients(oracle(q, k, v), encoding, qkv)
    names = ["output", "gradient by q", "gradient by k", "gradient by v"]
    limits = dict.fromkeys(names, tolerance)
    limits |= {f"gradient by {name}": summed for name, _ in encoding.named_parameters()}
    for kernel, attend in ON_CPU.items():
        out = attend(gain * q, k, v, encoding, LAYER, Span.window(length))
        actual = with_gradients(out, encoding, qkv)
        for (name, limit), a, e in zip(limits.items(), actual, expected, strict=True):
            assert e.dtype == dtype
            message = functools.partial("{}, {}\n{}".format, kernel, name)
            torch.testing.assert_close(a, e, rtol=limit, atol=limit, msg=message)
