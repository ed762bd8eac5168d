"""Transformer-XL's relative attention with segment memory (Dai et al. 2019, arXiv 1901.02860).

r_n is a sinusoid of width D, all sines before all cosines; each layer has its own matrix W_R. Each
head has its own u and v, shared by all layers, as in the authors' code, unless untie=True. All
start as N(0, 0.02). Each layer also sees, without gradient, its own inputs of the previous
memory_length tokens. In a two-sided model n = i - j has both signs, as in XLNet, and there is no
memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, Span
from posbench.encodings.sinusoid import concatenated, positive


class TransformerXL(Encoding):
    """Four-term relative attention; defined for every distance."""

    paper = "1901.02860"
    formula = """
        A_ij = ((a) q_i . k_j + (b) q_i . r_(i-j) W_R
                + (c) u . k_j + (d) v . r_(i-j) W_R) / sqrt(d)
    """

    directions = "both"

    def __init__(
        self,
        shape: Shape,
        memory_length: int = 0,
        untie: bool = False,
        base: float = 10_000.0,
        std: float = 0.02,
    ) -> None:
        super().__init__(shape)
        if memory_length < 0:
            raise ValueError(f"encoding.memory_length={memory_length} must not be negative")
        if not std >= 0:
            raise ValueError(f"encoding.std={std} must not be negative")
        if shape.width % 2:
            raise ValueError(f"Transformer-XL's sinusoid needs an even model.width: {shape.width}")
        self.memory_length = memory_length
        self.base = positive(base)
        owners = shape.layers if untie else 1
        self.u = nn.Parameter(torch.empty(owners, shape.heads, shape.head_width))
        self.v = nn.Parameter(torch.empty(owners, shape.heads, shape.head_width))
        self.projection = nn.Parameter(torch.empty(shape.layers, shape.width, shape.width))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=std)

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        u = self.u[layer % len(self.u)]
        return q + u[:, None].to(q.dtype), k

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        sinusoid = concatenated(distance, self.shape.width, self.base).to(self.projection.dtype)
        projected = sinusoid @ self.projection[layer]
        return projected.unflatten(-1, (self.shape.heads, -1)).transpose(0, 1)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        v = self.v[layer % len(self.v)]
        return self.scale * torch.einsum("hd,hmd->hm", v, self.distance_keys(distance, layer))
