"""Sinusoidal absolute positions (Vaswani et al. 2017, arXiv 1706.03762, section 3.5).

s is sqrt(D) in the paper. Here the model scales token embeddings to unit size, for all encodings
alike (model/transformer.py); without that, a sinusoid of amplitude 1 swamps them.
"""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.base import Encoding, Shape
from posbench.encodings.sinusoid import interleaved, positive


class Sinusoidal(Encoding):
    """Fixed sinusoids added to the token embeddings; no parameters, any length."""

    paper = "1706.03762"
    formula = (
        "x_p = s E[token] + PE[p],  PE[p, 2k] = sin(p / base^(2k/D)),  PE[p, 2k+1] = cos(same)"
    )
    translation_equivariant = False
    directions = "both"

    def __init__(self, shape: Shape, base: float = 10_000.0) -> None:
        super().__init__(shape)
        self.base = positive(base)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + interleaved(positions, self.shape.width, self.base).to(x.dtype)
