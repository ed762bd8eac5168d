"""KERPLE: kernelized relative biases (Chi et al. 2022, arXiv 2205.09921, section 4).

Each head has its own r1, r2 > 0, shared by all layers. As in the authors' code the bias is added
after the factor 1/sqrt(d) (before it in the paper's equation 1). After each optimizer step
parameters below 0.01 are moved back to 0.01, and an exponent r2 above 2 to 2. The kernels are
functions of |i - j|, but encoders with them were not published.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape

LEAST = 0.01  # of r1 and r2


class KerpleLog(Encoding):
    """A logarithmic penalty on distance, learned."""

    paper = "2205.09921"
    formula = """
        logit_ij = q_i . k_j / sqrt(d) - r1 ln(1 + r2 (i - j)),  r1 ~ U(0, 2), r2 ~ U(0, 1)
    """
    directions = "both, unpublished"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r1 = nn.Parameter((2 * torch.rand(shape.heads)).clamp(min=LEAST))
        self.r2 = nn.Parameter(torch.rand(shape.heads).clamp(min=LEAST))

    @torch.no_grad()
    def after_step(self) -> None:
        self.r1.clamp_(min=LEAST)
        self.r2.clamp_(min=LEAST)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -self.r1[:, None] * torch.log1p(self.r2[:, None] * distance.abs())


class KerplePower(Encoding):
    """A power of the distance as penalty, learned."""

    paper = "2205.09921"
    formula = """
        logit_ij = q_i . k_j / sqrt(d) - r1 (i - j)^r2,  r1 ~ U(0, 1), r2 ~ U(0, 2)
    """
    directions = "both, unpublished"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r1 = nn.Parameter(torch.rand(shape.heads).clamp(min=LEAST))
        self.r2 = nn.Parameter((2 * torch.rand(shape.heads)).clamp(min=LEAST))

    @torch.no_grad()
    def after_step(self) -> None:
        self.r1.clamp_(min=LEAST)
        self.r2.clamp_(LEAST, 2)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        n = distance.abs().clamp(min=1).to(self.r1.dtype)  # 0^r2 has no gradient
        bias = -self.r1[:, None] * n ** self.r2[:, None]
        return torch.where(distance != 0, bias, 0.0)
