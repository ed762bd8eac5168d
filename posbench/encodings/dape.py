"""DAPE: data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722, section 3).

f is an MLP over the heads of one pair (i, j): 2H -> hidden, LeakyReLU, hidden -> H. Each layer has
its own, initialised as PyTorch's linear layers are. The parameters of the bias B are shared by all
layers, as in KERPLE (the authors' code has them per layer). The causal mask is applied after f.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench.encodings.base import Shape, Span
from posbench.encodings.kerple import KerpleLog


class DAPE(KerpleLog):
    """KERPLE's bias, adapted to the contents by a small network over the heads."""

    paper = "2405.14722"
    formula = "logit = A + B + f([A; B]),  A = q_i . k_j / sqrt(d),  B = KERPLE's logarithmic bias"

    directions = "both, unpublished"

    def __init__(self, shape: Shape, hidden: int = 32) -> None:
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"encoding.hidden={hidden} must be at least 1")
        layers, heads = shape.layers, shape.heads
        first, second = (2 * heads) ** -0.5, hidden**-0.5
        self.w1 = nn.Parameter(torch.empty(layers, 2 * heads, hidden).uniform_(-first, first))
        self.b1 = nn.Parameter(torch.empty(layers, hidden).uniform_(-first, first))
        self.w2 = nn.Parameter(torch.empty(layers, hidden, heads).uniform_(-second, second))
        self.b2 = nn.Parameter(torch.empty(layers, heads).uniform_(-second, second))

    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        distance = span.distances
        pair = (span.queries[:, None] - span.keys - distance[0]).clamp(min=0)
        bias = self.distance_bias(distance, layer).to(logits.dtype)[:, pair]  # [H, T, S]
        both = torch.cat((logits - bias, bias.expand_as(logits)), dim=1).flatten(2)  # [B, 2H, T S]
        w1, b1, w2, b2 = (x[layer] for x in (self.w1, self.b1, self.w2, self.b2))
        w1, w2 = (w.T.expand(len(logits), -1, -1) for w in (w1, w2))
        hidden = F.leaky_relu(torch.baddbmm(b1[:, None], w1, both), inplace=True)
        return logits + torch.baddbmm(b2[:, None], w2, hidden).view_as(logits)
