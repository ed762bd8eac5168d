"""Every encoding a second time: one pair (i, j) at a time, from the papers, in float64.

Written without posbench's code; it reads the raw parameters off a module and nothing else.
Positions are absolute: keys 0 .. S - 1, queries S - T .. S - 1.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Pair(NamedTuple):
    """Query q [d] at position i looks at key k [d] at position j <= i, in one head and layer."""

    q: Tensor
    k: Tensor
    i: int
    j: int
    head: int
    layer: int


Logit = Callable[[Any, Pair], Tensor]
Value = Callable[[Any, Pair], Tensor | float]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Any,
    layer: int,
    logit: Logit,
    value: Value,
    hidden: Tensor | None = None,
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], hidden [B, S] -> [B, H, T, d]."""
    batch, heads, queries, _ = q.shape
    memory = k.shape[2] - queries

    def output(b: int, h: int, t: int) -> Tensor:
        i = memory + t
        seen = [j for j in range(i + 1) if hidden is None or not hidden[b, j]]
        pairs = [Pair(q[b, h, t], k[b, h, j], i, j, h, layer) for j in seen]
        weights = softmax([logit(encoding, pair) for pair in pairs])
        values = [v[b, h, pair.j] + value(encoding, pair) for pair in pairs]
        return weights @ torch.stack(values)

    rows = [output(b, h, t) for b in range(batch) for h in range(heads) for t in range(queries)]
    return torch.stack(rows).reshape(q.shape)


def softmax(logits: list[Tensor]) -> Tensor:
    stacked = torch.stack(logits)
    powers = torch.exp(stacked - stacked.max().detach())
    return powers / powers.sum()


def no_value(encoding: Any, pair: Pair) -> float:
    return 0.0


def nope(encoding: Any, pair: Pair) -> Tensor:
    return pair.q @ pair.k / math.sqrt(len(pair.q))


# Shaw et al. 2018, equations 3 and 4


def shaw(encoding: Any, pair: Pair) -> Tensor:
    row = encoding.key_table[pair.layer, _clipped(pair, encoding.k)]
    return pair.q @ (pair.k + row) / math.sqrt(len(pair.q))


def shaw_value(encoding: Any, pair: Pair) -> Tensor:
    return encoding.value_table[pair.layer, _clipped(pair, encoding.k)]


def _clipped(pair: Pair, k: int) -> int:
    return max(-k, min(k, pair.j - pair.i)) + k


# Transformer-XL: Dai et al. 2019, section 3.3; W_R is stored D x (H d), r as a row


def transformer_xl(encoding: Any, pair: Pair) -> Tensor:
    width, d = encoding.projection.shape[1], len(pair.q)
    sinusoid = concatenated(pair.i - pair.j, width, encoding.base)
    r = pair.q.new_tensor(sinusoid)
    owner = pair.layer if len(encoding.u) > 1 else 0
    u, v = encoding.u[owner, pair.head], encoding.v[owner, pair.head]
    columns = slice(pair.head * d, (pair.head + 1) * d)
    position = r @ encoding.projection[pair.layer][:, columns]
    terms = pair.q @ pair.k + pair.q @ position + u @ pair.k + v @ position
    return terms / math.sqrt(d)


# T5: Raffel et al. 2020; b is added after 1/sqrt(d)


def t5(encoding: Any, pair: Pair) -> Tensor:
    bucket = t5_bucket(pair.i - pair.j, encoding.buckets, encoding.max_distance)
    return nope(encoding, pair) + encoding.bias[pair.head, bucket]


def t5_bucket(n: int, buckets: int = 32, max_distance: int = 128) -> int:
    """min(B - 1, m + floor(m log(n/m) / log(max/m))), m = B/2, without a logarithm."""
    m = buckets // 2
    if n < m:
        return n
    extra = 0
    while m + extra < buckets - 1 and (
        Fraction(max_distance, m) ** (extra + 1) <= Fraction(n, m) ** m
    ):
        extra += 1
    return m + extra


# DeBERTa: He et al. 2021, equations 2 to 4


def deberta(paper_index: bool) -> Logit:
    """paper_index: Q^r at delta(j, i), as printed; else at delta(i, j), as in the codes."""

    def logit(encoding: Any, pair: Pair) -> Tensor:
        d, k, head = len(pair.q), encoding.k, pair.head
        columns = slice(head * d, (head + 1) * d)
        terms = [pair.q @ pair.k]
        if encoding.key_projection is not None:
            row = encoding.table[deberta_delta(pair.i - pair.j, k)]
            terms.append(pair.q @ (row @ encoding.key_projection[pair.layer][:, columns]))
        if encoding.query_projection is not None:
            difference = pair.j - pair.i if paper_index else pair.i - pair.j
            row = encoding.table[deberta_delta(difference, k)]
            terms.append(pair.k @ (row @ encoding.query_projection[pair.layer][:, columns]))
        return torch.stack(terms).sum() / math.sqrt(len(terms) * d)

    return logit


def deberta_delta(difference: int, k: int) -> int:
    if difference <= -k:
        return 0
    if difference >= k:
        return 2 * k - 1
    return difference + k


# RoPE: Su et al. 2021, equation 34


def rope(layout: str) -> Logit:
    """layout: which dimensions make a pair."""

    def logit(encoding: Any, pair: Pair) -> Tensor:
        q = rope_turned(pair.q, pair.i, encoding.base, layout)
        k = rope_turned(pair.k, pair.j, encoding.base, layout)
        return q @ k / math.sqrt(len(pair.q))

    return logit


def rope_turned(x: Tensor, position: int, base: float, layout: str) -> Tensor:
    """x [d] with pair c turned by position * base^(-2c/d)."""
    d = len(x)
    out = list(x)
    for c in range(d // 2):
        a, b = (2 * c, 2 * c + 1) if layout == "interleaved" else (c, c + d // 2)
        angle = position * base ** (-2 * c / d)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return torch.stack(out)


# ALiBi: Press et al. 2022, section 3


def alibi(encoding: Any, pair: Pair) -> Tensor:
    slope = alibi_slopes(encoding.shape.heads)[pair.head]
    return nope(encoding, pair) - slope * (pair.i - pair.j)


def alibi_slopes(heads: int) -> list[float]:
    """The authors' rule: a power of two of heads, then every second slope of twice as many."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: heads - power]


# Sinusoids: Vaswani et al. 2017, section 3.5


def interleaved(p: int, width: int, base: float = 10000.0) -> list[float]:
    """[D]: sin(p / base^(2k/D)) at 2k, the cosine of the same at 2k + 1."""
    angles = [p / base ** ((c - c % 2) / width) for c in range(width)]
    return [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]


def concatenated(p: int, width: int, base: float = 10000.0) -> list[float]:
    """[D], D even: all sines, then all cosines."""
    angles = [p / base ** (2 * k / width) for k in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


# Not a paper: all cells of the contract at once, from the formula that heads base.py


def everything(encoding: Any, pair: Pair) -> Tensor:
    turned_q, turned_k = pair.q * math.cos(pair.i), pair.k * math.cos(pair.j)
    return _tables(encoding, pair, turned_q @ turned_k, pair.i - pair.j)


def clipped(encoding: Any, pair: Pair) -> Tensor:
    return _tables(encoding, pair, pair.q @ pair.k, min(pair.i - pair.j, 9))


def pairwise(encoding: Any, pair: Pair) -> Tensor:
    bias = encoding.pairwise[pair.layer, pair.head] * math.sin(pair.i + 2 * pair.j)
    return everything(encoding, pair) + bias


def _tables(encoding: Any, pair: Pair, products: Tensor, n: int) -> Tensor:
    products = products + pair.q @ encoding.keys[pair.layer, pair.head, n]
    products = products + pair.k @ encoding.queries[pair.layer, pair.head, n]
    return products / math.sqrt(len(pair.q)) + encoding.bias[pair.layer, pair.head, n]


def everything_value(encoding: Any, pair: Pair) -> Tensor:
    return encoding.values[pair.layer, pair.head, pair.i - pair.j]


def clipped_value(encoding: Any, pair: Pair) -> Tensor:
    return encoding.values[pair.layer, pair.head, min(pair.i - pair.j, 9)]
