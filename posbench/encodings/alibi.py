"""Attention with linear biases (Press et al. 2022, arXiv 2108.12409, section 3).

The slopes m_h, for a number of heads H that is a power of two: m_h = 2^(-8h/H), h = 1..H. For any
other H the authors' code takes the slopes of the next lower power of two, then every second slope
of the next higher one. That is slopes="paper"; "geometric" is 2^(-8h/H) for any H, "learned"
trains ln m_h, starting from the paper's slopes.

In a two-sided model, by `sides` (the first author's issue 5 of attention_with_linear_biases):
"symmetric" is -m_h |i - j|, as published encoders have it; "halves" lets the first half of the
heads see the past alone and the other half the future alone, each with the slopes of H/2 heads;
"two_slopes" learns a factor on |i - j| for each head and side, from N(-2, 1), its sign free;
"offset" is symmetric but for -m_h (|i - j| - 1/2) in the past (Ruoss et al. 2023's code). All but
"symmetric" tell past from future.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape

SIDES = ("symmetric", "halves", "two_slopes", "offset")


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
    directions = "both"

    def __init__(self, shape: Shape, slopes: str = "paper", sides: str = "symmetric") -> None:
        super().__init__(shape)
        rules = {"paper": published, "geometric": geometric, "learned": published}
        if slopes not in rules:
            raise ValueError(f"encoding.slopes={slopes}: choose paper, geometric or learned")
        if sides not in SIDES:
            raise ValueError(f"encoding.sides={sides}: choose one of {', '.join(SIDES)}")
        self.sides = sides if shape.two_sided else "past"
        if self.sides == "halves" and shape.heads % 2:
            raise ValueError(f"encoding.sides=halves: model.heads={shape.heads} must be even")
        halves = self.sides == "halves"
        self.slopes = rules[slopes](shape.heads // 2) * 2 if halves else rules[slopes](shape.heads)
        logs = torch.tensor(self.slopes, dtype=torch.float64).log().float()
        learned = slopes == "learned" and self.sides != "two_slopes"
        self.log_slopes = nn.Parameter(logs) if learned else None
        two = self.sides == "two_slopes"
        self.factors = nn.Parameter(torch.randn(2, shape.heads) - 2) if two else None

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        m = torch.tensor(self.slopes, dtype=torch.float64, device=distance.device)
        if self.log_slopes is not None:
            m = self.log_slopes.exp()
        if self.factors is not None:
            past, future = self.factors[:, :, None]
            return torch.where(distance < 0, future, past) * distance.abs()
        bias = -m[:, None] * distance.abs()
        if self.sides == "offset":
            return bias + m[:, None] / 2 * (distance > 0)
        if self.sides == "halves":
            sign = torch.ones(len(m), 1, device=distance.device)
            sign[len(m) // 2 :] = -1
            return bias.masked_fill(sign * distance < 0, -torch.inf)
        return bias
