"""Claims 4, 5 and 7: schemes with vectors in the score, whose terms are recomputed here.

Shapes: H heads, M distances, D width, d head width.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from posbench.claims import probe
from posbench.claims.verdict import Finding
from posbench.encodings import Encoding
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.nope import NoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.transformer_xl import TransformerXL

BEYOND = 1_000_000  # a distance past any training length
SINE = 1e-6  # at angles of a million radians a float64 sine keeps nine digits


def shaw_splits(encoding: Encoding) -> Finding:
    assert isinstance(encoding, Shaw)
    q, k = probe.contents(encoding)
    at = torch.arange(probe.LENGTH)
    row = (at - at[:, None]).clamp(-encoding.k, encoding.k) + encoding.k  # [T, T]: j - i
    vectors = encoding.key_table[probe.last_layer(encoding)][row]  # [T, T, d]
    position = encoding.scale * torch.einsum("bhtd,tsd->bhts", q, vectors).tril()
    return _sum(encoding, q, k, {"q·k": probe.content(encoding, q, k), "q·w": position})


def shaw_clips(encoding: Encoding) -> Finding:
    """From distance k on one vector, before it a vector each, on keys and values alike."""
    assert isinstance(encoding, Shaw)
    distance = torch.arange(4 * encoding.k + 100)
    cells = (encoding.distance_keys(distance, 0), encoding.distance_values(distance, 0))
    tables = [table for table in cells if table is not None]
    count = {len(table[0].unique(dim=0)) for table in tables}
    ends = all(
        bool((t[:, encoding.k :] == t[:, encoding.k : encoding.k + 1]).all()) for t in tables
    )
    figure = f"k = {encoding.k}: distances 0 .. {len(distance) - 1:,} read {max(count)} vectors"
    return Finding(ends and count == {encoding.k + 1}, figure)


def xl_terms(encoding: Encoding) -> Finding:
    assert isinstance(encoding, TransformerXL)
    q, k = probe.contents(encoding)
    u, v = _u_and_v(encoding)
    r = probe.relative(_projected(encoding, torch.arange(probe.LENGTH)))  # [H, T, T, d]
    terms = {
        "(a)": probe.content(encoding, q, k),
        "(b)": encoding.scale * torch.einsum("bhtd,htsd->bhts", q, r).tril(),
        "(c)": probe.content(encoding, u[:, None].expand_as(q), k),
        "(d)": encoding.scale * torch.einsum("hd,htsd->hts", v, r).tril(),
    }
    return _sum(encoding, q, k, terms)


def xl_any(encoding: Encoding) -> Finding:
    assert isinstance(encoding, TransformerXL)
    distance = torch.tensor([0, 1, 127, 128, 50_000, BEYOND])
    error = probe.apart(
        _projected(encoding, distance),
        encoding.distance_keys(distance, probe.last_layer(encoding)),
    )
    holds = error < SINE and encoding.max_length is None
    return Finding(holds, f"R at distances up to {BEYOND:,} is the sinusoid {probe.within(error)}")


def xl_keys(encoding: Encoding) -> Finding:
    """Without W_R what is left is (a) + (c): content does not go through it."""
    assert isinstance(encoding, TransformerXL)
    q, k = probe.contents(encoding)
    without = copy.deepcopy(encoding)
    nn.init.zeros_(without.projection)
    u, _ = _u_and_v(encoding)
    left = (encoding.scale * (q + u[:, None]) @ k.mT).tril()
    error = probe.apart(left, probe.logits(without, q, k))
    size = " × ".join(map(str, encoding.projection.shape))
    return Finding(
        error < probe.EXACT, f"W_R is {size}; without it (a) + (c) remain, {probe.within(error)}"
    )


def xl_query(encoding: Encoding) -> Finding:
    """(c) and (d), alone where q = 0: the same wherever the query, with u and v not nought."""
    q, k = probe.contents(encoding)
    q, k = torch.zeros_like(q), k[:, :, :1].expand_as(k)
    here, there = probe.logits(encoding, q, k), probe.logits(encoding, q, k, start=probe.FAR)
    along = here[:, :, 1:, 1:] - here[:, :, :-1, :-1]  # one distance, the next query
    error = max(probe.apart(here, there), float(along.abs().max()))
    holds = error < probe.EXACT and float(here.abs().max()) > 0
    return Finding(holds, f"(c) + (d) of queries at one distance are equal {probe.within(error)}")


def xl_memory(encoding: Encoding) -> Finding:
    """Two segments through one layer, the second with the first as memory, against one window."""
    half = probe.LENGTH // 2
    kept = copy.deepcopy(encoding)
    kept.memory_length = half
    model = probe.model(kept)
    tokens = torch.arange(2 * half)[None] % 16
    whole, _ = model(tokens)
    _, memory = model(tokens[:, :half])
    after, _ = model(tokens[:, half:], memory)
    error = probe.apart(whole[:, half:], after)
    return Finding(
        error < probe.EXACT, f"segments of {half} equal one window {probe.within(error)}"
    )


def xl_product(encoding: Encoding) -> Finding:
    ours, plain = probe.products(encoding), probe.products(NoPE(encoding.shape))
    return Finding(ours > plain, f"{ours} matrix products, {plain} without an encoding")


def deberta_terms(encoding: Encoding) -> Finding:
    """The three add up, and nothing is left where both contents are nought."""
    assert isinstance(encoding, DeBERTa)
    q, k = probe.contents(encoding)
    distance = torch.arange(probe.LENGTH)
    terms = {"q·k": probe.content(encoding, q, k)}
    keys = _rows(encoding, encoding.key_projection, distance)
    if keys is not None:
        terms["c→p"] = encoding.scale * torch.einsum("bhtd,htsd->bhts", q, keys).tril()
    queries = _rows(encoding, encoding.query_projection, encoding.sign * distance)
    if queries is not None:
        terms["p→c"] = encoding.scale * torch.einsum("bhsd,htsd->bhts", k, queries).tril()
    found = _sum(encoding, q, k, terms)
    nothing = torch.zeros_like(q)
    left = float(probe.logits(encoding, nothing, nothing).abs().max())
    holds = found.holds and len(terms) == 3 and left == 0
    return Finding(holds, f"{found.figure}; without contents {left:.1g} is left")


def deberta_scale(encoding: Encoding) -> Finding:
    d = encoding.shape.head_width
    count = 1 / (encoding.scale**2 * d)
    return Finding(abs(count - 3) < probe.EXACT, f"1/sqrt({count:.4g} d)")


def deberta_sides(encoding: Encoding) -> Finding:
    """Swapping query and key must change the score: the two terms differ."""
    q, k = probe.contents(encoding)
    q, k = (x[:, :, :1].expand_as(x) for x in (q, k))  # one query, one key at every position
    change = probe.apart(probe.logits(encoding, q, k), probe.logits(encoding, k, q))
    figure = f"contents that change places at one distance change the score by {change:.0%}"
    return Finding(change > probe.EXACT, figure)


def _projected(encoding: TransformerXL, distance: Tensor) -> Tensor:
    """r_n W_R from its definition, all sines, then all cosines: [M] -> [H, M, d]."""
    width, heads = encoding.shape.width, encoding.shape.heads
    rate = encoding.base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    phase = distance[:, None] * rate
    r = torch.cat((phase.sin(), phase.cos()), dim=1)
    projected = r @ encoding.projection[probe.last_layer(encoding)]
    return projected.unflatten(-1, (heads, -1)).transpose(0, 1)


def _u_and_v(encoding: TransformerXL) -> tuple[Tensor, Tensor]:
    """u and v of the last layer, [H, d] each; shared ones where the layers share them."""
    return encoding.u[-1], encoding.v[-1]


def _rows(encoding: DeBERTa, projection: Tensor | None, difference: Tensor) -> Tensor | None:
    """P[delta] W by distance: [M] -> [H, T, T, d]; None for a term that is off."""
    if projection is None or encoding.table is None:
        return None
    delta = (difference + encoding.k).clamp(0, 2 * encoding.k - 1)
    rows = encoding.table[delta] @ projection[probe.last_layer(encoding)]
    return probe.relative(rows.unflatten(-1, (encoding.shape.heads, -1)).transpose(0, 1))


def _sum(encoding: Encoding, q: Tensor, k: Tensor, terms: dict[str, Tensor]) -> Finding:
    """Whether terms [B, H, T, T], none of them nought, sum to the score."""
    total = torch.stack(torch.broadcast_tensors(*terms.values())).sum(0)
    error = probe.apart(probe.logits(encoding, q, k), total)
    alive = all(float(term.abs().max()) > 0 for term in terms.values())
    return Finding(
        error < probe.EXACT and alive, f"{' + '.join(terms)} = score {probe.within(error)}"
    )
