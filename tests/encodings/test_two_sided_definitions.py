"""Two-sided encodings a second time, one pair (i, j) at a time, in float64.

Written from the papers and from outside code, without posbench's: it reads the raw parameters off
a module and nothing else. n = i - j: above 0 the key lies in the past, below 0 in the future.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.attention import KERNELS, fused
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.logn import LogN
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.shaw import Shaw
from posbench.encodings.ssmax import SSMax
from posbench.encodings.t5 import T5Bias, T5Unscaled
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers.cases import HEAD_WIDTH, LAYER, LAYERS, with_gradients
from tests.helpers.tolerance import EXACT, ULPS

LENGTHS = [1, 7, 40]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Query q [d] at position i and key k [d] at position j, in one head of layer LAYER."""

    q: Tensor
    k: Tensor
    i: int
    j: int
    head: int
    seen: int  # how many keys the query sees

    @property
    def n(self) -> int:
        return self.i - self.j


Logit = Callable[[Any, Pair], Tensor]
Value = Callable[[Any, Pair], Tensor]
Sees = Callable[[int, int, int], bool]
"""Head, number of heads and n -> whether the query sees the key."""


def attention(
    qkv: list[Tensor], encoding: Any, logit: Logit, value: Value | None, sees: Sees
) -> Tensor:
    """q, k and v [B, H, T, d] -> [B, H, T, d]."""
    batch, heads, length, _ = qkv[0].shape
    window = encoding.window or length

    def head(b: int, h: int) -> Tensor:
        q, k, v = (x[b, h].unbind() for x in qkv)
        rows = []
        for i in range(length):
            keys = [j for j in range(length) if abs(i - j) < window and sees(h, heads, i - j)]
            pairs = [Pair(q[i], k[j], i, j, h, len(keys)) for j in keys]
            logits = torch.stack([logit(encoding, pair) for pair in pairs])
            powers = (logits - logits.max().detach()).exp()
            values = [v[j] for j in keys]
            if value is not None:
                values = [x + value(encoding, pair) for x, pair in zip(values, pairs, strict=True)]
            rows.append((powers / powers.sum()) @ torch.stack(values))
        return torch.stack(rows)

    return torch.stack([torch.stack([head(b, h) for h in range(heads)]) for b in range(batch)])


def every_key(head: int, heads: int, n: int) -> bool:
    return True


def plain(encoding: Any, pair: Pair) -> Tensor:
    return pair.q @ pair.k / math.sqrt(len(pair.q))


# T5: half of the buckets for each direction, the future's after the past's (and after n = 0)

FIRST = {
    (32, 128): [*range(8), 8, 12, 16, 23, 32, 46, 64, 91],
    (8, 16): [0, 1, 2, 6],  # from 2 on, 2 + floor(2 ln(n/2) / ln(16/2))
}
"""Buckets and largest distance -> the first distance of each bucket of one direction."""


def bucket(n: int, buckets: int, most: int) -> int:
    first = FIRST[buckets, most]
    return sum(abs(n) >= edge for edge in first) - 1 + (len(first) if n < 0 else 0)


def t5_bias(encoding: Any, pair: Pair) -> Tensor:
    return encoding.bias[pair.head, bucket(pair.n, encoding.buckets, encoding.max_distance)]


def t5(encoding: Any, pair: Pair) -> Tensor:
    return plain(encoding, pair) + t5_bias(encoding, pair)


def t5_unscaled(encoding: Any, pair: Pair) -> Tensor:
    return pair.q @ pair.k + t5_bias(encoding, pair)


# Shaw: row clip(j - i, -k, k) of 2k + 1, counted from the farthest past


def shaw(encoding: Any, pair: Pair) -> Tensor:
    key = pair.k + encoding.key_table[LAYER, shaw_row(encoding, pair)]
    return pair.q @ key / math.sqrt(len(pair.q))


def shaw_value(encoding: Any, pair: Pair) -> Tensor:
    return encoding.value_table[LAYER, shaw_row(encoding, pair)]


def shaw_row(encoding: Any, pair: Pair) -> int:
    k: int = encoding.k
    return min(max(pair.j - pair.i, -k), k) + k


# DeBERTa: equations 3 and 4


def deberta(code: bool, encoding: Any, pair: Pair) -> Tensor:
    """code: Q^r in row delta(i, j), as in Microsoft's; else, as printed, in row delta(j, i)."""
    d, k = len(pair.q), encoding.k
    columns = slice(pair.head * d, (pair.head + 1) * d)

    def delta(n: int) -> int:
        return 0 if n <= -k else 2 * k - 1 if n >= k else n + k

    total, terms = pair.q @ pair.k, 1
    if encoding.key_projection is not None:
        key = encoding.table[delta(pair.i - pair.j)] @ encoding.key_projection[LAYER]
        total, terms = total + pair.q @ key[columns], terms + 1
    if encoding.query_projection is not None:
        row = delta(pair.i - pair.j) if code else delta(pair.j - pair.i)
        query = encoding.table[row] @ encoding.query_projection[LAYER]
        total, terms = total + pair.k @ query[columns], terms + 1
    return total / math.sqrt(terms * d)


# Transformer-XL, at distances of both signs, as XLNet


def transformer_xl(encoding: Any, pair: Pair) -> Tensor:
    width, d = encoding.shape.width, len(pair.q)
    angles = [pair.n / encoding.base ** (2 * c / width) for c in range(width // 2)]
    sinusoid = pair.q.new_tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
    columns = slice(pair.head * d, (pair.head + 1) * d)
    r = sinusoid @ encoding.projection[LAYER][:, columns]
    owner = LAYER if len(encoding.u) > 1 else 0
    u, v = encoding.u[owner, pair.head], encoding.v[owner, pair.head]
    return ((pair.q + u) @ pair.k + (pair.q + v) @ r) / math.sqrt(d)


# RoPE


def rope(interleaved: bool, encoding: Any, pair: Pair) -> Tensor:
    d = len(pair.q)
    numbers = range(d // 2)
    first = [2 * c if interleaved else c for c in numbers]
    second = [2 * c + 1 if interleaved else c + d // 2 for c in numbers]
    angles = [pair.n * 10_000 ** (-2 * c / d) for c in numbers]
    q1, q2, k1, k2 = pair.q[first], pair.q[second], pair.k[first], pair.k[second]
    along = (q1 * k1 + q2 * k2) @ q1.new_tensor([math.cos(a) for a in angles])
    across = (q1 * k2 - q2 * k1) @ q1.new_tensor([math.sin(a) for a in angles])
    return (along + across) / math.sqrt(d)


# ALiBi: its author's three forms, and the offset of google-deepmind's randomized encodings

SLOPES = {
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
}
"""The paper's, by the number of heads."""


def slope(encoding: Any, pair: Pair, heads: int | None = None) -> Tensor | float:
    if encoding.log_slopes is not None:
        return encoding.log_slopes[pair.head].exp()
    heads = heads or encoding.shape.heads
    return SLOPES[heads][pair.head % heads]


def alibi(encoding: Any, pair: Pair) -> Tensor:
    return plain(encoding, pair) - slope(encoding, pair) * abs(pair.n)


def alibi_halves(encoding: Any, pair: Pair) -> Tensor:
    """What which head sees is halves()."""
    m = slope(encoding, pair, encoding.shape.heads // 2)
    return plain(encoding, pair) - m * abs(pair.n)


def halves(head: int, heads: int, n: int) -> bool:
    return n >= 0 if head < heads // 2 else n <= 0


def alibi_two_slopes(encoding: Any, pair: Pair) -> Tensor:
    """The past's factors first; negative ones are a penalty."""
    factor = encoding.factors[0 if pair.n > 0 else 1, pair.head]
    return plain(encoding, pair) + factor * abs(pair.n)


def alibi_offset(encoding: Any, pair: Pair) -> Tensor:
    distance = pair.n - 0.5 if pair.n > 0 else -pair.n
    return plain(encoding, pair) - slope(encoding, pair) * distance


def alibi_geometric(encoding: Any, pair: Pair) -> Tensor:
    m = 2 ** (-8 * (pair.head + 1) / encoding.shape.heads)
    return plain(encoding, pair) - m * abs(pair.n)


# KERPLE and Sandwich, by the distance without its sign


def kerple_log(encoding: Any, pair: Pair) -> Tensor:
    r1, r2 = encoding.r1[pair.head], encoding.r2[pair.head]
    return plain(encoding, pair) - r1 * torch.log(1 + r2 * abs(pair.n))


def kerple_power(encoding: Any, pair: Pair) -> Tensor:
    if pair.n == 0:
        return plain(encoding, pair)
    r1, r2 = encoding.r1[pair.head], encoding.r2[pair.head]
    return plain(encoding, pair) - r1 * torch.exp(r2 * math.log(abs(pair.n)))


def sandwich(size: int, encoding: Any, pair: Pair) -> Tensor:
    """p_i . p_j of sinusoids of this size, 0 at the query's own key."""
    phases = [pair.n / 10_000 ** (2 * c / size) for c in range(1, size // 2 + 1)]
    common = sum(math.cos(phase) - 1 for phase in phases)
    return plain(encoding, pair) + common * encoding.shape.heads / (8 * (pair.head + 1))


# Temperatures, by the number of keys that a query sees: all, or those in its window


def ssmax(encoding: Any, pair: Pair) -> Tensor:
    return plain(encoding, pair) * encoding.s[LAYER, pair.head] * math.log(pair.seen)


def logn(length: int, encoding: Any, pair: Pair) -> Tensor:
    return plain(encoding, pair) * max(1.0, math.log(pair.seen) / math.log(length))


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding, what the attention under it is, and whether it takes both sides alike."""

    make: Callable[[Shape], Encoding]
    logit: Logit = plain
    value: Value | None = None
    sees: Sees = every_key
    heads: int = 2
    even: bool = False

    @property
    def shape(self) -> Shape:
        return Shape(self.heads * HEAD_WIDTH, self.heads, LAYERS, two_sided=True)

    def encoding(self, window: int | None = None) -> Encoding:
        """With every parameter N(0, 0.5^2), and away from 0 where it must be positive."""
        encoding = self.make(self.shape).double()
        encoding.window = window
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, p in encoding.named_parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator))
                if name in ("r1", "r2"):
                    p.abs_().add_(0.1)
        return encoding


def _t5(buckets: int, most: int) -> Case:
    return Case(lambda shape: T5Bias(shape, buckets=buckets, max_distance=most), t5)


def _shaw(k: int, values: bool) -> Case:
    make = functools.partial(Shaw, k=k, values=values)
    return Case(make, shaw, shaw_value if values else None)


def _deberta(k: int, index: str, c2p: bool = True, p2c: bool = True) -> Case:
    make = functools.partial(DeBERTa, k=k, c2p=c2p, p2c=p2c, p2c_index=index)
    return Case(make, functools.partial(deberta, index == "code"))


def _alibi(sides: str, logit: Logit, slopes: str = "paper", **more: Any) -> Case:
    return Case(functools.partial(ALiBi, slopes=slopes, sides=sides), logit, **more)


CASES = {
    "nope": Case(NoPE, even=True),
    "t5-32-128": _t5(32, 128),
    "t5-8-16": _t5(8, 16),
    "t5_unscaled": Case(functools.partial(T5Unscaled, buckets=8, max_distance=16), t5_unscaled),
    "shaw-0": _shaw(0, values=True),
    "shaw-3": _shaw(3, values=True),
    "shaw-16": _shaw(16, values=True),
    "shaw_keys-3": _shaw(3, values=False),
    "deberta-3-paper": _deberta(3, "paper"),
    "deberta-3-code": _deberta(3, "code"),
    "deberta-3-c2p": _deberta(3, "paper", p2c=False),
    "deberta-3-p2c-paper": _deberta(3, "paper", c2p=False),
    "deberta-3-p2c-code": _deberta(3, "code", c2p=False),
    "deberta-1-paper": _deberta(1, "paper"),
    "deberta-64-paper": _deberta(64, "paper"),
    "deberta-64-code": _deberta(64, "code"),
    "transformer_xl": Case(TransformerXL, transformer_xl),
    "transformer_xl-untied": Case(functools.partial(TransformerXL, untie=True), transformer_xl),
    "rope-half": Case(RoPE, functools.partial(rope, False)),
    "rope-interleaved": Case(
        functools.partial(RoPE, layout="interleaved"), functools.partial(rope, True)
    ),
    "alibi-symmetric": _alibi("symmetric", alibi, heads=4, even=True),
    "alibi-symmetric-h3": _alibi("symmetric", alibi, heads=3, even=True),
    "alibi-symmetric-learned": _alibi("symmetric", alibi, "learned", even=True),
    "alibi-symmetric-geometric": _alibi(
        "symmetric", alibi_geometric, "geometric", heads=3, even=True
    ),
    "alibi-halves": _alibi("halves", alibi_halves, heads=4, sees=halves),
    "alibi-halves-learned": _alibi("halves", alibi_halves, "learned", heads=4, sees=halves),
    "alibi-two_slopes": _alibi("two_slopes", alibi_two_slopes, heads=3),
    "alibi-offset": _alibi("offset", alibi_offset, heads=4),
    "alibi-offset-learned": _alibi("offset", alibi_offset, "learned"),
    "kerple_log": Case(KerpleLog, kerple_log, even=True),
    "kerple_power": Case(KerplePower, kerple_power, even=True),
    "sandwich": Case(
        functools.partial(Sandwich, size=8), functools.partial(sandwich, 8), heads=3, even=True
    ),
    "ssmax": Case(functools.partial(SSMax, length=16), ssmax, even=True),
    "logn": Case(functools.partial(LogN, length=6), functools.partial(logn, 6), even=True),
}
WINDOWED = [
    "nope",
    "t5-8-16",
    "shaw-3",
    "deberta-3-paper",
    "transformer_xl",
    "rope-half",
    "alibi-halves",
    "alibi-offset",
    "ssmax",
    "logn",
]


def those(even: bool) -> list[str]:
    return [name for name, case in CASES.items() if case.even == even]


each_kernel = pytest.mark.parametrize("kernel", ["reference", "blocked", "fused"])
each_name = pytest.mark.parametrize("name", CASES)


def drawn(case: Case, length: int) -> list[Tensor]:
    """q, k and v [B, H, T, d]: N(0, 1), the same for one size."""
    generator = torch.Generator().manual_seed(length)
    size = (2 if length < 10 else 1, case.heads, length, HEAD_WIDTH)
    made = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [x.requires_grad_() for x in made]


def out(kernel: str, encoding: Encoding, qkv: list[Tensor]) -> Tensor:
    q, k, v = qkv
    span = Span.window(q.shape[2], two_sided=True)
    return KERNELS[kernel](q, k, v, encoding, LAYER, span)


@functools.cache
def by_definition(name: str, length: int, window: int | None) -> list[Tensor]:
    """The output, then its gradients by q, k, v and every parameter."""
    case = CASES[name]
    encoding, qkv = case.encoding(window), drawn(case, length)
    made = attention(qkv, encoding, case.logit, case.value, case.sees)
    return with_gradients(made, encoding, qkv)


def agrees(kernel: str, name: str, length: int, window: int | None = None) -> None:
    case = CASES[name]
    encoding, qkv = case.encoding(window), drawn(case, length)
    actual = with_gradients(out(kernel, encoding, qkv), encoding, qkv)
    names = ["output", *"qkv", *(parameter for parameter, _ in encoding.named_parameters())]
    expected = by_definition(name, length, window)
    for what, a, e in zip(names, actual, expected, strict=True):
        limit = EXACT * max(1.0, e.abs().max().item())
        message = functools.partial("{}\n{}".format, what)
        torch.testing.assert_close(a, e, rtol=EXACT, atol=limit, msg=message)


@pytest.mark.parametrize("length", LENGTHS)
@each_kernel
@each_name
def test_definition(name: str, kernel: str, length: int) -> None:
    agrees(kernel, name, length)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernel has several pieces at length 40, and far ones on both sides."""
    for name, size in {"BLOCK": 16, "LEAST_BLOCK": 8, "TABLE_BLOCK": 8, "KEPT": 0}.items():
        monkeypatch.setattr(fused, name, size)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("name", "window"), [*((name, None) for name in CASES), *((name, 5) for name in WINDOWED)]
)
def test_definition_in_small_blocks(name: str, window: int | None) -> None:
    agrees("fused", name, 40, window)


@pytest.mark.parametrize(("length", "window"), [(1, 1), (7, 1), (7, 3), (7, 60), (40, 5)])
@each_kernel
@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_reaches_as_far_to_both_sides(
    name: str, kernel: str, length: int, window: int
) -> None:
    agrees(kernel, name, length, window)


# What follows from the definitions


def turned(qkv: list[Tensor]) -> list[Tensor]:
    """The window read from its end."""
    return [x.flip(2) for x in qkv]


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("window", [None, 6])
@each_kernel
@pytest.mark.parametrize("name", those(even=True))
def test_a_bias_of_the_distance_alone_knows_no_direction(
    name: str, kernel: str, window: int | None
) -> None:
    """A window that is reversed has its output reversed."""
    case = CASES[name]
    encoding, qkv = case.encoding(window), drawn(case, 40)
    forth, back = out(kernel, encoding, qkv), out(kernel, encoding, turned(qkv))
    torch.testing.assert_close(back, forth.flip(2), rtol=EXACT, atol=EXACT)


@each_kernel
@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if not case.even and n != "shaw-0"]
)
def test_all_others_know_the_direction(name: str, kernel: str) -> None:
    """shaw-0 has one row for all distances."""
    case = CASES[name]
    encoding, qkv = case.encoding(), drawn(case, 40)
    assert apart(out(kernel, encoding, turned(qkv)), out(kernel, encoding, qkv).flip(2)) > 1e-3


def _mirror_t5(encoding: Any) -> None:
    half = encoding.buckets // 2
    past, future = encoding.bias[:, 1:half].clone(), encoding.bias[:, half + 1 :].clone()
    encoding.bias[:, 1:half], encoding.bias[:, half + 1 :] = future, past


def _mirror_shaw(encoding: Any) -> None:
    encoding.key_table.copy_(encoding.key_table.flip(1))
    encoding.value_table.copy_(encoding.value_table.flip(1))


def _mirror_two_slopes(encoding: Any) -> None:
    encoding.factors.copy_(encoding.factors.flip(0))


def _mirror_transformer_xl(encoding: Any) -> None:
    """The sines of -n are those of n, negative."""
    encoding.projection[:, : encoding.shape.width // 2].neg_()


@each_kernel
@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("t5-8-16", _mirror_t5),
        ("t5-32-128", _mirror_t5),
        ("shaw-3", _mirror_shaw),
        ("alibi-two_slopes", _mirror_two_slopes),
        ("transformer_xl", _mirror_transformer_xl),
    ],
)
def test_past_and_future_exchanged_is_the_window_reversed(
    name: str, mirror: Callable[[Any], None], kernel: str
) -> None:
    case = CASES[name]
    encoding, qkv = case.encoding(), drawn(case, 40)
    forth = out(kernel, encoding, qkv)
    with torch.no_grad():
        mirror(encoding)
    back = out(kernel, encoding, turned(qkv))
    torch.testing.assert_close(back, forth.flip(2), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("buckets", "most"), FIRST)
def test_buckets_of_both_directions(buckets: int, most: int) -> None:
    encoding = T5Bias(CASES["t5-8-16"].shape, buckets=buckets, max_distance=most)
    n = torch.arange(-300, 301)
    assert encoding.bucket(n).tolist() == [bucket(one, buckets, most) for one in n.tolist()]


def test_one_row_of_t5_is_never_read() -> None:
    """That of distance 0 in the future."""
    read = {bucket(n, 32, 128) for n in range(-300, 301)}
    assert read == set(range(32)) - {16}
    gradient = by_definition("t5-8-16", 40, None)[-1]
    assert (gradient[:, 4] == 0).all()
    assert (gradient[:, [0, 1, 2, 3, 5, 6, 7]] != 0).all()


def test_the_two_indices_of_deberta_are_two_models() -> None:
    """Of the one table: c2p and p2c read a row and its mirror, or one row twice."""
    paper, code = (by_definition(f"deberta-3-{index}", 7, None)[0] for index in ("paper", "code"))
    assert apart(paper, code) > 1e-3


@pytest.mark.parametrize("length", [2, 16, 128])
def test_ssmax_starts_at_one(length: int) -> None:
    """All queries of a window of this length see all its keys: s ln(length) = 1."""
    encoding = SSMax(CASES["ssmax"].shape, length=length)
    expected = torch.full_like(encoding.s, 1 / math.log(length))
    torch.testing.assert_close(encoding.s, expected)


def test_the_first_of_halves_slopes_are_those_of_half_the_heads() -> None:
    encoding: Any = CASES["alibi-halves"].encoding()
    at_one = encoding.distance_bias(torch.tensor([1]), LAYER)[:2, 0]
    torch.testing.assert_close(
        at_one.double(), -torch.tensor(SLOPES[2]).double(), rtol=ULPS, atol=0
    )
