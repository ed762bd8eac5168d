"""What naive.py is, for encodings that need more than one pair: the whole row a query sees.

Written without posbench's code; it reads the raw parameters off a module and nothing else.

Shapes: B batch, H heads, T queries, S keys, D width, d head width, n keys that a query sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.helpers import naive


class Look(NamedTuple):
    """A query and all keys it sees, in order and its own last; the logit of key number j."""

    q: Tensor  # [H, d]
    k: Tensor  # [H, n, d]
    x: Tensor  # [n, D]: what the layer was given for these tokens
    positions: Sequence[int]  # [n]
    length: int  # S, unseen keys included
    j: int
    head: int
    layer: int

    @property
    def pair(self) -> naive.Pair:
        q, k = self.q[self.head], self.k[self.head, self.j]
        i, j = self.positions[-1], self.positions[self.j]
        return naive.Pair(q, k, i, j, self.head, self.layer)


Logit = Callable[[Any, Look], Tensor]
Value = Callable[[Any, naive.Pair], Tensor]
See = Callable[[int, int], list[int]]
"""Row b of the batch and query token i -> the key tokens it sees."""


def attention(
    qkvx: Sequence[Tensor],
    encoding: Any,
    layer: int,
    logit: Logit,
    value: Value | None = None,
    positions: Sequence[int] | None = None,
    see: See = lambda b, i: list(range(i + 1)),
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], x [B, S, D], positions [S] -> [B, H, T, d]."""
    q, k, v, x = qkvx
    batch, heads, queries, _ = q.shape
    length = k.shape[2]
    where = range(length) if positions is None else positions

    def row(b: int, t: int) -> Tensor:
        seen = see(b, length - queries + t)
        row = (q[b, :, t], k[b, :, seen], x[b, seen], [where[s] for s in seen], length)
        looks = [Look(*row, j=j, head=0, layer=layer) for j in range(len(seen))]
        return torch.stack([head(b, h, seen, looks) for h in range(heads)])

    def head(b: int, h: int, seen: list[int], looks: list[Look]) -> Tensor:
        looks = [look._replace(head=h) for look in looks]
        weights = naive.softmax([logit(encoding, look) for look in looks])
        values = v[b, h, seen]
        if value is not None:
            values = values + torch.stack([value(encoding, look.pair) for look in looks])
        return weights @ values

    rows = [torch.stack([row(b, t) for t in range(queries)], dim=1) for b in range(batch)]
    return torch.stack(rows)


def by_pair(logit: naive.Logit) -> Logit:
    return lambda encoding, look: logit(encoding, look.pair)


def see_last(window: int) -> See:
    return lambda b, i: list(range(max(0, i + 1 - window), i + 1))


def see_unhidden(hidden: Tensor) -> See:
    return lambda b, i: [j for j in range(i + 1) if not hidden[b, j]]


# ALiBi with other slopes; slopes = exp(log_slopes) is the contract's choice


def alibi_geometric(encoding: Any, pair: naive.Pair) -> Tensor:
    """m_h = 2^(-8h/H), h = 1..H, whatever H is."""
    slope = 2 ** (-8 * (pair.head + 1) / encoding.shape.heads)
    return naive.nope(encoding, pair) - slope * (pair.i - pair.j)


def alibi_learned(encoding: Any, pair: naive.Pair) -> Tensor:
    slope = torch.exp(encoding.log_slopes[pair.head])
    return naive.nope(encoding, pair) - slope * (pair.i - pair.j)


# KERPLE: Chi et al. 2022; after 1/sqrt(d), as in the authors' code


def kerple_log(encoding: Any, pair: naive.Pair) -> Tensor:
    return naive.nope(encoding, pair) + kerple_log_bias(encoding, pair)


def kerple_log_bias(encoding: Any, pair: naive.Pair) -> Tensor:
    r1, r2 = encoding.r1[pair.head], encoding.r2[pair.head]
    return -r1 * torch.log(1 + r2 * (pair.i - pair.j))


def kerple_power(encoding: Any, pair: naive.Pair) -> Tensor:
    n = pair.i - pair.j
    if n == 0:  # 0^r2 = 0 for every r2 > 0
        return naive.nope(encoding, pair)
    r1, r2 = encoding.r1[pair.head], encoding.r2[pair.head]
    return naive.nope(encoding, pair) - r1 * torch.exp(r2 * math.log(n))


# FIRE: Li et al. 2023; i is the query's position


def fire(threshold: float) -> naive.Logit:
    def logit(encoding: Any, pair: naive.Pair) -> Tensor:
        layer = pair.layer

        def psi(distance: Tensor | float) -> Tensor:
            return torch.log(torch.abs(encoding.c[layer] * distance) + 1)

        floor = torch.abs(threshold * encoding.threshold_scale[layer])
        reach = floor if floor > pair.i else float(pair.i)
        ratio = psi(pair.i - pair.j) / (psi(reach) + 1e-6)
        hidden = ratio * encoding.w1[layer] + encoding.b1[layer]
        hidden = torch.where(hidden > 0, hidden, 0 * hidden)
        bias = hidden @ encoding.w2[layer][:, pair.head] + encoding.b2[layer, pair.head]
        return naive.nope(encoding, pair) + bias

    return logit


# Sandwich: Chi et al. 2023


def sandwich(size: int) -> naive.Logit:
    def logit(encoding: Any, pair: naive.Pair) -> Tensor:
        bias = sandwich_bias(pair.i - pair.j, pair.head + 1, encoding.shape.heads, size)
        return naive.nope(encoding, pair) + bias

    return logit


def sandwich_bias(n: int, h: int, heads: int, size: int) -> float:
    """h counts from 1."""
    cosines = [math.cos(n / 10000 ** (2 * k / size)) for k in range(1, size // 2 + 1)]
    return (sum(cosines) - size / 2) / (8 * h / heads)


# Rotations

Frequencies = Callable[[int, int], list[float]]
"""d and the length of the window -> the angle that a step turns each pair of dimensions."""


def rotated(frequencies: Frequencies, layout: str, gain: float = 1.0) -> Logit:
    """gain: a factor on q and on k. Dimensions beyond the pairs stay as they are."""

    def logit(encoding: Any, look: Look) -> Tensor:
        pair = look.pair
        theta = frequencies(len(pair.q), look.length)
        q = turned(pair.q, [pair.i * t for t in theta], layout)
        k = turned(pair.k, [pair.j * t for t in theta], layout)
        return gain * q @ (gain * k) / math.sqrt(len(pair.q))

    return logit


def turned(x: Tensor, angles: list[float], layout: str) -> Tensor:
    d, pairs = len(x), len(angles)
    partner, cos, sin = list(range(d)), [1.0] * d, [0.0] * d
    for c, angle in enumerate(angles):
        a, b = (2 * c, 2 * c + 1) if layout == "interleaved" else (c, c + pairs)
        partner[a], partner[b] = b, a
        cos[a] = cos[b] = math.cos(angle)
        sin[a], sin[b] = -math.sin(angle), math.sin(angle)
    return x * x.new_tensor(cos) + x[partner] * x.new_tensor(sin)


def rope(d: int, base: float = 10000.0) -> list[float]:
    return [base ** (-2 * c / d) for c in range(d // 2)]


def p_rope(fraction: str) -> Frequencies:
    """The floor(p d/2) fastest turn, at RoPE's own frequencies."""

    def frequencies(d: int, length: int) -> list[float]:
        kept = math.floor(Fraction(fraction) * d / 2)
        return rope(d)[:kept] + [0.0] * (d // 2 - kept)

    return frequencies


def partial(fraction: str) -> Frequencies:
    """RoPE of the first fraction * d dimensions, as if there were no others."""
    return lambda d, length: rope(int(Fraction(fraction) * d))


def interpolated(factor: float) -> Frequencies:
    return lambda d, length: [t / factor for t in rope(d)]


def ntk(factor: float) -> Frequencies:
    return lambda d, length: rope(d, 10000 * factor ** (d / (d - 2)))


def dynamic_ntk(factor: float, original: int) -> Frequencies:
    def frequencies(d: int, length: int) -> list[float]:
        if length <= original:
            return rope(d)
        stretch = factor * length / original - (factor - 1)
        return rope(d, 10000 * stretch ** (d / (d - 2)))

    return frequencies


def yarn(factor: float, original: int, alpha: float = 1.0, beta: float = 32.0) -> Frequencies:
    """NTK by parts: a pair that turns more than beta times in the original length stays."""

    def part(theta: float) -> float:
        turns = original / (2 * math.pi / theta)
        gamma = min(1.0, max(0.0, (turns - alpha) / (beta - alpha)))
        return (1 - gamma) * theta / factor + gamma * theta

    return lambda d, length: [part(t) for t in rope(d)]


def streaming(layout: str) -> Logit:
    """Positions are counted among the keys that are seen."""

    def logit(encoding: Any, look: Look) -> Tensor:
        look = look._replace(positions=range(len(look.positions)))
        return rotated(lambda d, length: rope(d), layout)(encoding, look)

    return logit


def see_streaming(window: int, sinks: int) -> See:
    return lambda b, i: [j for j in range(i + 1) if j < sinks or j > i - window]


def xpos(
    gamma: float = 0.4, scale_base: float = 512.0, layout: str = "interleaved"
) -> naive.Logit:
    """Sun et al. 2022, relative-only: pair c shrinks by zeta_c^(n / scale_base)."""

    def logit(encoding: Any, pair: naive.Pair) -> Tensor:
        d, n = len(pair.q), pair.i - pair.j
        q = turned(pair.q, [n * t for t in rope(d)], layout)
        products = q * pair.k
        zeta = [((2 * c / d + gamma) / (1 + gamma)) ** (n / scale_base) for c in range(d // 2)]
        decays = [z for z in zeta for _ in range(2)] if layout == "interleaved" else zeta * 2
        return products @ products.new_tensor(decays) / math.sqrt(d)

    return logit


# CoPE: Golovneva et al. 2024; a position is the number of gates that are open from j to i


def cope(encoding: Any, look: Look) -> Tensor:
    q, keys = look.q[look.head], look.k[look.head]
    root, table = math.sqrt(len(q)), encoding.table[look.layer]
    gates = torch.sigmoid(keys[look.j :] @ q / root)
    last = table.shape[1] - 1
    p = gates.sum()
    if p >= last:
        p = torch.full_like(p, last)
    below, above = math.floor(p.item()), math.ceil(p.item())
    w = p - below
    position = (1 - w) * (q @ table[:, below]) + w * (q @ table[:, above])
    return (q @ keys[look.j] + position) / root


# FoX: Lin et al. 2025; CABLE: Veisi et al. 2025


def fox(encoding: Any, look: Look) -> Tensor:
    gates = torch.sigmoid(_gate_inputs(encoding, look))
    return naive.nope(encoding, look.pair) + torch.log(gates).sum()


def cable(encoding: Any, look: Look) -> Tensor:
    steps = torch.log(1 + torch.exp(_gate_inputs(encoding, look)))
    return naive.nope(encoding, look.pair) - steps.sum()


def _gate_inputs(encoding: Any, look: Look) -> Tensor:
    """w . x_l + b of the tokens l = j+1 .. i."""
    weight, bias = encoding.weight[look.layer, look.head], encoding.bias[look.layer, look.head]
    return look.x[look.j + 1 :] @ weight + bias


# DAPE: Zheng et al. 2024, over KERPLE's logarithm


def dape(encoding: Any, look: Look) -> Tensor:
    layer, pairs = look.layer, [look._replace(head=h).pair for h in range(len(look.q))]
    content = [naive.nope(encoding, pair) for pair in pairs]
    bias = [kerple_log_bias(encoding, pair) for pair in pairs]
    hidden = torch.stack(content + bias) @ encoding.w1[layer] + encoding.b1[layer]
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    added = hidden @ encoding.w2[layer][:, look.head] + encoding.b2[layer, look.head]
    return content[look.head] + bias[look.head] + added


# Temperatures; n is the number of keys that the query sees


def ssmax(encoding: Any, look: Look) -> Tensor:
    n = len(look.positions)
    return naive.nope(encoding, look.pair) * encoding.s[look.layer, look.head] * math.log(n)


def logn(length: int, logit: Logit) -> Logit:
    def scaled(encoding: Any, look: Look) -> Tensor:
        n = len(look.positions)
        return logit(encoding, look) * max(1.0, math.log(n) / math.log(length))

    return scaled


# T5 as it was published: no 1/sqrt(d)


def t5_unscaled(encoding: Any, pair: naive.Pair) -> Tensor:
    return naive.t5(encoding, pair) - naive.nope(encoding, pair) + pair.q @ pair.k
