"""xPos (Sun et al. 2023, arXiv 2212.10554, section 3): RoPE whose pairs fade with distance.

Queries are multiplied by zeta^((i - m)/scale_base), keys by zeta^((m - j)/scale_base), with m the
middle of the window; m cancels in the product. Far from m the factors leave float32's range, so
long windows are rotated in float64. The paper's blockwise causal attention at inference is not
part of the encoding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.encodings.base import Shape, Span
from posbench.encodings.rope import RoPE

LARGEST = 30.0  # the exponent up to which factors e^+-exponent are left in float32


class XPos(RoPE):
    """Rotated queries and keys, scaled so that high frequencies decay."""

    paper = "2212.10554"
    formula = """
        q'_i . k'_j of pair c is RoPE's times zeta_c^((i - j) / scale_base),
        zeta_c = (2c/d + gamma) / (1 + gamma), c = 0 .. d/2 - 1
    """

    directions = "causal"  # zeta^(i - j) grows without bound for j > i

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "interleaved",
        gamma: float = 0.4,
        scale_base: float = 512.0,
    ) -> None:
        super().__init__(shape, base, layout)
        if not gamma > 0:
            raise ValueError(f"encoding.gamma={gamma} must be positive")
        if not scale_base > 0:
            raise ValueError(f"encoding.scale_base={scale_base} must be positive")
        self.gamma, self.scale_base = gamma, scale_base

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, self.shape.head_width, 2, device=q.device, dtype=torch.float64)
        zeta = (pairs / self.shape.head_width + self.gamma) / (1 + self.gamma)  # [d/2]
        rate = zeta.log() / self.scale_base
        middle = (span.keys[0] + span.keys[-1]) // 2
        fastest = math.log1p(1 / self.gamma) / self.scale_base  # the first pair's rate
        wide = fastest * (len(span.distances) / 2 + 1) > LARGEST
        theta = self.frequencies(span)

        def faded(x: Tensor, positions: Tensor, exponent: Tensor) -> Tensor:
            turned = self.turn(x.double() if wide else x, positions, theta)
            return self._scaled(turned, exponent, rate)

        return faded(q, span.queries, span.queries - middle), faded(
            k, span.keys, middle - span.keys
        )

    def _scaled(self, x: Tensor, exponent: Tensor, rate: Tensor) -> Tensor:
        factor = (exponent[:, None] * rate).exp()  # [T, d/2]
        whole = (
            factor.repeat(1, 2) if self.layout == "half" else factor.repeat_interleave(2, dim=1)
        )
        exact = torch.promote_types(x.dtype, torch.float32)
        return (x * whole.to(exact)).to(x.dtype)
