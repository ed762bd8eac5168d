"""Relative position representations (Shaw et al. 2018, arXiv 1803.02155, equations 3 and 4).

w^K and w^V are tables of 2k + 1 rows; each layer has its own two, shared by its heads. A causal
model reads only the k + 1 rows of j <= i, a two-sided one all. Both tables start as N(0, d^-0.5).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class Shaw(Encoding):
    """Clipped relative vectors on keys and, with values=True, on values."""

    paper = "1803.02155"
    formula = """
        e_ij = q_i . (k_j + w^K[clip(j - i, -k, k)]) / sqrt(d)
        z_i  = sum_j a_ij (v_j + w^V[clip(j - i, -k, k)])
    """

    directions = "both"

    def __init__(self, shape: Shape, k: int = 16, values: bool = True) -> None:
        super().__init__(shape)
        if k < 0:
            raise ValueError(f"encoding.k={k} must not be negative")
        self.k = self.clip = k
        size = (shape.layers, 2 * k + 1, shape.head_width)
        self.key_table = nn.Parameter(torch.empty(size))
        nn.init.normal_(self.key_table, std=shape.head_width**-0.5)
        self.value_table = nn.Parameter(torch.empty(size)) if values else None
        if self.value_table is not None:
            nn.init.normal_(self.value_table, std=shape.head_width**-0.5)

    def _rows(self, table: Tensor, distance: Tensor) -> Tensor:
        rows = table[(-distance).clamp(-self.k, self.k) + self.k]
        return rows.expand(self.shape.heads, -1, -1)

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return self._rows(self.key_table[layer], distance)

    def distance_values(self, distance: Tensor, layer: int) -> Tensor | None:
        return None if self.value_table is None else self._rows(self.value_table[layer], distance)
