"""Attention with linear biases (Press et al. 2022, arXiv 2108.12409, section 3).

The slopes m_h, for a number of heads H that is a power of two: m_h = 2^(-8h/H), h = 1..H. For any
other H the authors' code takes the slopes of the next lower power of two, then every second slope
of the next higher one. That is slopes="paper"; "geometric" is 2^(-8h/H) for any H, "learned"
trains ln m_h, starting from the paper's slopes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


def published(heads: int) -> list[float]:
    """The authors' slopes for any number of heads, 1/2 .. 1/256 at eight."""
    power = 2 ** (heads.bit_length() - 1)
    powers = geometric(power)
    return powers + published(2 * power)[0::2][: heads - power] if heads > power else powers


def geometric(heads: int) -> list[float]:
    """2^(-8h/H), h = 1 .. H."""
    return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]


class ALiBi(Encoding):
    """A linear penalty on distance, one slope a head; no parameters unless they are learned."""

    paper = "2108.12409"
    formula = "logit_ij = q_i . k_j / sqrt(d) - m_h (i - j)"

    def __init__(self, shape: Shape, slopes: str = "paper") -> None:
        super().__init__(shape)
        rules = {"paper": published, "geometric": geometric, "learned": published}
        if slopes not in rules:
            raise ValueError(f"encoding.slopes={slopes}: choose paper, geometric or learned")
        self.slopes = rules[slopes](shape.heads)
        logs = torch.tensor(self.slopes, dtype=torch.float64).log().float()
        self.log_slopes = nn.Parameter(logs) if slopes == "learned" else None

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        m = torch.tensor(self.slopes, dtype=torch.float64, device=distance.device)
        if self.log_slopes is not None:
            m = self.log_slopes.exp()
        return -m[:, None] * distance
