"""What position does to attention, measured in the model itself.

B tokens, H heads, T queries, S keys, C of the queries, d head width.
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
from posbench.model.transformer import Attend, Layer, Transformer

VOCABULARY = 256
BATCH = 8  # windows
QUERIES = 64  # of a long window, the last so many
COLUMNS = 256  # of the attention weights at a time


@dataclasses.dataclass(frozen=True)
class Picture:
    """The first layer that an encoding serves.

    curves [H, T], by distance: the bias, or where it is `measured` the logarithm of the mean of
    attention weight times keys in sight, so that 0 is no preference. matrix [H, t, t]: weights.
    """

    served: Served
    curves: Tensor
    measured: bool
    matrix: Tensor

    @property
    def layer(self) -> int:
        return self.served.layers[0]

    @property
    def relative(self) -> Tensor:
        """matrix, each query's row over the weight of its own token: distance alone then gives
        one number a diagonal."""
        return self.matrix / self.matrix.diagonal(dim1=1, dim2=2)[..., None]


@dataclasses.dataclass(frozen=True)
class Call:
    """What one layer hands to its kernel; q [B, H, T, d], k [B, H, S, d], x [B, S, D]."""

    q: Tensor
    k: Tensor
    x: Tensor


@torch.no_grad()
def pictures(config: DescribeCommand) -> list[Picture]:
    """One for each encoding at work in the model of a configuration. Raises UserError."""
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
        bias = _bias(each, length) if _only_bias(each) else None
        curves = _curves(model, each, long[layer]) if bias is None else bias
        matrix = weights(model, layer, short[layer]).mean(0)
        drawn.append(Picture(each, curves, bias is None, matrix))
    return drawn


def _only_bias(each: Served) -> bool:
    """Whether one number for each distance says it all."""
    return (
        each.cells == ["distance_bias"]
        and each.part.window is None
        and not each.part.fills("place")
    )


def _bias(each: Served, length: int) -> Tensor:
    bias = each.part.distance_bias(torch.arange(length), 0)
    assert bias is not None
    return bias.double()


def _project_alike(model: Transformer) -> None:
    """Project keys as queries: they meet their like in full, not by chance."""
    for layer, (part, _) in zip(model.layers, model.serving, strict=True):
        made = cast(Layer, layer)
        made.key_value.weight[: model.shape.width] = made.query.weight / part.query_gain


def _tokens(config: DescribeCommand, length: int) -> Tensor:
    """[B, T], from the seed: at random, or each row one token throughout."""
    generator = torch.Generator().manual_seed(config.seed)
    if config.describe.alike:
        return torch.randperm(VOCABULARY, generator=generator)[:BATCH, None].expand(-1, length)
    return torch.randint(VOCABULARY, (BATCH, length), generator=generator)


class _Enough(Exception):
    """The layers that were asked for have been seen."""


def _calls(model: Transformer, tokens: Tensor, layers: Sequence[int]) -> dict[int, Call]:
    """What each of these layers, in order, hands to its kernel; tokens [B, T]."""
    calls: dict[int, Call] = {}

    def watching(number: int) -> Callable[[Any, Any], Any]:
        def hook(_: Any, inputs: tuple[Tensor, Tensor | None, Attend]) -> Any:
            x, past, attend = inputs

            def noting(q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> Tensor:
                calls[number] = Call(q, k, context)
                if number == layers[-1]:
                    raise _Enough
                return attend(q, k, v, context)

            return x, past, noting

        return hook

    hooks = [model.layers[n].register_forward_pre_hook(watching(n)) for n in layers]
    with contextlib.suppress(_Enough):
        model(tokens)
    for hook in hooks:
        hook.remove()
    return calls


def weights(model: Transformer, layer: int, call: Call) -> Tensor:
    """The attention weights of a layer's last queries [B, H, C, S], from its own kernel.

    A kernel gives no weights, but the output for one-hot values is a column of them, beside
    what the encoding adds to values. Memory is left out.
    """
    part: Encoding = model.serving[layer][0]
    keys = call.k.shape[2]
    first = max(0, keys - QUERIES)
    span = part.place(Span.window(keys)).rows(first, keys)
    q, kernel = call.q[:, :, first:], KERNELS[model.kernels[layer]]

    def output(v: Tensor) -> Tensor:
        v = v.expand(*call.k.shape[:2], -1, -1)
        return kernel(q, call.k, v, model.encoding, layer, span, x=call.x)

    # Where something is added to values, these must be of the head's width.
    width = call.k.shape[3] if cells.fills(part, "distance_values") else min(COLUMNS, keys)
    one_hot = torch.eye(keys, keys + -keys % width, dtype=q.dtype)
    added = output(one_hot.new_zeros(keys, width))
    columns = [output(some) - added for some in one_hot.split(width, dim=1)]
    return torch.cat(columns, dim=-1)[..., :keys].clamp(min=0)


def _curves(model: Transformer, each: Served, call: Call) -> Tensor:
    """[H, S]: ln of the mean of weight times keys in sight, by the tokens from query to key."""
    found = weights(model, each.layers[0], call).mean(0)  # [H, C, S]
    heads, count, keys = found.shape
    seen = Span.window(keys).rows(keys - count, keys).seen(each.part.window)
    distance = torch.arange(keys - count, keys)[:, None] - torch.arange(keys)  # [C, S]
    behind = distance >= 0
    total = torch.zeros(heads, keys, dtype=found.dtype)
    total.index_add_(1, distance[behind], (found * seen.reshape(-1, 1))[:, behind])
    return (total / distance[behind].bincount(minlength=keys)).log()
