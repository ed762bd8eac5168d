"""Scalable softmax (Nakanishi 2025, arXiv 2501.19399) over no positional encoding.

n_i is how many keys query i sees, i + 1 in a causal window: attention does not flatten as the
window grows. Each head of each layer has its own s. All start so that s ln n averages 1 over the
training length (an assumption: we have not read the paper's own initialisation).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, Span


class SSMax(Encoding):
    """Logits that grow with the logarithm of the number of keys."""

    paper = "2501.19399"
    formula = "logit_ij = s_h ln(n_i) q_i . k_j / sqrt(d)"

    directions = "both, unpublished"

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__(shape)
        if length < 2:
            raise ValueError(f"encoding.length={length} must be at least 2")
        # Of ln 1 .. ln length; in a two-sided model every query sees all keys.
        mean = math.log(length) if shape.two_sided else math.lgamma(length + 1) / length
        self.s = nn.Parameter(torch.full((shape.layers, shape.heads), 1 / mean))

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        count = span.seen(self.window).to(torch.promote_types(q.dtype, torch.float32))
        factor = self.s[layer][:, None, None] * count.log()[:, None, :, None]  # [B or 1, H, T, 1]
        return (q * factor).to(q.dtype), k
