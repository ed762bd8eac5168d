"""FoX: the forgetting transformer (Lin et al. 2025, arXiv 2503.02130, section 3).

x is the layer's input after its norm. Each head of each layer has its own w and b, which start as
PyTorch's linear layer does, U(+-1/sqrt(D)).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench.encodings.base import Encoding, Shape


class FoX(Encoding):
    """Each token decides how much of what came before it is forgotten."""

    paper = "2503.02130"
    formula = """
        f_t = sigmoid(w_h . x_t + b_h),
        logit_ij = q_i . k_j / sqrt(d) + sum_(l = j+1 .. i) ln f_l
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        bound = shape.width**-0.5
        size = (shape.layers, shape.heads)
        self.weight = nn.Parameter(torch.empty(*size, shape.width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(size).uniform_(-bound, bound))

    def gate(self, x: Tensor, layer: int) -> Tensor:
        """w_h . x_t + b_h: x [B, S, D] -> [B, H, S]."""
        return F.linear(x, self.weight[layer], self.bias[layer]).mT

    def decay(self, x: Tensor, layer: int) -> Tensor:
        return F.logsigmoid(self.gate(x, layer))
