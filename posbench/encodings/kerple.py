"""KERPLE: kernelized relative biases (Chi et al. 2022, arXiv 2205.09921, section 4).

    log    logit_ij = q_i . k_j / sqrt(d) - r1 ln(1 + r2 (i - j))     r1 ~ U(0, 2), r2 ~ U(0, 1)
    power  logit_ij = q_i . k_j / sqrt(d) - r1 (i - j)^r2             r1 ~ U(0, 1), r2 ~ U(0, 2)

r1, r2 > 0 are one pair a head, shared by all layers. As in the authors' code the bias is added
after 1/sqrt(d) (the paper's equation 1 has it before), and the parameters are held within their
bounds, 0.01 from below and, for the power, 2 from above, by moving them back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape

LEAST = 0.01


def held(parameter: Tensor, most: float | None = None) -> Tensor:
    """A parameter moved back within its bounds, in place: its gradient is kept there; [H, 1]."""
    parameter.data.clamp_(LEAST, most)
    return parameter[:, None]


class KerpleLog(Encoding):
    """A logarithmic penalty on distance, learned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r1 = nn.Parameter(2 * torch.rand(shape.heads))
        self.r2 = nn.Parameter(torch.rand(shape.heads))

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -held(self.r1) * torch.log1p(held(self.r2) * distance)


class KerplePower(Encoding):
    """A power of the distance as penalty, learned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r1 = nn.Parameter(torch.rand(shape.heads))
        self.r2 = nn.Parameter(2 * torch.rand(shape.heads))

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        n = distance.clamp(min=1).to(self.r1.dtype)  # 0^r2 has no gradient
        return torch.where(distance > 0, -held(self.r1) * n ** held(self.r2, most=2.0), 0.0)
