"""Attention with linear biases (Press et al. 2022, arXiv 2108.12409, section 3).

    logit_ij = q_i . k_j / sqrt(d) - m_h (i - j)

For a power of two of heads m_h = 2^(-8h/H), h = 1..H; otherwise the authors' code takes the
slopes of the power of two below and fills up with every second slope of the one above.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape


def slopes(heads: int) -> list[float]:
    """The authors' slopes for any number of heads, 1/2 .. 1/256 at eight."""
    power = 2 ** (heads.bit_length() - 1)
    powers = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return powers + slopes(2 * power)[0::2][: heads - power] if heads > power else powers


class ALiBi(Encoding):
    """A fixed linear penalty on distance, one slope a head; no parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slopes = slopes(shape.heads)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        m = torch.tensor(self.slopes, dtype=torch.float64, device=distance.device)
        return -m[:, None] * distance
