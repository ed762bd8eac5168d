"""The cell `decay`: what the tokens between a key and a query add to the logit of the two.

Shapes: B batch, H heads, T queries, S keys, D width.
"""

from __future__ import annotations

from torch import Tensor

from posbench.attention.precision import precise
from posbench.encodings import Encoding, Span


def decays(encoding: Encoding, x: Tensor | None, layer: int) -> Tensor | None:
    """The encoding's decay of each token [B, H, S], if it has one, in full precision.

    Raises ValueError where it needs the layer's input x [B, S, D] and there is none.
    """
    if not encoding.fills("decay"):
        return None
    if x is None:
        raise ValueError(f"{type(encoding).__name__} fills the cell `decay`: x must be given")
    return encoding.decay(x.to(precise(x.dtype)), layer)


def passed_between(decay: Tensor, span: Span) -> Tensor:
    """decay [B, H, S] -> [B, H, T, S]: its sum over the tokens after key j, up to query i.

    Sums are float64: the difference of two large ones is as exact at the end of a long window as
    at its start. Future pairs hold nothing of use.
    """
    upto = decay.double().cumsum(-1)
    memory = len(span.keys) - len(span.queries)
    between = upto[..., memory:, None] - upto[..., None, :]
    return between.to(decay.dtype)
