"""The encodings under test, each beside its naive definition, and how a test calls them.

Shapes: B batch, H heads, T queries, S keys, d head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from posbench.attention import Attention
from posbench.attention.precision import precise
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers import naive

HEAD_WIDTH = 4
LAYERS = 2
LAYER = 1
"""The layer that is tested: not the first, so that a wrong layer index shows."""

Make = Callable[[Shape], Encoding]

NINE: dict[str, Make] = {
    "nope": NoPE,
    "sinusoidal": Sinusoidal,
    "learned": lambda shape: Learned(shape, max_length=64),
    "shaw": lambda shape: Shaw(shape, k=16),
    "transformer_xl": TransformerXL,
    "t5": T5Bias,
    "deberta": lambda shape: DeBERTa(shape, k=8),
    "rope": RoPE,
    "alibi": ALiBi,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding, and what the attention under it is by definition."""

    name: str
    make: Make
    logit: naive.Logit = naive.nope
    value: naive.Value = naive.no_value
    heads: int = 2

    @property
    def shape(self) -> Shape:
        return Shape(width=self.heads * HEAD_WIDTH, heads=self.heads, layers=LAYERS)

    def encoding(self, dtype: torch.dtype = torch.float64, size: float = 0.5) -> Encoding:
        """With every parameter N(0, size^2), so that none of them is too small to matter."""
        encoding = self.make(self.shape)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
        return encoding.to(dtype)


class Tables(Encoding):
    """All tables over distances."""

    def __init__(self, shape: Shape, distances: int = 2048) -> None:
        super().__init__(shape)
        size = (shape.layers, shape.heads, distances)
        self.bias = nn.Parameter(torch.zeros(size))
        self.keys = nn.Parameter(torch.zeros(*size, shape.head_width))
        self.queries = nn.Parameter(torch.zeros(*size, shape.head_width))
        self.values = nn.Parameter(torch.zeros(*size, shape.head_width))

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return self.bias[layer][:, distance]

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return self.keys[layer][:, distance]

    def distance_queries(self, distance: Tensor, layer: int) -> Tensor:
        return self.queries[layer][:, distance]

    def distance_values(self, distance: Tensor, layer: int) -> Tensor:
        return self.values[layer][:, distance]


class Everything(Tables):
    """And a rotation."""

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        i, j = (where.to(precise(q.dtype)) for where in (span.queries, span.keys))
        return q * i.cos()[:, None], k * j.cos()[:, None]


class Pairwise(Everything):
    """And a bias of both positions: everything but `decay` and `scores`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.pairwise = nn.Parameter(torch.zeros(shape.layers, shape.heads))

    def position_bias(self, span: Span, layer: int) -> Tensor:
        phase = span.queries[:, None] + 2 * span.keys
        return self.pairwise[layer][:, None, None] * phase.to(self.pairwise.dtype).sin()


class Clipped(Tables):
    """From distance 9 on, each table says the same; and nothing is rotated."""

    clip = 9

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance.clamp(max=9), layer)

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_keys(distance.clamp(max=9), layer)

    def distance_queries(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_queries(distance.clamp(max=9), layer)

    def distance_values(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_values(distance.clamp(max=9), layer)


def _shaw(k: int, values: bool) -> Case:
    value = naive.shaw_value if values else naive.no_value
    name = f"shaw-k{k}{'' if values else '-keys'}"
    return Case(name, lambda shape: Shaw(shape, k=k, values=values), naive.shaw, value)


def _deberta(k: int, c2p: bool, p2c: bool, index: str) -> Case:
    def make(shape: Shape) -> Encoding:
        return DeBERTa(shape, k=k, c2p=c2p, p2c=p2c, p2c_index=index)

    terms = "+".join(n for n, used in (("c2p", c2p), ("p2c", p2c)) if used) or "none"
    return Case(f"deberta-k{k}-{terms}-{index}", make, naive.deberta(index == "paper"))


def _t5(buckets: int, max_distance: int) -> Case:
    def make(shape: Shape) -> Encoding:
        return T5Bias(shape, buckets=buckets, max_distance=max_distance)

    return Case(f"t5-{buckets}-{max_distance}", make, naive.t5)


def _rope(layout: str) -> Case:
    return Case(f"rope-{layout}", lambda shape: RoPE(shape, layout=layout), naive.rope(layout))


def _transformer_xl(untie: bool) -> Case:
    def make(shape: Shape) -> Encoding:
        return TransformerXL(shape, untie=untie)

    return Case(f"transformer_xl{'-untied' if untie else ''}", make, naive.transformer_xl)


CASES = [
    Case("nope", NINE["nope"]),
    Case("sinusoidal", NINE["sinusoidal"]),
    Case("learned", NINE["learned"]),
    *(_shaw(k, values) for k in (0, 2, 16) for values in (True, False)),
    _transformer_xl(untie=False),
    _transformer_xl(untie=True),
    _t5(32, 128),
    _t5(8, 16),
    *(_deberta(3, c2p, p2c, "paper") for c2p in (False, True) for p2c in (False, True)),
    _deberta(3, False, True, "code"),
    _deberta(3, True, True, "code"),
    _deberta(1, True, True, "paper"),
    _deberta(16, True, True, "paper"),
    _rope("half"),
    _rope("interleaved"),
    *(Case(f"alibi-h{heads}", ALiBi, naive.alibi, heads=heads) for heads in (1, 2, 4, 6, 8, 12)),
    Case("everything", Everything, naive.everything, naive.everything_value),
    Case("pairwise", Pairwise, naive.pairwise, naive.everything_value),
    Case("clipped", Clipped, naive.clipped, naive.clipped_value),
]

SOME = [
    case
    for case in CASES
    if case.name
    in {
        "nope",
        "sinusoidal",
        "learned",
        "shaw-k2",
        "shaw-k16-keys",
        "transformer_xl",
        "t5-32-128",
        "deberta-k3-c2p+p2c-paper",
        "deberta-k16-c2p+p2c-paper",
        "rope-half",
        "alibi-h6",
        "everything",
        "clipped",
    }
]
"""One or two of each kind, where the variants make no difference."""


def inputs(
    case: Case, queries: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, H, T, d], k and v [B, H, S, d]: N(0, 1), the same for one size."""
    generator = torch.Generator().manual_seed(queries + 1000 * keys)

    def draw(length: int) -> Tensor:
        size = (batch, case.heads, length, HEAD_WIDTH)
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    q, k, v = draw(queries), draw(keys), draw(keys)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def run(
    kernel: Attention, encoding: Encoding, qkv: Sequence[Tensor], hidden: Tensor | None = None
) -> list[Tensor]:
    """The output, then its gradients: see with_gradients."""
    q, k, v = qkv
    span = Span.window(q.shape[2], memory=k.shape[2] - q.shape[2])
    span = dataclasses.replace(span, hidden=hidden)
    return with_gradients(kernel(q, k, v, encoding, LAYER, span), encoding, qkv)


def with_gradients(out: Tensor, encoding: Encoding, qkv: Sequence[Tensor]) -> list[Tensor]:
    """out, then the gradients of a fixed functional of it by q, k, v and every parameter."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    leaves = [*qkv, *encoding.parameters()]
    gradients = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in pairs)]


def assert_same(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal lists of outputs and gradients; tolerance is absolute and relative."""
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)
