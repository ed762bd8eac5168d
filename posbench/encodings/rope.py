"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864, equation 34).

q'_i . k'_j depends on i - j and the contents only. No parameters. layout="half" pairs dimension c
with c + d/2 (LLaMA, GPT-NeoX), "interleaved" pairs 2c with 2c + 1 (the paper, GPT-J). Both express
the same models, but given weights mean different models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape, Span
from posbench.encodings.sinusoid import frequencies, positive


class RoPE(Encoding):
    """Queries and keys rotated by their own positions."""

    paper = "2104.09864"
    formula = (
        "pair c of q_i is turned by i theta_c, pair c of k_j by j theta_c, theta_c = base^(-2c/d)"
    )

    directions = "both"

    def __init__(self, shape: Shape, base: float = 10_000.0, layout: str = "half") -> None:
        super().__init__(shape)
        if shape.head_width % 2:
            raise ValueError(
                f"RoPE needs an even head width: model.width={shape.width} / "
                f"model.heads={shape.heads} is {shape.head_width}"
            )
        if layout not in ("half", "interleaved"):
            raise ValueError(f"encoding.layout={layout}: choose half or interleaved")
        self.base = positive(base)
        self.layout = layout

    def frequencies(self, span: Span) -> Tensor:
        """The angle in radians that each pair turns per position; float64 [d/2]."""
        return frequencies(self.shape.head_width, self.base, span.keys.device)

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        theta = self.frequencies(span)
        return self.turn(q, span.queries, theta), self.turn(k, span.keys, theta)

    def turn(self, x: Tensor, positions: Tensor, theta: Tensor) -> Tensor:
        """x [B, H, T, d] turned by positions [T] times theta [d/2]; products in float32."""
        phase = positions.double()[:, None] * theta
        exact = torch.promote_types(x.dtype, torch.float32)
        cos, sin = phase.cos().to(exact), phase.sin().to(exact)
        if self.layout == "half":
            a, b = x.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        else:
            a, b = x[..., 0::2], x[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        return turned.to(x.dtype)
