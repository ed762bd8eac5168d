"""Learned absolute positions (Gehring et al. 2017, arXiv 1705.03122; BERT, GPT-2).

std defaults to D^-0.5, fairseq's choice; the factor s brings token embeddings to unit size. For
positions past the table, beyond="refuse" refuses the window, "clamp" takes the table's last row,
and "interpolate" spreads the table's rows over the whole window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class Learned(Encoding):
    """One trained vector a position, none past max_length."""

    paper = "1705.03122"
    formula = "x_p = s E[token] + P[p],  P in R^(max_length x D), initialised N(0, std)"
    translation_equivariant = False
    directions = "both"

    def __init__(
        self,
        shape: Shape,
        max_length: int,
        std: float | None = None,
        beyond: str = "refuse",
    ) -> None:
        super().__init__(shape)
        if max_length < 1:
            raise ValueError(f"encoding.max_length={max_length} must be at least 1")
        if std is not None and not std >= 0:
            raise ValueError(f"encoding.std={std} must not be negative")
        if beyond not in ("refuse", "clamp", "interpolate"):
            raise ValueError(f"encoding.beyond={beyond}: choose refuse, clamp or interpolate")
        self.beyond = beyond
        self.max_length = max_length if beyond == "refuse" else None
        self.table = nn.Parameter(torch.empty(max_length, shape.width))
        nn.init.normal_(self.table, std=shape.width**-0.5 if std is None else std)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        last = len(self.table) - 1
        if self.beyond == "clamp":
            positions = positions.clamp(max=last)
        elif self.beyond == "interpolate" and positions[-1] > last:
            place = positions.double() * last / positions[-1]
            low = place.long()
            above = (place - low).to(self.table.dtype)[:, None]
            return x + torch.lerp(self.table[low], self.table[(low + 1).clamp(max=last)], above)
        return x + self.table[positions]
