"""Encoding, the base class: one method ("cell") for each place where position may enter a decoder.

Every method of Encoding is neutral, so Encoding itself is NoPE (no positional encoding; Haviv et
al. 2022, arXiv 2203.16634). A subclass overrides the narrowest cell that expresses its paper.

With n = i - j >= 0 the distance from query i back to key j, the attention computes

    q', k'     = rotate(q, k)
    logit_ij   = scale * (q'_i . k'_j + q_i . R(n) + k_j . Q(n))
                 + bias(n) + bias(i, j) + sum_(l = j+1 .. i) decay_l
    output_i   = sum_j softmax(scores(logit))_ij (v_j + V(n))

over the keys that query i sees: those at or before i, of these the last `window` if that is set.
In a two-sided model (masked language models) query i sees the keys after it too, at n < 0, all or
those with |n| < window; distances are then given with their sign.

Shapes: B batch, H heads, T queries, S keys, M distances, D width, d head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """What an encoding may know of the model it serves."""

    width: int
    heads: int
    layers: int
    two_sided: bool = False  # whether queries see the keys after them too

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"model.heads={self.heads} must divide model.width={self.width}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclasses.dataclass(frozen=True)
class Span:
    """Which queries look at which keys, by position; a query sees the keys at or before its own,
    in a two-sided model all.

    queries [T] and keys [S] are increasing integers and end at the same position, so the first
    S - T keys are the previous segment's memory. consecutive: no gaps between positions.
    hidden [B, S], where given, is True at keys that a row of the batch must not see. whole: for a
    block cut from a window, the extent of that window; of a two-sided model such a block has all
    keys, and its queries may end before them.
    """

    queries: Tensor
    keys: Tensor
    hidden: Tensor | None = None
    consecutive: bool = True
    whole: int | None = None
    two_sided: bool = False

    @classmethod
    def window(
        cls,
        length: int,
        memory: int = 0,
        device: torch.device | str = "cpu",
        start: int = 0,
        two_sided: bool = False,
    ) -> Span:
        """A span of `length` queries and `memory` earlier keys; the first key is at `start`."""
        keys = torch.arange(start, start + memory + length, device=device)
        return cls(queries=keys[memory:], keys=keys, two_sided=two_sided)

    def rows(self, first: int, last: int) -> Span:
        """The queries first..last-1 (indices, not positions) and the keys they can see."""
        queries, whole = self.queries[first:last], self.extent
        if self.two_sided:
            return dataclasses.replace(self, queries=queries, whole=whole)
        visible = self.keys.shape[0] - self.queries.shape[0] + last
        hidden = None if self.hidden is None else self.hidden[:, :visible]
        return Span(queries, self.keys[:visible], hidden, self.consecutive, whole)

    def last(self, keys: int) -> Span:
        """This span's queries over its last `keys` keys."""
        hidden = None if self.hidden is None else self.hidden[:, -keys:]
        return Span(self.queries, self.keys[-keys:], hidden, self.consecutive, self.extent)

    @property
    def extent(self) -> int:
        """Positions from the first to the last of the whole window, both included."""
        return self.whole or self._far

    @property
    def distances(self) -> Tensor:
        """0, 1, ... up to the largest distance from a query back to a key; [M].

        In a two-sided model from as far below 0 on.
        """
        first = 1 - self._far if self.two_sided else 0
        return torch.arange(first, self._far, device=self.keys.device)

    @property
    def _far(self) -> int:
        if self.consecutive:
            return len(self.keys)
        return int(self.keys[-1] - self.keys[0]) + 1

    def seen(self, window: int | None = None) -> Tensor:
        """How many keys each query sees, its own included; [B or 1, T]."""
        shown = torch.ones_like(self.keys)[None] if self.hidden is None else (~self.hidden).long()
        upto = torch.nn.functional.pad(shown.cumsum(1), (1, 0))  # before key 0, before key 1, ..
        own = self.own
        first = own * 0 if window is None else (own + 1 - window).clamp(min=0)
        last = own + 1
        if self.two_sided:
            end = len(self.keys)
            last = own * 0 + end if window is None else (own + window).clamp(max=end)
        return upto[:, last] - upto[:, first]

    @property
    def own(self) -> Tensor:
        """Each query's own key, by its number; [T]."""
        if self.two_sided:
            return torch.searchsorted(self.keys, self.queries)
        count = len(self.keys)
        return torch.arange(count - len(self.queries), count, device=self.keys.device)


CELLS = (  # the methods in which position may enter
    *("embed", "rotate", "distance_bias", "position_bias", "distance_keys", "distance_queries"),
    *("distance_values", "decay", "scores"),
)


class Encoding(nn.Module):
    """No positional encoding; the base class of all encodings. One instance serves all layers.

    An instance owns every positional parameter of the model, per-layer ones included.
    """

    paper: str = ""
    """The arXiv number of the encoding's paper."""

    formula: str = ""
    """What the encoding adds to the attention, as plain text."""

    memory_length: int = 0
    """How many hidden states of the previous segment each layer sees as extra keys."""

    max_length: int | None = None
    """The longest window that can be encoded; None: any."""

    window: int | None = None
    """How many of the last keys a query sees, its own included; None: all."""

    clip: int | None = None
    """Larger distances get the table entries of this one; None: there is no such distance."""

    query_gain: float = 1.0
    """A factor on the initial query projection, for papers that leave out 1/sqrt(d)."""

    translation_equivariant: bool = True
    """Whether shifting all positions of a window leaves the attention unchanged."""

    directions: str = "causal"
    """Which distances its methods read. "causal": n >= 0 alone, so no two-sided model can have it;
    "both": negative ones too, as published; "both, unpublished": its formula covers them, but it
    was published for decoders alone."""

    def __init_subclass__(cls) -> None:
        """A class that fills a cell says its directions itself: its base's may not be its own."""
        super().__init_subclass__()
        if "directions" not in vars(cls) and any(cell in vars(cls) for cell in CELLS):
            cls.directions = "causal"

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """PyTorch's hook for .to(), .half() and the like: parameters stay at least float32.

        model.bfloat16() would round them and what is computed from them: at distance 4,096
        neighbouring distances become one. Keeping float32 costs little, as the weights are few.
        """

        def cast(x: Tensor) -> Tensor:
            made = fn(x)
            narrow = x.is_floating_point() and made.dtype.itemsize < torch.float32.itemsize
            return x.to(made.device, torch.float32) if narrow else made

        return super()._apply(cast, recurse)  # type: ignore[no-untyped-call]

    @property
    def scale(self) -> float:
        """The factor on all dot products; 1/sqrt(d) unless the paper says otherwise."""
        return self.shape.head_width**-0.5

    def at(self, layer: int) -> tuple[Encoding, int]:
        """The encoding that serves a layer, and the layer's index within it (see pattern.py)."""
        return self, layer

    def place(self, span: Span) -> Span:
        """The positions to use, once for each forward pass."""
        return span

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Input: token embeddings x [B, T, D] at positions [T] -> [B, T, D]."""
        return x

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        """Rotation, or a content bias: q [B, H, T, d], k [B, H, S, d] -> the same shapes.

        A wider dtype than q's, where the numbers need it, is kept.
        """
        return q, k

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor | None:
        """Position->position: integers distance [M] -> logits [H, M], not scaled."""
        return None

    def position_bias(self, span: Span, layer: int) -> Tensor | None:
        """Position->position where distance alone is not enough -> logits [H, T, S]."""
        return None

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor | None:
        """Content->position: vectors R(n), multiplied with un-rotated q; [M] -> [H, M, d]."""
        return None

    def distance_queries(self, distance: Tensor, layer: int) -> Tensor | None:
        """Position->content: vectors Q(n), multiplied with un-rotated k; [M] -> [H, M, d]."""
        return None

    def distance_values(self, distance: Tensor, layer: int) -> Tensor | None:
        """Values: vectors V(n), added to v before the weighted sum; [M] -> [H, M, d]."""
        return None

    def decay(self, x: Tensor, layer: int) -> Tensor | None:
        """A logit term for each token after the key up to the query, from the layer's normed
        input: x [B, S, D] -> [B, H, S]."""
        return None

    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        """Anything else: logits [B, H, T, S] before any mask -> the same shape."""
        return logits

    def after_step(self) -> None:
        """Called after every optimizer step: to move parameters back within their bounds."""

    def fills(self, cell: str) -> bool:
        """Whether this encoding overrides the method called cell."""
        return getattr(type(self), cell) is not getattr(Encoding, cell)
