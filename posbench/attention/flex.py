"""FlexAttention, for CUDA: what a logit needs beyond q' . k' is looked up inside the kernel.

The tables are in flex_tables.py; they are float32 at least, whatever the autocast dtype, and their
gradients FlexAttention's own. Which keys a query sees is a block mask, kept by its sizes. Queries
and keys are padded to whole blocks of it: rows past the end made its backward NaN
(pytorch#153799).

It runs compiled: on CUDA as one kernel, on a CPU, for tests, operation by operation. How lengths
stay within the recompile limit is told at `_compiled_for`.

Shapes: B batch, H heads, T queries, S keys, d head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental import _config
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from posbench.attention.blocked import blocked_attention
from posbench.attention.flex_tables import SIDE, Lookup, Tables, whole
from posbench.attention.fused import fused_attention
from posbench.attention.precision import precise, without_autocast
from posbench.encodings import Encoding, Span

NARROWEST = 16  # the least head width of its CUDA kernels
MASKS = 64  # block masks kept


def refused(encoding: Encoding) -> str | None:
    """The cell that this kernel cannot compute, if the encoding fills one.

    FlexAttention returns no weights, which V(n) needs; k . Q(n) needs positions without gaps.
    """
    if encoding.fills("scores"):
        return "scores"
    device = next((parameter.device for parameter in encoding.parameters()), None)
    distance = torch.zeros(1, dtype=torch.long, device=device)
    if encoding.distance_values(distance, 0) is not None:  # a setting may leave it empty
        return "distance_values"
    gaps = encoding.fills("place") and encoding.fills("distance_queries")
    return "place" if gaps else None


@without_autocast
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    layer: int,
    span: Span,
    dropout: float = 0.0,
    x: Tensor | None = None,
) -> Tensor:
    """q [B, H, T, d], k and v [B, H, S, d], un-rotated -> [B, H, T, d].

    On CUDA, where FlexAttention sums in float32, float64 inputs go to the other kernels. Raises
    ValueError for an encoding that FlexAttention cannot serve, and for dropout.
    """
    encoding, layer = encoding.at(layer)
    if (cell := refused(encoding)) is not None:
        name = type(encoding).__name__
        raise ValueError(f"{name} fills the cell `{cell}`: no flex attention")
    if encoding.fills("distance_queries") and not span.consecutive:
        raise ValueError("no flex attention for k . Q(n) at positions with gaps")
    if dropout:
        raise ValueError(f"dropout={dropout}: flex attention cannot drop weights")
    rotated_q, rotated_k = encoding.rotate(q, k, span, layer)
    dtype = torch.promote_types(v.dtype, rotated_q.dtype)
    if q.is_cuda and dtype == torch.float64:
        other = blocked_attention if encoding.fills("position_bias") else fused_attention
        return other(q, k, v, encoding, layer, span, dropout, x)
    rotated = (rotated_q.to(dtype), rotated_k.to(dtype), v.to(dtype))
    tables = Tables(encoding, layer, span, x, precise(dtype))
    return _by_blocks(q, k, rotated, tables, span).to(v.dtype)


def _by_blocks(
    q: Tensor, k: Tensor, rotated: tuple[Tensor, Tensor, Tensor], tables: Tables, span: Span
) -> Tensor:
    """Un-rotated q and k, rotated ones and v -> [B, H, T, d]."""
    rotated_q, rotated_k, v = rotated
    window = tables.encoding.window
    size = tables.rows(q.shape[0]) or q.shape[2]
    blocks = []
    for first in range(0, q.shape[2], size):
        block = span.rows(first, min(first + size, q.shape[2]))
        last = len(block.keys)
        if window is not None and not span.two_sided:
            block = block.last(len(block.queries) + window - 1)
        rows, seen = slice(first, first + size), slice(last - len(block.keys), last)
        own = first if span.two_sided else len(block.keys) - len(block.queries)
        lookup = tables.lookup(q[:, :, rows], k[:, :, seen], block, last, own)
        here = (rotated_q[:, :, rows], rotated_k[:, :, seen], v[:, :, seen])
        pairs = Seen(own, window, len(block.keys) if span.two_sided else None)
        blocks.append(_block(*here, lookup, pairs, tables.encoding.scale))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


class Seen(NamedTuple):
    """Which keys a query sees: own is the number of the first query's own key, keys their count in
    a two-sided model, None in a causal one."""

    own: int
    window: int | None
    keys: int | None


def _block(q: Tensor, k: Tensor, v: Tensor, lookup: Lookup, pairs: Seen, scale: float) -> Tensor:
    """Rotated q [B, H, T, d], k and v [B, H, S, d], of any length -> [B, H, T, d]."""
    width, narrow = v.shape[3], NARROWEST - q.shape[3]
    wide = (F.pad(each, (0, max(0, narrow))) for each in (q, k, v))
    whole_q, whole_k, whole_v = (whole(each, 2) for each in wide)
    sizes = whole_q.shape[2], whole_k.shape[2]
    given = (whole_q, whole_k, whole_v, lookup)
    if torch.compiler.is_compiling():  # it becomes part of what is compiled, which keeps no masks
        attend, mask_of = _attend, block_mask.__wrapped__
    else:
        attend = _compiled_for(*given, scale, pairs.keys is not None)
        mask_of = block_mask
    mask = mask_of(*sizes, pairs, q.device)
    return attend(*given, mask, scale)[:, :, : q.shape[2], :width]


@functools.lru_cache(MASKS)
def block_mask(queries: int, keys: int, pairs: Seen, device: torch.device) -> BlockMask:
    """The mask: query i sees the last `window` keys up to its own, key number own + i; in a
    two-sided model as many after it, of the keys that are there.

    queries and keys are multiples of SIDE. No [T, S] matrix is made.
    """
    reach, there = pairs.window or keys, keys if pairs.keys is None else pairs.keys
    two_sided = pairs.keys is not None
    shift, limit, end = (
        torch.tensor(n, dtype=torch.int32, device=device) for n in (pairs.own, reach, there)
    )

    def past(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        behind = i + shift - j
        return (behind >= 0) & (behind < limit)

    def around(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ((i + shift - j).abs() < limit) & (j < end)

    first = torch.arange(0, queries, SIDE, device=device)[:, None] + pairs.own  # of a block
    last_key = torch.arange(SIDE - 1, keys, SIDE, device=device)
    least = first - last_key  # that any query of a block is behind any key of another
    most = least + 2 * (SIDE - 1)
    lowest = 1 - reach if two_sided else 0
    some = (most >= lowest) & (least < reach) & (last_key - SIDE + 1 < there)
    full = (least >= lowest) & (most < reach) & (last_key < there)
    listed = (*_listed(some & ~full), *_listed(full))
    return BlockMask.from_kv_blocks(
        *listed,
        BLOCK_SIZE=SIDE,
        mask_mod=around if two_sided else past,
        seq_lengths=(queries, keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of a boolean matrix: how many are True, and all indices, True first."""
    where = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], where.int()[None, None]


def _compiled_for(
    q: Tensor, k: Tensor, v: Tensor, lookup: Lookup, scale: float, two_sided: bool
) -> Callable[..., Tensor]:
    """_attend, compiled, with room for what these arguments need.

    PyTorch compiles one code object 8 times at most. Each kind of arguments therefore has its own:
    what there is, its dtype, whether it needs a gradient. In training, which has one size, sizes
    are constants of the kind. In evaluation they vary, but for those of one block, or one row:
    PyTorch takes 1 for a constant.
    """
    training = torch.is_grad_enabled()
    batch, heads, queries, width = q.shape
    sizes: tuple[int, ...] = (batch, queries, k.shape[2])
    if not training:
        sizes = (batch == 1, queries == SIDE, k.shape[2] == SIDE)
    tensors = (None if t is None else (t.dtype, t.requires_grad) for t in (q, k, v, *lookup))
    kind = (*sizes, heads, width, v.shape[3], scale, two_sided, *tensors)
    return _compiled(kind, training, q.is_cuda)


@functools.cache
def _compiled(kind: Hashable, training: bool, fused: bool) -> Callable[..., Tensor]:
    name = f"flex_attention_{_compiled.cache_info().misses}"  # or they share what sizes they saw
    compiled = torch.compile(
        FunctionType(_attend.__code__.replace(co_name=name), globals()),
        fullgraph=True,  # past the limit an error, not a [T, S] matrix
        dynamic=None if training else True,
        backend="inductor" if fused else "eager",
    )

    def attend(*args: object) -> Tensor:
        # sizes that are equal now need not be so at the next length
        with _config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            return compiled(*args)

    return attend


def _attend(
    q: Tensor, k: Tensor, v: Tensor, lookup: Lookup, mask: BlockMask, scale: float
) -> Tensor:
    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return lookup.added(score, b, h, i, j)

    return flex.flex_attention(q, k, v, score_mod, mask, scale)
