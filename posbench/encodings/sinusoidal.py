"""Sinusoidal absolute positions (Vaswani et al. 2017, arXiv 1706.03762, section 3.5).

    x_p = sqrt(D) E[token] + PE[p],  PE[p, 2k] = sin(p / base^(2k/D)),  PE[p, 2k+1] = cos(same)

The model scales every token embedding by sqrt(D), for all encodings alike (model.py); without
that, an amplitude-1 sinusoid swamps the tokens.
"""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.base import Encoding, Shape
from posbench.encodings.sinusoid import interleaved


class Sinusoidal(Encoding):
    """Fixed sinusoids added to the token embeddings; no parameters, any length."""

    def __init__(self, shape: Shape, base: float = 10_000.0) -> None:
        super().__init__(shape)
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + interleaved(positions, self.shape.width, self.base).to(x.dtype)
