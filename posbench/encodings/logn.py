"""Logits scaled with the logarithm of the context's length, beyond a length L only.

So attention stays as sharp over more keys than in training (Su 2021; also in the global layers of
SWAN-GPT, Puvvada et al. 2025, arXiv 2504.08719, whose exact factor we have not read). Windows of
at most L tokens are not changed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape, Span


class LogN(Encoding):
    """No position, and sharper attention in windows longer than `length`."""

    paper = "2504.08719"
    formula = (
        "logit_ij = max(1, ln(n_i) / ln(L)) q_i . k_j / sqrt(d),  n_i the keys that the query sees"
    )

    directions = "both, unpublished"

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__(shape)
        if length < 2:
            raise ValueError(f"encoding.length={length} must be at least 2")
        self.length = length

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, span, layer)
        count = span.seen(self.window).to(torch.promote_types(q.dtype, torch.float32))
        factor = (count.log() / math.log(self.length)).clamp(min=1)[:, None, :, None]
        return (q * factor).to(q.dtype), k
