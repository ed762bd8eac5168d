"""p-RoPE: RoPE without its lowest frequencies (Barbero et al. 2025, arXiv 2410.06205).

Frequencies are those of RoPE over the whole head width d; the pairs that are not turned carry
content alone.
"""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.base import Shape, Span
from posbench.encodings.rope import RoPE


class PRoPE(RoPE):
    """RoPE on the highest-frequency fraction of the pairs, frequencies unchanged."""

    paper = "2410.06205"
    formula = (
        "pair c is turned by base^(-2c/d) a position for c < floor(p d/2), and not at all beyond"
    )

    directions = "both, unpublished"

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        fraction: float = 0.75,
    ) -> None:
        super().__init__(shape, base, layout)
        if not 0 <= fraction <= 1:
            raise ValueError(f"encoding.fraction={fraction} must lie in [0, 1]")
        self.kept = int(fraction * shape.head_width / 2 + 1e-9)  # 0.29 of 100 is 29

    def frequencies(self, span: Span) -> Tensor:
        theta = super().frequencies(span)
        theta[self.kept :] = 0
        return theta
