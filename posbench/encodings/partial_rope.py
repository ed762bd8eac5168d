"""Partial rotary embedding (GPT-NeoX-20B, Black et al. 2022, arXiv 2204.06745, section 2.1).

The first r dimensions of a head are rotated, as by a RoPE of head width r; the others carry
content alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.base import Shape, Span
from posbench.encodings.rope import RoPE
from posbench.encodings.sinusoid import frequencies


class PartialRoPE(RoPE):
    """RoPE on some of the dimensions."""

    paper = "2204.06745"
    formula = (
        "the first r = fraction * d dimensions of a head: pair c turned by base^(-2c/r) a position"
    )

    directions = "both, unpublished"

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        fraction: float = 0.25,
    ) -> None:
        super().__init__(shape, base, layout)
        self.rotated = int(fraction * shape.head_width + 1e-9)  # 0.29 of 100 is 29
        if self.rotated % 2 or not 2 <= self.rotated <= shape.head_width:
            raise ValueError(
                f"encoding.fraction={fraction} of the head width {shape.head_width} must be an "
                "even number of dimensions, at least 2"
            )

    def frequencies(self, span: Span) -> Tensor:
        return frequencies(self.rotated, self.base, span.keys.device)

    def turn(self, x: Tensor, positions: Tensor, theta: Tensor) -> Tensor:
        turned = super().turn(x[..., : self.rotated], positions, theta)
        return torch.cat((turned, x[..., self.rotated :]), dim=-1)
