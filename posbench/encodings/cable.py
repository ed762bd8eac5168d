"""CABLE: context-aware biases for length extrapolation (Veisi et al. 2025, arXiv 2503.08067).

Like FoX (fox.py) with -softplus(z) in place of ln sigmoid(z). Both can express the same functions,
as -softplus(z) = ln sigmoid(-z). The authors' code leaves out 1/sqrt(d); here the model keeps it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from posbench.encodings.fox import FoX


class CABLE(FoX):
    """Each token's weight adds to the distance across it."""

    paper = "2503.08067"
    formula = "logit_ij = q_i . k_j / sqrt(d) - sum_(l = j+1 .. i) softplus(w_h . x_l + b_h)"

    def decay(self, x: Tensor, layer: int) -> Tensor:
        return -F.softplus(self.gate(x, layer))
