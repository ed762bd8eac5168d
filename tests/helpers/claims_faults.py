"""Encodings that are wrong in one thing each, for tests/claims/test_claims.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings import Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL


def steps(distance: Tensor) -> Tensor:
    """A bias by distance that no scheme here has: [M] -> [2, M]."""
    return distance.double().sqrt().expand(2, -1)


class WarpedSinusoid(Sinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions.double().sqrt())


class SinusoidOfTheWindow(Sinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions.double() / len(positions))


class WrappedTable(Learned):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, max_length=8)
        self.max_length = None

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions % len(self.table))


class SinusoidFromTheStart(Sinusoidal):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, positions - positions[0])


class ALiBiOfPosition(ALiBi):
    def position_bias(self, span: Span, layer: int) -> Tensor:
        return (span.queries[:, None] * span.keys).double().sin().expand(2, -1, -1)


class ShawWithBias(Shaw):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return steps(distance)


class ShawWithoutClip(Shaw):
    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_keys(distance, layer) + distance[:, None]


class ShawOfScalars(Shaw):
    def distance_keys(self, distance: Tensor, layer: int) -> None:  # type: ignore[override]
        return None

    distance_bias = ShawWithBias.distance_bias


class XLWithoutC(TransformerXL):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        return q, k


class XLClamped(TransformerXL):
    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_keys(distance.clamp(max=400), layer)


class XLWithOneProjection(TransformerXL):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        flat = k.transpose(1, 2).flatten(2) @ self.projection[layer]
        return q, flat.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)


class XLOfThePosition(TransformerXL):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        return q + span.queries[:, None].double().sin(), k


class XLOfTheSegment(TransformerXL):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        return q / len(span.queries), k


class XLWithoutR(TransformerXL):
    def distance_keys(self, distance: Tensor, layer: int) -> None:  # type: ignore[override]
        return None

    def distance_bias(self, distance: Tensor, layer: int) -> None:  # type: ignore[override]
        return None


class T5OfEachLayer(T5Bias):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.more = nn.Parameter(torch.ones(shape.layers))

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance, layer) * self.more[layer]


class T5WithAnEdgeMoved(T5Bias):
    def bucket(self, distance: Tensor) -> Tensor:
        return super().bucket(torch.where(distance == 19, 18, distance))


class T5WithoutAnEnd(T5Bias):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance, layer) + (distance > 1000)


class DeBERTaWithAFourthTerm(DeBERTa):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return steps(distance)


class DeBERTaScaledByTwo(DeBERTa):
    @property
    def scale(self) -> float:
        return (2 * self.shape.head_width) ** -0.5


class DeBERTaSymmetric(DeBERTa):
    def distance_queries(self, distance: Tensor, layer: int) -> Tensor | None:
        return self.distance_keys(distance, layer)


class RoPEOfOneSide(RoPE):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, span, layer)[0], k


class RoPEWithAParameter(RoPE):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gain = nn.Parameter(torch.ones(1))


class RoPEWithBias(RoPE):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return steps(distance)


class RoPEAsBias(RoPE):
    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        return q, k

    distance_bias = RoPEWithBias.distance_bias


class ALiBiOfContent(ALiBi):
    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        return logits * 1.01


class ALiBiOfRoots(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -steps(distance)


class ALiBiOfOneSlope(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -distance.double().expand(2, -1)


class ALiBiWithVectors(ALiBi):
    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return torch.zeros(2, len(distance), self.shape.head_width, dtype=torch.float64)


class ALiBiWithoutBias(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> None:  # type: ignore[override]
        return None
