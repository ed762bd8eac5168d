"""Gradients piece by piece, those of tables too. Weights are recomputed from the logsumexp, except
for short windows, whose weights were kept (kept.py).

With P the weights, O the output, dX the gradient of X, and delta = sum_d dO O = sum_j P dP:

    dP = dO . (v + V(n))        dS = P (dP - delta)        summed over diagonals for the tables

A row of dS must sum to zero: a direction of a table that softmax ignores has no gradient, and Adam
would turn rounding errors there into full steps. O is rounded to the inputs' dtype, so in bfloat16
delta is computed from P dP; far pieces, if any, get the remainder that makes the sum zero.

Shapes: H heads, B batch, T queries, C queries and K columns of a piece, W distances in it, d head
width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from posbench.attention.forward import far_terms, flash, takes
from posbench.attention.pieces import Piece, Plan
from posbench.attention.precision import precise
from posbench.attention.skew import add_cut, by_column, by_row, cut, unskewed
from posbench.attention.terms import ROWS, Terms, key_blocks, logits, mask

PLAIN = ("q", "k", "v")  # the terms that every encoding has, and the first ones


class Sums:
    """Sums of the gradients of terms, and what a near piece adds to them.

    grad [H, B, T, d] belongs to the same rows of the batch as t and plan. learned: whether
    anything in a mask wants a gradient.
    """

    def __init__(self, t: Terms, grad: Tensor, plan: Plan, learned: bool) -> None:
        self.t, self.grad, self.plan, self.learned = t, grad, plan, learned
        self.exact = t.exact()
        given = {name: x for name, x in self.exact._asdict().items() if x is not None}
        self.sums = {name: torch.zeros_like(x) for name, x in given.items() if name not in PLAIN}

    def blocks(self) -> Iterable[list[Piece]]:
        """The last first: where it has all keys, gradients of k and v begin with its own."""
        return reversed(list(self.plan.blocks()))

    def by_weight(self, piece: Piece) -> Tensor:
        """dP [H, B, C, K]."""
        t = self.exact
        grad = self.grad[:, :, piece.rows].to(t.v.dtype)
        dp = grad @ t.v[:, :, piece.columns].mT
        if t.values is not None:
            values = cut(t.values, self.plan.lowest, piece.distance, piece.diagonals)[:, None]
            dp += by_row(grad @ values.mT, piece.height, piece.width)
        return dp

    def near(self, piece: Piece, weights: Tensor, ds: Tensor) -> None:
        """What a piece with its weights written out adds to the sums."""
        t, sums, rows, columns = self.exact, self.sums, piece.rows, piece.columns
        grad = self.grad[:, :, rows].to(weights.dtype)
        if t.values is not None:
            by_distance = (unskewed(weights).mT @ grad).sum(1)
            add_cut(sums["values"], self.plan.lowest, by_distance, piece.distance)
        self.add("v", columns, weights.mT @ grad)
        self.add("q", rows, (ds @ t.k[:, :, columns]).mul_(self.plan.scale))
        self.add("k", columns, ds.mT @ (self.plan.scale * t.q[:, :, rows]))
        if self.learned:
            self._tables(piece, ds)

    def _tables(self, piece: Piece, ds: Tensor) -> None:
        t, sums, rows = self.exact, self.sums, piece.rows
        if t.keys is not None or "bias" in sums:
            # [H, B, C, W]; a bias alone is the same for all of the batch.
            by_distance = unskewed(ds if t.keys is not None else ds.sum(1, keepdim=True))
            if "bias" in sums:
                add_cut(sums["bias"], self.plan.lowest, by_distance.sum((1, 2)), piece.distance)
            if t.keys is not None and t.content_q is not None:
                table = cut(t.keys, self.plan.lowest, piece.distance, piece.diagonals)[:, None]
                sums["content_q"][:, :, rows] += by_distance @ table
                asked = t.content_q[:, :, rows]
                add_cut(
                    sums["keys"], self.plan.lowest, (by_distance.mT @ asked).sum(1), piece.distance
                )
        if t.queries is not None:
            self._by_column(piece, ds)
        if "passed" in sums:
            own = sums["passed"][..., piece.own]
            every = ds.to(own.dtype)  # float64: what is added here and taken there cancels
            own += every.sum(3).flip(-1)
            sums["passed"][..., piece.columns] -= every.sum(2)

    def _by_column(self, piece: Piece, ds: Tensor) -> None:
        """Through k_c . Q(n)."""
        t, sums = self.exact, self.sums
        assert t.queries is not None
        assert t.content_k is not None
        offered = t.content_k[:, :, piece.columns]
        for columns, distance in key_blocks(piece):
            part = ds[..., columns]
            count = piece.height + part.shape[3] - 1
            by_distance = part.new_zeros(*part.shape[:2], part.shape[3], count)
            by_column(by_distance, *part.shape[-2:]).copy_(part)
            table = cut(t.queries, self.plan.lowest, distance, count)[:, None]
            sums["content_k"][:, :, piece.columns][:, :, columns] += by_distance @ table
            by_distance = by_distance.mT @ offered[:, :, columns]
            add_cut(sums["queries"], self.plan.lowest, by_distance.sum(1), distance)

    def add(self, name: str, where: slice, part: Tensor) -> None:
        """Add part [H, B, C or K, d] to some rows of a gradient, made of zeros only if need be."""
        whole = getattr(self.exact, name)
        if name not in self.sums:
            if part.shape == whole.shape:
                self.sums[name] = part.to(whole.dtype)
                return
            self.sums[name] = torch.zeros_like(whole)
        self.sums[name][:, :, where] += part


class Gradients(Sums):
    """Gradients from a forward pass's answer: outputs [H, B, T, d] and logsumexps [H, B, T]."""

    def __init__(
        self, t: Terms, answer: tuple[Tensor, Tensor], grad: Tensor, plan: Plan, learned: bool
    ) -> None:
        super().__init__(t, grad, plan, learned)
        self.out, self.total = answer
        self.written = learned or t.values is not None  # weights written out

    def add_all(self) -> dict[str, Tensor]:
        """The gradient of each term there is, by name."""
        for pieces in self.blocks():
            if self.written and not pieces[-1].far:
                self._all_near(pieces)
                continue
            rows = pieces[0].rows
            rest = torch.zeros_like(self.total[:, :, rows])
            weight = torch.ones_like(rest)
            far = [piece for piece in pieces if piece.far]
            for piece in pieces[: len(pieces) - len(far)]:
                if not self.written:
                    self._fixed(piece)
                    continue
                weights, dp = self._weights(piece)
                ds = dp.sub_(self._delta(rows, dp.dtype)[..., None]).mul_(weights)
                self.near(piece, weights, ds)
                rest -= ds.sum(-1)
                weight -= weights.sum(-1)
            for piece, share in zip(far, self._shares(far, rest, weight), strict=True):
                self._far(piece, *share)
        return self.sums

    def _delta(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """The sum over all keys of P dP, [H, B, C]."""
        return (self.grad[:, :, rows].to(dtype) * self.out[:, :, rows]).sum(-1)

    def _shares(
        self, far: list[Piece], rest: Tensor, weight: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """The sums of dS and of P [H, B, C] over each far piece's keys; given: over all far ones.

        Where there are two, the second's are computed and the first has what is left, so that the
        sums of dS over all keys stay zero.
        """
        if len(far) < 2:
            return [(rest, weight)] * len(far)
        _, piece = far
        q, constant, value = far_terms(self.t, piece, self.plan)
        out, total = flash(q, self.t.k, self.t.v, piece, self.plan.scale, None)
        total = total if constant is None else total + constant
        out = out if value is None else out + value
        grad = self.grad[:, :, piece.rows].to(weight.dtype)
        share = (total - self.total[:, :, piece.rows]).exp().to(weight.dtype)
        product = (grad * out).sum(-1) - self._delta(piece.rows, weight.dtype)
        return [(rest - share * product, weight - share), (share * product, share)]

    def _all_near(self, pieces: list[Piece]) -> None:
        """Gradients of a block without a far piece; with several pieces each is computed twice."""
        made = [self._weights(piece) for piece in pieces[:1]]
        others = (self._weights(piece) for piece in pieces[1:])
        sums = [(w.sum(-1), torch.linalg.vecdot(w, dp)) for w, dp in (*made, *others)]
        total, product = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
        delta = (product / total)[..., None]
        for piece in pieces:
            weights, dp = made.pop() if made else self._weights(piece)
            self.near(piece, weights, dp.sub_(delta).mul_(weights))

    def _weights(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """P and dP of a near piece, each [H, B, C, K]."""
        here = mask(self.exact, piece, self.plan)
        total = self.total[:, :, piece.rows, None]
        weights = logits(self.exact, piece, self.plan.scale, here).sub_(total).exp_()
        return weights, self.by_weight(piece)

    def _fixed(self, piece: Piece) -> None:
        """Gradients of a near piece whose mask needs none."""
        here = mask(self.t, piece, self.plan)
        q, out = (x[:, :, piece.rows] for x in (self.t.q, self.out))
        self._add(piece, q, out, self.total[:, :, piece.rows], here)

    def _far(self, piece: Piece, rest: Tensor, weight: Tensor) -> None:
        """Gradients of a far piece: one number shifts a query's logits, one vector all values."""
        sums, rows = self.sums, piece.rows
        assert self.plan.clip is not None
        place = piece.far * self.plan.clip - self.plan.lowest
        q, constant, value = far_terms(self.t, piece, self.plan)
        out, total, grad = (x[:, :, rows] for x in (self.out, self.total, self.grad))
        out = out if value is None else out - value
        total = total if constant is None else total - constant
        dq = self._add(piece, q, out, total, None)
        if "queries" in sums:
            sums["queries"][:, place] += dq.sum((1, 2))
        if "bias" in sums:
            sums["bias"][:, place] += rest.sum((1, 2))
        if self.exact.keys is not None and self.exact.content_q is not None:
            asked = self.exact.content_q[:, :, rows]
            sums["keys"][:, place] += (rest[..., None] * asked).sum((1, 2))
            sums["content_q"][:, :, rows] += (
                rest[..., None] * self.exact.keys[:, None, place, None]
            )
        if "values" in sums:
            sums["values"][:, place] += (weight[..., None] * grad).sum((1, 2))

    def _add(
        self, piece: Piece, q: Tensor, out: Tensor, total: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Add the gradients of plain attention to the sums; that of q is returned, too."""
        grad = self.grad[:, :, piece.rows]
        k, v = (x[:, :, piece.columns] for x in (self.t.k, self.t.v))
        dq, dk, dv = flash_backward(grad, q, k, v, out, total, self.plan.scale, mask)
        self.add("q", piece.rows, dq)
        self.add("k", piece.columns, dk)
        self.add("v", piece.columns, dv)
        return dq


def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    scale: float,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; out and total are of all keys, of which k and v may be a part."""
    if mask is not None:
        mask = mask.expand(*q.shape[:3], -1)
    if takes(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, total, 0.0, False, attn_mask=mask, scale=scale
        )
    exact = precise(q.dtype)
    grad, q, k, v, out = (x.to(exact) for x in (grad, q, k, v, out))
    dots = (scale * q) @ k.mT
    dots = dots if mask is None else dots + mask
    weights = (dots - total[..., None]).exp()
    ds = scale * weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
    return ds @ k, ds.mT @ q, weights.mT @ grad


def returned(
    terms: Terms, wanted: Sequence[bool], parts: Sequence[dict[str, Tensor]]
) -> Iterator[Tensor | None]:
    """The gradient of each term that needs one, joined from parts over rows of the batch."""
    for name, x, want in zip(Terms._fields, terms, wanted, strict=True):
        some = [part[name] for part in parts] if x is not None and want else []
        yield _joined(name, some).to(x.dtype) if x is not None and some else None


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    """A term's gradients: rows of the batch side by side, a table's summed."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, dim=1) if name in ROWS else torch.stack(parts).sum(0)
