"""The definition: every [T, S] matrix written out, readable, for any encoding.

Shapes: B batch, H heads, T queries, S keys, d head width. Logits are at least float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.attention.decay import decays, passed_between
from posbench.attention.precision import precise, without_autocast
from posbench.encodings import Encoding, Span


@without_autocast
def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    layer: int,
    span: Span,
    dropout: float = 0.0,
    x: Tensor | None = None,
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], un-rotated -> [B, H, T, d]."""
    encoding, layer = encoding.at(layer)
    relative = span.queries[:, None] - span.keys  # [T, S]
    distance = span.distances
    pair = (relative - distance[0]).clamp(min=0)  # of a causal span's future: masked below

    rotated_q, rotated_k = encoding.rotate(q, k, span, layer)
    exact = precise(rotated_q.dtype)
    logits = rotated_q.to(exact) @ rotated_k.to(exact).mT
    if (r := encoding.distance_keys(distance, layer)) is not None:
        logits = logits + torch.einsum("bhtd,htsd->bhts", q.to(exact), r.to(exact)[:, pair])
    if (r := encoding.distance_queries(distance, layer)) is not None:
        logits = logits + torch.einsum("bhsd,htsd->bhts", k.to(exact), r.to(exact)[:, pair])
    logits = encoding.scale * logits
    if (bias := encoding.distance_bias(distance, layer)) is not None:
        logits = logits + bias.to(exact)[:, pair]
    if (bias := encoding.position_bias(span, layer)) is not None:
        logits = logits + bias.to(exact)
    if (passed := decays(encoding, x, layer)) is not None:
        logits = logits + passed_between(passed, span)
    logits = encoding.scores(logits, q, k, span, layer)

    if not span.two_sided:
        logits = logits.masked_fill(relative < 0, -torch.inf)
    if encoding.window is not None:
        behind = span.own[:, None] - torch.arange(len(span.keys), device=q.device)
        logits = logits.masked_fill(behind.abs() >= encoding.window, -torch.inf)
    if span.hidden is not None:
        logits = logits.masked_fill(span.hidden[:, None, None], -torch.inf)
    weights = F.dropout(logits.softmax(dim=-1), dropout).to(v.dtype)
    out = weights @ v
    if (r := encoding.distance_values(distance, layer)) is not None:
        out = out + torch.einsum("bhts,htsd->bhtd", weights, r.to(v.dtype)[:, pair])
    return out
