"""The enhanced mask decoder (He et al. 2021, DeBERTa, arXiv 2006.03654, section 3.2 and A.8).

    z_0 = A,  z_(p+1) = LastLayer(query = z_p, keys and values = C),  p = 0, 1

C is the input of the model's last layer, A an absolute position embedding, and the last pass goes
to the tied head. All passes share the last layer's weights, and its relative positions are as
everywhere; its plain output is not needed. So absolute positions enter the predictions alone.

Microsoft's code begins with z_0 = A + C (and so does appendix A.9): query="both". There the states
have the text from the start; in the paper's form the first pass asks by position alone, and a
token reads its own text from C. With query="both", passes=1 and A = 0 it is the plain model.

A starts as N(0, 0.02). A table has max_length rows and a rule for what is `beyond` (learned.py).
positions="none" has A = 0: the passes alone, against which the part of the positions is measured.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posbench.encodings import Encoding, Shape
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.objectives import DecoderSettings

STD = 0.02  # of A at the start


class EnhancedDecoder(nn.Module):
    """Absolute positions and the passes over a model's last layer."""

    def __init__(self, shape: Shape, settings: DecoderSettings) -> None:
        super().__init__()
        self.passes, self.query = settings.passes, settings.query
        self.absolute = _absolute(shape, settings)
        self.scale = STD if settings.positions == "sinusoidal" else 1.0

    @property
    def max_length(self) -> int | None:
        """The longest window; None: any."""
        return self.absolute.max_length

    def forward(
        self, context: Tensor, positions: Tensor, last: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """context [B, T, D], positions [T] -> states [B, T, D]. last(z, context) is the layer."""
        placed = self.absolute.embed(torch.zeros_like(context), positions).to(context.dtype)
        states = self.scale * placed + (context if self.query == "both" else 0)
        for _ in range(self.passes):
            states = last(states, context)
        return states


def _absolute(shape: Shape, settings: DecoderSettings) -> Encoding:
    if settings.positions == "learned":
        return Learned(shape, settings.max_length, STD, settings.beyond)
    return Sinusoidal(shape) if settings.positions == "sinusoidal" else NoPE(shape)
