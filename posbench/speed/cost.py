"""The least that a pass has to do, by formula: operations, and bytes to and from RAM.

Operations: a multiply-add is 2. Forward they are those of

    q, out, feed-forward    2 (2 D^2 + 2 D F)  for each query
    k, v                    2 (2 D^2)          for each key
    attention               4 D                for each pair of a query and a key that it sees
    logits                  2 D V              for each scored token
    each filled cell        what it computes itself (counted by attention/costs.py), and its use:
        distance_bias, position_bias    H    for each pair, an addition
        decay                           2 H  for each pair, a difference and an addition
        distance_keys, distance_queries, distance_values
            H for each pair, an addition; 2 D for each query and each different vector it meets:
            distances that share a vector, as past a clip, share one product

Only pairs that a query sees count, half of the square where it is causal. Norms, activations,
dropout and softmax are no products and are left out. Training is three times forward.

Bytes: every weight read once as float32; each matrix product and the attention read their inputs
and write their outputs once, in the dtype of activations. Whatever lies between them, masks and
tables too, could be made on the fly. Training is three times that (forward; in backward the
gradients besides) and AdamW, which reads a weight, its gradient and two moments, and writes three.

A model's segment memory adds keys (S > T). B windows, T queries, S keys, H heads, D width,
F feed-forward width, V vocabulary, M distances.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn

from posbench.attention import cells
from posbench.attention.cells import served
from posbench.attention.costs import BY_PAIR, VECTORS, Layer
from posbench.config import ModelConfig
from posbench.model.transformer import Transformer

FLOAT = 4  # bytes
ADAMW = 7  # numbers for each weight
ADDED = {"distance_bias": 1, "position_bias": 1, "decay": 2} | dict.fromkeys(VECTORS, 1)
ALIKE = ("distance_bias", "position_bias", *VECTORS)  # computed once for all windows of a batch


@dataclasses.dataclass(frozen=True)
class Pass:
    """A step of training, or a forward pass of evaluation."""

    training: bool
    windows: int
    length: int  # tokens of a window
    scored: int  # tokens of a window that get logits
    itemsize: int  # bytes of an activation


@dataclasses.dataclass(frozen=True)
class Cost:
    """Operations and bytes of a whole pass."""

    operations: int
    bytes: int


def cost(model: Transformer, config: ModelConfig, one: Pass) -> Cost:
    """The least that one pass of the model, whose sizes are config's, has to do.

    In training every layer has as much segment memory as its encoding keeps, in evaluation none.
    """
    model = _with_random_positions(model).eval()
    memory = None if one.training else 0
    layers = [
        (Layer(each, one.length, "blocked", memory), len(each.layers))  # small, whatever runs
        for each in served(model.encoding)
    ]
    with torch.no_grad():
        operations = _operations(layers, model, config, one)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    moved = FLOAT * parameters + one.itemsize * _numbers(layers, model, config, one)
    if not one.training:
        return Cost(operations, moved)
    return Cost(3 * operations, 3 * moved + ADAMW * FLOAT * parameters)


def _with_random_positions(model: Transformer) -> Transformer:
    """A copy with random positional parameters: no vectors are equal just by initialisation."""
    model = copy.deepcopy(model).cpu()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.encoding.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


def _operations(
    layers: list[tuple[Layer, int]], model: Transformer, config: ModelConfig, one: Pass
) -> int:
    width, inner, vocabulary = config.width, config.feed_forward, len(model.tokens.weight)
    total = one.windows * one.scored * 2 * width * vocabulary
    for layer, count in layers:
        by_query = one.length * 2 * (2 * width**2 + 2 * width * inner)
        products = by_query + layer.keys * 2 * 2 * width**2
        total += count * one.windows * (products + 4 * width * _pairs(layer))
        for cell in cells.CELLS:
            if cells.fills(layer.part, cell):
                total += (1 if cell == "embed" else count) * _cell(cell, layer, one.windows)
    return total


def _cell(cell: str, layer: Layer, windows: int) -> int:
    """What a cell adds to one layer, over all windows."""
    pairs, shape = _pairs(layer), layer.part.shape
    share = pairs / (layer.length * layer.keys) if cell in BY_PAIR else 1
    made = share * layer.making(cell) * (1 if cell in ALIKE else windows)
    added = ADDED.get(cell, 0) * shape.heads * pairs
    products = 2 * shape.width * _meetings(cell, layer) if cell in VECTORS else 0
    return round(made) + windows * (added + products)


def _seen(layer: Layer) -> Tensor:
    """How many keys each query sees, [T]."""
    return layer.span.seen(layer.part.window)[0]


def _pairs(layer: Layer) -> int:
    """How many pairs of a query and a key that it sees there are, for one head."""
    return int(_seen(layer).sum())


def _meetings(cell: str, layer: Layer) -> int:
    """Pairs of a query and a vector by distance; equal neighbouring vectors count once."""
    vectors = getattr(layer.part, cell)(layer.span.distances, 0)  # [H, M, d]
    changes = (vectors[:, 1:] != vectors[:, :-1]).any(-1).any(0)
    firsts = torch.cat((torch.zeros(1, dtype=torch.long), 1 + changes.nonzero()[:, 0]))
    return int(torch.searchsorted(firsts, _seen(layer)).sum())


def _numbers(
    layers: list[tuple[Layer, int]], model: Transformer, config: ModelConfig, one: Pass
) -> int:
    """How many activations (numbers, not bytes) are read and written."""
    width, inner, vocabulary = config.width, config.feed_forward, len(model.tokens.weight)
    embedded, scored = one.length * width, one.scored * (width + vocabulary)
    total = one.windows * (embedded + scored)
    for layer, count in layers:
        # A query's q, attention, out and feed-forward; a key's k and v, made and attended to.
        each = one.length * (8 * width + 2 * inner) + layer.keys * 5 * width
        total += count * one.windows * each
    return total
