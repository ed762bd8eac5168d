"""Attention kernels, which all compute what reference.py defines.

blocked.py does so in blocks of queries, fused.py fast, flex.py fast on CUDA. May import encodings
and machine. A new kernel is a function of Attention's signature and an entry of KERNELS;
tests/attention/test_kernels.py compares it with the reference.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from posbench.attention.blocked import blocked_attention
from posbench.attention.flex import flex_attention, refused
from posbench.attention.fused import TABLES, fused_attention
from posbench.attention.reference import reference_attention
from posbench.encodings import Encoding, Span
from posbench.errors import UserError

__all__ = ["KERNELS", "ON_CPU", "Attention", "choose"]


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


ON_CPU: dict[str, Attention] = {
    "reference": reference_attention,
    "blocked": blocked_attention,
    "fused": fused_attention,
}
KERNELS: dict[str, Attention] = {**ON_CPU, "flex": flex_attention}


def choose(
    encoding: Encoding,
    requested: str = "auto",
    device: torch.device | None = None,
    dropout: float = 0.0,
) -> str:
    """The kernel's name: fused wherever the encoding's cells allow it, but on CUDA flex where
    they need more than plain scaled_dot_product_attention.

    device is the model's, None before it has one. Raises ValueError where the requested kernel
    does not exist or cannot serve the encoding, UserError where it needs another device.
    """
    if requested == "auto":
        return _best(encoding, device, dropout)
    if requested not in KERNELS:
        raise ValueError(f"model.attention={requested}: choose auto, {', '.join(KERNELS)}")
    cell = {"fused": _explicit, "flex": refused}.get(requested, _nothing)(encoding)
    if cell is not None:
        raise ValueError(
            f"model.attention={requested}: {type(encoding).__name__} fills the cell `{cell}`, "
            f"which no {requested} kernel can compute; use auto, blocked or reference"
        )
    if requested == "flex":
        _check_flex(device, dropout)
    return requested


def _best(encoding: Encoding, device: torch.device | None, dropout: float) -> str:
    on_cuda = device is not None and device.type == "cuda"
    more = encoding.window is not None or any(map(encoding.fills, (*TABLES, "position_bias")))
    if on_cuda and more and not dropout and refused(encoding) is None:
        return "flex"
    return "fused" if _explicit(encoding) is None else "blocked"


def _check_flex(device: torch.device | None, dropout: float) -> None:
    there = torch.cuda.is_available() if device is None else device.type == "cuda"
    others = f"use auto, {', '.join(ON_CPU)}"
    if not there:
        raise UserError(f"model.attention=flex: needs CUDA, where it is compiled; {others}")
    if dropout:
        raise ValueError(
            f"model.attention=flex: cannot drop weights, and model.dropout={dropout}; {others}"
        )


def _explicit(encoding: Encoding) -> str | None:
    """The cell that the fused kernel cannot compute, if the encoding fills one.

    Tables by distance are strided views, which positions with gaps (`place`) do not have.
    """
    for cell in ("scores", "position_bias"):
        if encoding.fills(cell):
            return cell
    return "place" if encoding.fills("place") and any(map(encoding.fills, TABLES)) else None


def _nothing(encoding: Encoding) -> None:
    """None: reference and blocked can compute every cell."""
