"""DeBERTa's disentangled attention (He et al. 2021, arXiv 2006.03654, equations 2 to 4).

delta(i, j) = clip(i - j + k, 0, 2k - 1). K^r = P W_k and Q^r = P W_q, where P [2k, D] is shared by
all layers and each layer has its own W_k and W_q; all start as N(0, 0.02). The weights are
softmax(A / sqrt(d (1 + terms))), with both terms the paper's sqrt(3d). The paper reads Q^r at
delta(j, i), Microsoft's code and transformers at delta(i, j): p2c_index chooses. The enhanced mask
decoder is model/decoder.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class DeBERTa(Encoding):
    """Content->position and position->content terms, each removable."""

    paper = "2006.03654"
    formula = "A_ij = q_i . k_j + (c2p) q_i . K^r[delta(i, j)] + (p2c) k_j . Q^r[delta(j, i)]"

    directions = "both"

    def __init__(
        self,
        shape: Shape,
        k: int = 512,
        c2p: bool = True,
        p2c: bool = True,
        p2c_index: str = "paper",
    ) -> None:
        super().__init__(shape)
        if k < 1:
            raise ValueError(f"encoding.k={k} must be at least 1")
        if p2c_index not in ("paper", "code"):
            raise ValueError(f"encoding.p2c_index={p2c_index}: choose paper or code")
        self.k = self.clip = k
        self.sign = -1 if p2c_index == "paper" else 1
        self.terms = c2p + p2c
        matrices = (shape.layers, shape.width, shape.width)
        self.table = nn.Parameter(torch.empty(2 * k, shape.width)) if self.terms else None
        self.key_projection = nn.Parameter(torch.empty(matrices)) if c2p else None
        self.query_projection = nn.Parameter(torch.empty(matrices)) if p2c else None
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    @property
    def scale(self) -> float:
        return (self.shape.head_width * (1 + self.terms)) ** -0.5

    def _project(self, projection: Tensor, delta: Tensor) -> Tensor:
        """Rows delta [M] of the table P, projected -> [H, M, d]; every row is projected once."""
        assert self.table is not None
        projected = self.table @ projection
        return projected[delta].unflatten(-1, (self.shape.heads, -1)).transpose(0, 1)

    def _delta(self, difference: Tensor) -> Tensor:
        return (difference + self.k).clamp(0, 2 * self.k - 1)

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor | None:
        if self.key_projection is None:
            return None
        return self._project(self.key_projection[layer], self._delta(distance))

    def distance_queries(self, distance: Tensor, layer: int) -> Tensor | None:
        if self.query_projection is None:
            return None
        return self._project(self.query_projection[layer], self._delta(self.sign * distance))
