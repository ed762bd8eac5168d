"""FIRE: functional interpolation of relative positions (Li et al. 2024, arXiv 2310.04418).

Distances are divided by the query's own position i, not by the window's length, so future tokens
have no influence. f is an MLP with one hidden ReLU layer and one output for each head. L is fixed;
c and the multiplier m are learned. Each layer has its own f, c and m; the MLP's weights start as
PyTorch's linear layers do, U(+-1/sqrt(fan in)).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, Span

EPSILON = 1e-6  # in the denominator


class FIRE(Encoding):
    """A learned function of the distance relative to the query's position."""

    paper = "2310.04418"
    formula = """
        logit_ij = q_i . k_j / sqrt(d) + f_h(psi(i - j) / psi(max(|L m|, i))),
        psi(x) = ln(|c x| + 1)
    """
    translation_equivariant = False

    def __init__(
        self, shape: Shape, hidden: int = 32, c: float = 0.1, threshold: float = 512.0
    ) -> None:
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"encoding.hidden={hidden} must be at least 1")
        if not threshold > 0:
            raise ValueError(f"encoding.threshold={threshold} must be positive")
        self.threshold = threshold
        self.c = nn.Parameter(torch.full((shape.layers,), c))
        self.threshold_scale = nn.Parameter(torch.ones(shape.layers))
        self.w1 = nn.Parameter(torch.empty(shape.layers, hidden).uniform_(-1, 1))
        self.b1 = nn.Parameter(torch.empty(shape.layers, hidden).uniform_(-1, 1))
        bound = hidden**-0.5
        self.w2 = nn.Parameter(
            torch.empty(shape.layers, hidden, shape.heads).uniform_(-bound, bound)
        )
        self.b2 = nn.Parameter(torch.empty(shape.layers, shape.heads).uniform_(-bound, bound))

    def position_bias(self, span: Span, layer: int) -> Tensor:
        i = span.queries.to(self.c.dtype)[:, None]
        distance = (i - span.keys).clamp(min=0)  # [T, S]
        threshold = (self.threshold * self.threshold_scale[layer]).abs()
        ratio = self._psi(distance, layer) / (self._psi(i.maximum(threshold), layer) + EPSILON)
        w1, b1, w2, b2 = (x[layer] for x in (self.w1, self.b1, self.w2, self.b2))
        hidden = torch.addcmul(b1[:, None], w1[:, None], ratio.reshape(1, -1)).relu_()
        return torch.addmm(b2[:, None], w2.T, hidden).unflatten(-1, ratio.shape)

    def _psi(self, x: Tensor, layer: int) -> Tensor:
        return torch.log1p((self.c[layer] * x).abs())
