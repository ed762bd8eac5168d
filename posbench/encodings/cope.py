"""CoPE: contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719, section 4).

Positions p_ij are not integers: e[p_ij] is interpolated between the two nearest columns of the
table e [d, positions]. Each layer has one table, shared by its heads, which starts at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, Span


class CoPE(Encoding):
    """Positions that count what the query attends to."""

    paper = "2405.18719"
    formula = """
        g_it = sigmoid(q_i . k_t / sqrt(d)),  p_ij = sum_(t = j .. i) g_it, at most `positions` - 1
        logit_ij = (q_i . k_j + q_i . e[p_ij]) / sqrt(d)
    """

    def __init__(self, shape: Shape, positions: int = 64) -> None:
        super().__init__(shape)
        if positions < 2:
            raise ValueError(f"encoding.positions={positions} must be at least 2")
        self.positions = positions
        self.table = nn.Parameter(torch.zeros(shape.layers, shape.head_width, positions))

    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        unseen = span.keys > span.queries[:, None]  # [T, S]
        if span.hidden is not None:
            unseen = unseen | span.hidden[:, None, None]
        gates = logits.sigmoid().masked_fill(unseen, 0)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.positions - 1)
        at = self.scale * q.to(logits.dtype) @ self.table[layer].to(logits.dtype)  # [B, H, T, p]
        step = at.diff(dim=-1, append=at[..., -1:])  # to the next whole position
        low = position.long()
        return logits + torch.addcmul(at.gather(-1, low), step.gather(-1, low), position.frac())
