"""Ways to compute attention, one meaning: reference.py defines it, blocked.py is the same in
blocks of queries, fused.py is fast."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from posbench.attention.blocked import blocked_attention
from posbench.attention.fused import fused_attention
from posbench.attention.reference import reference_attention
from posbench.encodings import Encoding, Span

__all__ = ["KERNELS", "Attention", "choose"]


class Attention(Protocol):
    """q [B, H, T, d], k and v [B, H, S, d], un-rotated -> [B, H, T, d], causal.

    x [B, S, D] is the layer's input, normed; only the cell `decay` needs it.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        encoding: Encoding,
        layer: int,
        span: Span,
        dropout: float = 0.0,
        x: Tensor | None = None,
    ) -> Tensor: ...


KERNELS: dict[str, Attention] = {
    "reference": reference_attention,
    "blocked": blocked_attention,
    "fused": fused_attention,
}


def choose(encoding: Encoding, requested: str = "auto") -> str:
    """The kernel's name: fused wherever the encoding's cells allow it.

    Raises ValueError where the requested one does not exist or cannot serve the encoding.
    """
    cell = _explicit(encoding)
    if requested == "auto":
        return "fused" if cell is None else "blocked"
    if requested not in KERNELS:
        raise ValueError(f"model.attention={requested}: choose auto, {', '.join(KERNELS)}")
    if requested == "fused" and cell is not None:
        raise ValueError(
            f"model.attention=fused: {type(encoding).__name__} fills the cell `{cell}`, "
            "which no fused kernel can compute; use auto, blocked or reference"
        )
    return requested


def _explicit(encoding: Encoding) -> str | None:
    """The cell that keeps an encoding from the fused kernel, if one does.

    Positions with gaps have no views; what enters at the input or by rotation needs none.
    """
    if encoding.fills("scores"):
        return "scores"
    tables = ("distance_bias", "position_bias", "distance_keys", "distance_queries")
    pairs = (*tables, "distance_values", "decay")
    return "place" if encoding.fills("place") and any(map(encoding.fills, pairs)) else None
