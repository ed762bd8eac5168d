"""What position does to attention, measured in an untrained model.

"Memory" is a model's segment memory. Shapes: B windows, H heads, T queries, S keys, C last
queries of a window, d head width.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from posbench.attention import KERNELS, cells
from posbench.attention.cells import Served, served
from posbench.config import DescribeCommand
from posbench.encodings import Encoding, Span
from posbench.model import footprint, from_config
from posbench.model.transformer import Layer, Transformer

VOCABULARY = 256
BATCH = 8  # windows
QUERIES = 64  # of a long window only the last 64 are measured, for keys ahead the first 64
COLUMNS = 256  # of the attention weights, computed at a time


@dataclasses.dataclass(frozen=True)
class Picture:
    """Attention in the first layer that an encoding serves.

    curves [H, T], by distance: the bias; or, where `measured`, ln of the mean of attention weight
    times number of visible keys, so that 0 is no preference. matrix [H, t, t]: weights. ahead
    [H, T]: curves of the keys after the query, in a two-sided model.
    """

    served: Served
    curves: Tensor
    measured: bool
    matrix: Tensor
    ahead: Tensor | None = None

    @property
    def layer(self) -> int:
        return self.served.layers[0]

    @property
    def relative(self) -> Tensor:
        """matrix, each query's row divided by the weight of the query's own token: constant along
        diagonals where only distance counts."""
        return self.matrix / self.matrix.diagonal(dim1=1, dim2=2)[..., None]


@dataclasses.dataclass(frozen=True)
class Call:
    """The inputs of one layer's kernel: q [B, H, T, d], k [B, H, S, d], x [B, S, D]."""

    q: Tensor
    k: Tensor
    x: Tensor


@torch.no_grad()
def pictures(config: DescribeCommand) -> list[Picture]:
    """A Picture for each encoding in the configuration's model. Raises UserError."""
    model = (
        from_config.model(config, VOCABULARY).double().eval()
    )  # float64: weights down to e^-700
    if config.describe.alike:
        _project_alike(model)
    length, parts = config.describe.length, served(model.encoding)
    footprint.require_pass(
        f"describe.length={length}", BATCH * length, config.model, torch.float64
    )
    layers = [each.layers[0] for each in parts]
    long = _calls(model, _tokens(config, length), layers)
    short = _calls(model, _tokens(config, min(config.describe.matrix, length)), layers)
    drawn = []
    for each, layer in zip(parts, layers, strict=True):
        measured = not _only_bias(each)
        curves, *ahead = (
            _curves(model, each, long[layer], sign) if measured else _bias(each, length, sign)
            for sign in ((1, -1) if model.shape.two_sided else (1,))
        )
        matrix = weights(model, layer, short[layer]).mean(0)
        drawn.append(Picture(each, curves, measured, matrix, *ahead))
    return drawn


def _only_bias(each: Served) -> bool:
    """Whether the encoding is a bias by distance and nothing else: nothing needs measuring."""
    return (
        each.cells == ["distance_bias"]
        and each.part.window is None
        and not each.part.fills("place")
    )


def _bias(each: Served, length: int, sign: int) -> Tensor:
    bias = each.part.distance_bias(sign * torch.arange(length), 0)
    assert bias is not None
    return bias.double()


def _project_alike(model: Transformer) -> None:
    """Give keys the queries' projection, so that equal tokens get the highest content score."""
    for layer, (part, _) in zip(model.layers, model.serving, strict=True):
        made = cast(Layer, layer)
        made.key_value.weight[: model.shape.width] = made.query.weight / part.query_gain


def _tokens(config: DescribeCommand, length: int) -> Tensor:
    """Tokens [B, T], drawn from config.seed; with describe.alike each row repeats one token."""
    generator = torch.Generator().manual_seed(config.seed)
    if config.describe.alike:
        return torch.randperm(VOCABULARY, generator=generator)[:BATCH, None].expand(-1, length)
    return torch.randint(VOCABULARY, (BATCH, length), generator=generator)


class _Enough(Exception):
    """Ends a forward pass once all wanted layers were recorded."""


def _calls(model: Transformer, tokens: Tensor, layers: Sequence[int]) -> dict[int, Call]:
    """The kernel inputs of the given layers (ascending), from one pass over tokens [B, T]."""
    calls: dict[int, Call] = {}

    def watching(number: int) -> Callable[[Any, Any], Any]:
        def hook(_: Any, inputs: tuple[Any, ...]) -> Any:
            x, past, attend, *keys = inputs

            def noting(q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> Tensor:
                calls[number] = Call(q, k, context)
                if number == layers[-1]:
                    raise _Enough
                return attend(q, k, v, context)

            return x, past, noting, *keys

        return hook

    hooks = [model.layers[n].register_forward_pre_hook(watching(n)) for n in layers]
    with contextlib.suppress(_Enough):
        model(tokens)
    for hook in hooks:
        hook.remove()
    return calls


def weights(model: Transformer, layer: int, call: Call, sign: int = 1) -> Tensor:
    """The attention weights of a layer's last queries [B, H, C, S], from the layer's own kernel;
    with sign -1 of its first ones.

    A kernel returns no weights, but its output for one-hot values is a column of them, plus what
    the encoding adds to values. There is no memory.
    """
    part: Encoding = model.serving[layer][0]
    keys = call.k.shape[2]
    first, last = _measured(keys, sign)
    span = part.place(Span.window(keys, two_sided=model.shape.two_sided)).rows(first, last)
    q, kernel = call.q[:, :, first:last], KERNELS[model.kernels[layer]]

    def output(v: Tensor) -> Tensor:
        v = v.expand(*call.k.shape[:2], -1, -1)
        return kernel(q, call.k, v, model.encoding, layer, span, x=call.x)

    # Where something is added to values, these must be of the head's width.
    width = call.k.shape[3] if cells.fills(part, "distance_values") else min(COLUMNS, keys)
    one_hot = torch.eye(keys, keys + -keys % width, dtype=q.dtype)
    added = output(one_hot.new_zeros(keys, width))
    columns = [output(some) - added for some in one_hot.split(width, dim=1)]
    return torch.cat(columns, dim=-1)[..., :keys].clamp(min=0)


def _measured(keys: int, sign: int) -> tuple[int, int]:
    """The first of the queries that are measured, and what follows the last."""
    count = min(keys, QUERIES)
    return (keys - count, keys) if sign > 0 else (0, count)


def _curves(model: Transformer, each: Served, call: Call, sign: int) -> Tensor:
    """[H, S], by distance: ln of the mean of weight times number of visible keys. sign: 1 for the
    keys before the query, -1 for those after it."""
    found = weights(model, each.layers[0], call, sign).mean(0)  # [H, C, S]
    heads, _, keys = found.shape
    first, last = _measured(keys, sign)
    span = Span.window(keys, two_sided=model.shape.two_sided).rows(first, last)
    seen = span.seen(each.part.window)
    distance = sign * (torch.arange(first, last)[:, None] - torch.arange(keys))  # [C, S]
    there = distance >= 0
    total = torch.zeros(heads, keys, dtype=found.dtype)
    total.index_add_(1, distance[there], (found * seen.reshape(-1, 1))[:, there])
    return (total / distance[there].bincount(minlength=keys)).log()
