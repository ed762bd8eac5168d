"""The sinusoid of Vaswani et al. 2017 (arXiv 1706.03762), section 3.5, shared by encodings."""

from __future__ import annotations

import torch
from torch import Tensor


def positive(base: float) -> float:
    """base itself. Raises ValueError where it is not positive."""
    if not base > 0:
        raise ValueError(f"encoding.base={base} must be positive")
    return base


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2k/width), k = 0 .. ceil(width/2)-1: radians per position; float64."""
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float64) / width
    return base**-exponent


def angles(positions: Tensor, width: int, base: float) -> Tensor:
    """positions [M] -> p * base^(-2k/width), k = 0 .. ceil(width/2)-1; [M, ceil(width/2)].

    Computed in float64: at p = 100,000 a float32 angle is off by more than 0.001 radian.
    """
    return positions.double()[:, None] * frequencies(width, base, positions.device)


def interleaved(positions: Tensor, width: int, base: float) -> Tensor:
    """sin at even, cos at odd dimensions, as in the paper; [M] -> float64 [M, width]."""
    phase = angles(positions, width, base)
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(1)[:, :width]


def concatenated(positions: Tensor, width: int, base: float) -> Tensor:
    """All sines, then all cosines, as in Transformer-XL; [M] -> float64 [M, width]."""
    if width % 2:
        raise ValueError(f"a concatenated sinusoid needs an even width, not {width}")
    phase = angles(positions, width, base)
    return torch.cat((phase.sin(), phase.cos()), dim=-1)
