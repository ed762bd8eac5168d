"""Sandwich (Chi et al. 2023, arXiv 2212.10356).

With k = 1 .. D'/2 and head h = 1 .. H: the inner product of two sinusoidal embeddings as a bias, 0
at distance 0, falling fastest for small h. No parameters. D' is `size`, 128 in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape


class Sandwich(Encoding):
    """A fixed bias: the inner product of two sinusoidal embeddings at a distance."""

    paper = "2212.10356"
    formula = (
        "logit_ij = q_i . k_j / sqrt(d) + H / (8 h) (sum_k cos((i - j) / 10000^(2k/D')) - D'/2)"
    )

    directions = "both, unpublished"

    def __init__(self, shape: Shape, size: int = 128) -> None:
        super().__init__(shape)
        if size < 2 or size % 2:
            raise ValueError(f"encoding.size={size} must be an even number of at least 2")
        self.size = size

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        k = torch.arange(1, self.size // 2 + 1, device=distance.device).double()
        phase = distance[:, None] / 10_000 ** (2 * k / self.size)
        common = phase.cos().sum(-1) - self.size / 2
        h = torch.arange(1, self.shape.heads + 1, device=distance.device).double()
        return common * (self.shape.heads / (8 * h))[:, None]
