"""Claims 6 and 8 to 11: scalar biases, and RoPE, which has none.

Shapes: H heads, M distances.
"""

from __future__ import annotations

import copy
from fractions import Fraction

import torch
from torch import Tensor, nn

from posbench.claims import probe
from posbench.claims.verdict import Finding
from posbench.encodings import Encoding
from posbench.encodings.alibi import ALiBi
from posbench.encodings.nope import NoPE
from posbench.encodings.t5 import T5Bias

SEEN = 1e-3  # of the largest: what contents change where they change anything


def t5_table(encoding: Encoding) -> Finding:
    assert isinstance(encoding, T5Bias)
    heads, count = encoding.shape.heads, parameters(encoding)
    distance = torch.arange(2 * encoding.max_distance)
    layers = [encoding.distance_bias(distance, n) for n in range(encoding.shape.layers)]
    shared = all(table.equal(layers[0]) for table in layers)
    figure = (
        f"{encoding.buckets} × {heads} = {encoding.buckets * heads:,}; {count:,} parameters; "
        f"{'the same' if shared else 'another'} bias in each of {len(layers)} layers"
    )
    return Finding(shared and count == encoding.buckets * heads, figure)


def t5_buckets(encoding: Encoding) -> Finding:
    """Buckets read off the bias, each holding its own number, against the paper's."""
    assert isinstance(encoding, T5Bias)
    numbered = copy.deepcopy(encoding)
    numbered.bias.copy_(torch.arange(encoding.buckets).expand_as(encoding.bias))
    far = encoding.max_distance
    distances = [*range(2 * far), 10 * far, 1000 * far]
    read = numbered.distance_bias(torch.tensor(distances), 0)[0].long().tolist()
    wanted = [bucket(n, encoding.buckets, far) for n in distances]
    wrong = [n for n, ours, paper in zip(distances, read, wanted, strict=True) if ours != paper]
    last = read.index(max(read))
    figure = f"one distance each below {encoding.buckets // 2}; all from {last} on share the last"
    return Finding(not wrong, f"distance {wrong[0]} is misplaced" if wrong else figure)


def bucket(n: int, buckets: int, farthest: int) -> int:
    """min(B - 1, m + floor(m log(n/m) / log(farthest/m))), m = B/2, exactly; n itself below m."""
    m = buckets // 2
    if n < m:
        return n
    steps = 0
    while m + steps < buckets - 1 and (
        Fraction(farthest, m) ** (steps + 1) <= Fraction(min(n, farthest), m) ** m
    ):
        steps += 1
    return m + steps


def alibi_linear(encoding: Encoding) -> Finding:
    """The score less q . k is -m_h n, whatever the contents."""
    assert isinstance(encoding, ALiBi)
    penalty = effect(encoding, 0)[0]  # [H, T, T]
    slopes = -penalty[:, 1, 0]
    distance = probe.relative(torch.arange(probe.LENGTH, dtype=torch.float64)[None])
    error = probe.apart(penalty, -(slopes[:, None, None] * distance).tril())
    own = bool((slopes.sort().values.diff() > probe.EXACT).all())
    learned = parameters(encoding) > 0  # and drawn here: their values say nothing
    values = "learned" if learned else f"{slopes.max():.4g} .. {slopes.min():.4g}"
    figure = f"{len(slopes)} slopes, {values}; linear {probe.within(error)}"
    return Finding(error < probe.EXACT and bool((slopes > 0).all()) and own, figure)


def no_parameters(encoding: Encoding) -> Finding:
    count = parameters(encoding)
    return Finding(count == 0, f"{count:,} parameters")


def no_product(encoding: Encoding) -> Finding:
    ours, plain = probe.products(encoding), probe.products(NoPE(encoding.shape))
    return Finding(ours == plain, f"{ours} matrix products, {plain} without an encoding")


def rope_relative(encoding: Encoding) -> Finding:
    """One query and one key at every position: the score is a function of the distance."""
    q, k = (x[:, :, :1].expand_as(x) for x in probe.contents(encoding))
    here, there = probe.logits(encoding, q, k), probe.logits(encoding, q, k, start=probe.FAR)
    along = here[:, :, 1:, 1:] - here[:, :, :-1, :-1]  # one distance, the next query
    error = max(probe.apart(here, there), float(along.abs().max()))
    turned = probe.apart(probe.content(encoding, q, k), here)
    figure = f"equal at one distance {probe.within(error)}; turning changes scores by {turned:.0%}"
    return Finding(error < probe.EXACT and turned > SEEN, figure)


def unmasked(encoding: Encoding) -> Finding:
    """Fused attention must serve it, with no mask."""
    masks = probe.fused_masks(encoding)
    holds = masks is not None and bool(masks) and all(mask is None for mask in masks)
    return Finding(holds, _masks(masks))


def masked(encoding: Encoding) -> Finding:
    """Fused attention must not serve it as it serves plain attention."""
    holds, figure = unmasked(encoding)
    return Finding(not holds, figure)


def _masks(masks: list[Tensor | None] | None) -> str:
    if masks is None:
        return "no fused kernel serves it"
    if not masks:
        return "its softmax is written out, without the fused kernel"
    return "the fused kernel is called with " + ("no mask" if masks[0] is None else "a mask")


def without_content(encoding: Encoding) -> Finding:
    change = _change(encoding)
    return Finding(change < probe.EXACT, _changed(change))


def with_content(encoding: Encoding) -> Finding:
    change = _change(encoding)
    return Finding(change > SEEN, _changed(change))


def effect(encoding: Encoding, seed: int) -> Tensor:
    """What the encoding adds to scale q . k: [1, H, T, T]."""
    q, k = probe.contents(encoding, seed)
    return probe.logits(encoding, q, k) - probe.content(encoding, q, k)


def _change(encoding: Encoding) -> float:
    return probe.apart(effect(encoding, 0), effect(encoding, 1))


def _changed(change: float) -> str:
    return f"other contents change its effect by {probe.shown(change)}"


def parameters(encoding: nn.Module) -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())
