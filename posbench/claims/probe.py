"""An encoding, tried on small random contents in float64, under no_grad.

Shapes: B batch (1), H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posbench.attention import KERNELS, choose
from posbench.encodings import Encoding, Shape, Span
from posbench.model.transformer import Transformer

LENGTH = 24  # tokens in a window: past Shaw's k, short enough to write every pair out
FAR = 1000  # tokens that a window is moved by
EXACT = 1e-9  # float64 rounds below 1e-12 here, and a term too many is of order 0.1

FUSED = "scaled_dot_product"  # in the names of torch's fused kernels
PRODUCTS = {"matmul", "__matmul__", "einsum", "mm", "bmm", "addmm", "baddbmm", "linear"}


def drawn(encoding: Encoding) -> Encoding:
    """A float64 copy with every parameter N(0, 1/4): none is too small to matter."""
    made = copy.deepcopy(encoding).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    made.after_step()
    return made


def contents(encoding: Encoding, seed: int = 0, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """q and k [1, H, T, d], N(0, 1)."""
    shape = (2, 1, encoding.shape.heads, length, encoding.shape.head_width)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(shape, generator=generator, dtype=torch.float64)
    return q, k


def logits(encoding: Encoding, q: Tensor, k: Tensor, start: int = 0) -> Tensor:
    """[1, H, T, T], 0 in the future: what the reference kernel gives its softmax."""
    kept: list[Tensor] = []
    watched = copy.copy(encoding)

    def scores(before: Tensor, *rest: Any) -> Tensor:
        kept.append(encoding.scores(before, *rest))
        return kept[-1]

    watched.__dict__["scores"] = scores  # the last cell before the mask
    span = Span.window(q.shape[2], start=start)
    _attend("reference", watched, q, k, span)
    return kept[0].tril()


def last_layer(encoding: Encoding) -> int:
    """The last layer's number; layer 0 would hide a wrong layer number."""
    return encoding.shape.layers - 1


def content(encoding: Encoding, q: Tensor, k: Tensor) -> Tensor:
    """scale q_i . k_j alone: [1, H, T, T], 0 in the future."""
    return (encoding.scale * q @ k.mT).tril()


def relative(distances: Tensor) -> Tensor:
    """What each pair has by its distance: [H, T, ...] -> [H, T, T, ...]."""
    at = torch.arange(distances.shape[1])
    return distances[:, (at[:, None] - at).clamp(min=0)]


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest value of a."""
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-30))


def shown(difference: float) -> str:
    """A difference in print, the same on every machine where it is rounding alone."""
    if difference < EXACT:
        return f"less than {EXACT:.0e}"
    return f"{difference:.0%}" if difference >= 0.01 else f"{difference:.1e}"


def within(difference: float) -> str:
    """In print, the difference of two tensors that should be equal."""
    return f"within {EXACT:.0e}" if difference < EXACT else f"off by {shown(difference)}"


def moved(encoding: Encoding) -> tuple[int, float]:
    """How many tokens a window is moved by (within max_length), and the change that makes."""
    limit = encoding.max_length
    length = LENGTH if limit is None else max(1, min(LENGTH, limit // 2))
    far = FAR if limit is None else min(FAR, limit - length)
    return far, apart(attended(encoding, length, 0), attended(encoding, length, far))


def attended(encoding: Encoding, length: int, start: int) -> Tensor:
    """The attention's output [1, H, T, d] for inputs at positions from start on."""
    generator = torch.Generator().manual_seed(3)
    width, heads = encoding.shape.width, encoding.shape.heads
    x = torch.randn(1, length, width, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, width, width, generator=generator, dtype=torch.float64)
    span = Span.window(length, start=start)
    x = encoding.embed(x, span.queries)
    projected = x @ (weights / width**0.5)[:, None]  # [3, 1, T, D]
    q, k, v = projected.unflatten(-1, (heads, -1)).transpose(2, 3)
    return KERNELS["reference"](q, k, v, encoding, last_layer(encoding), span, 0.0, x)


def model(encoding: Encoding) -> Transformer:
    """One layer around an encoding, in float64, its weights drawn as PyTorch does."""
    shape = Shape(encoding.shape.width, encoding.shape.heads, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return Transformer(shape, 16, encoding, feed_forward=shape.width).double().eval()


class _Calls(TorchFunctionMode):
    """Notes what is called, by name, with which keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func.__name__, kwargs or {}))
        return func(*args, **(kwargs or {}))


def fused_masks(encoding: Encoding) -> list[Tensor | None] | None:
    """The mask of each call of the fused kernel; None where it cannot serve the encoding."""
    if choose(encoding) != "fused":
        return None
    calls = _called("fused", encoding)
    return [given.get("attn_mask") for name, given in calls if FUSED in name]


def products(encoding: Encoding) -> int:
    """The matrix products of one layer's attention, by definition."""
    return sum(name in PRODUCTS for name, _ in _called("reference", encoding))


def _called(kernel: str, encoding: Encoding) -> list[tuple[str, dict[str, Any]]]:
    q, k = contents(encoding)
    with _Calls() as noted:
        _attend(kernel, encoding, q, k, Span.window(LENGTH))
    return noted.calls


def _attend(kernel: str, encoding: Encoding, q: Tensor, k: Tensor, span: Span) -> None:
    """Keys are their own values, and the layer's input is nought."""
    x = torch.zeros(1, k.shape[2], encoding.shape.width, dtype=torch.float64)
    KERNELS[kernel](q, k, k, encoding, last_layer(encoding), span, 0.0, x)
