"""Biases, xPos, CoPE and FoX inside x-transformers' own Attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from posbench.encodings import Encoding, Shape
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cable import CABLE
from posbench.encodings.cope import CoPE
from posbench.encodings.fire import FIRE
from posbench.encodings.fox import FoX
from posbench.encodings.nope import NoPE
from posbench.encodings.t5 import T5Bias
from posbench.encodings.xpos import XPos
from tests.helpers.cases import LAYER
from tests.helpers.oracle_agreement import Oracle, agrees, in_float64, last_rows, with_memory
from tests.helpers.oracle_modules import (
    Given,
    each_dtype,
    merged,
    randomized,
    shape,
    split,
    widened,
)

theirs: Any = pytest.importorskip("x_transformers.x_transformers")


def _attention(shape: Shape, **options: Any) -> Any:
    width, causal = shape.head_width, not shape.two_sided
    return theirs.Attention(
        dim=shape.width, dim_head=width, heads=shape.heads, causal=causal, **options
    ).eval()


def _attend(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor | None = None,
    weights: dict[str, Tensor] | None = None,
    **options: Any,
) -> Tensor:
    """module on q, k and v; x stands where it looks at the layer's input."""
    module.to_q, module.to_k, module.to_v = (Given(merged(each)) for each in (q, k, v))
    module.to_out = nn.Identity()
    arguments = (merged(q) if x is None else x,)
    return split(functional_call(module, weights or {}, arguments, options), like=q)


def biased(encoding: Encoding, bias: Any, weights: Callable[[], dict[str, Tensor]]) -> Oracle:
    """Attention(rel_pos=bias)."""
    module = _attention(encoding.shape)
    module.bias = bias  # among its parts, so that functional_call replaces its weights too

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = {f"bias.{name}": value for name, value in weights().items()}
        return _attend(module, q, k, v, weights=own, rel_pos=bias)

    return attend


@with_memory
@each_dtype
@pytest.mark.parametrize("window", [1, 5, 128])
def test_windows(window: int, dtype: torch.dtype, queries: int, keys: int) -> None:
    """max_attend_past is the farthest distance that is seen, window the number of keys."""
    encoding = NoPE(shape(head_width=4))
    encoding.window = window
    module = _attention(encoding.shape, max_attend_past=window - 1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(module, q, k, v)

    agrees(encoding, attend, queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize("heads", [1, 3])
def test_alibi(heads: int, dtype: torch.dtype, queries: int, keys: int) -> None:
    encoding = ALiBi(shape(heads, head_width=4))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return biased(encoding, theirs.AlibiPositionalBias(heads), dict)(q, k, v)

    agrees(encoding, attend, queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16)])
def test_t5(buckets: int, max_distance: int, dtype: torch.dtype, queries: int, keys: int) -> None:
    encoding = T5Bias(shape(head_width=4), buckets=buckets, max_distance=max_distance)
    randomized(encoding, dtype)
    bias = theirs.RelativePositionBias(
        scale=1, causal=True, num_buckets=buckets, max_distance=max_distance, heads=2
    )
    oracle = biased(encoding, bias, lambda: {"relative_attention_bias.weight": encoding.bias.T})
    agrees(encoding, oracle, queries, keys, dtype)


class Dynamic(Encoding):
    """Any learned function of distance will do: here x-transformers' own network."""

    def __init__(self, shape: Shape, log_distance: bool) -> None:
        super().__init__(shape)
        self.network = theirs.DynamicPositionBias(
            16, heads=shape.heads, depth=2, log_distance=log_distance
        )

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        """Of one query at the end of M keys, the nearest key first."""
        with widened(next(self.parameters()).dtype):
            bias: Tensor = self.network(1, len(distance))
        return bias[:, 0].flip(-1)


@with_memory
@each_dtype
@pytest.mark.parametrize("log_distance", [False, True], ids=["linear", "log"])
def test_any_function_of_distance(
    log_distance: bool, dtype: torch.dtype, queries: int, keys: int
) -> None:
    """In float64 beside our float32 too: the last layer's bias moves all logits alike, so its
    gradient is nothing but rounding, theirs and ours."""
    encoding = Dynamic(shape(head_width=4), log_distance)
    randomized(encoding, dtype)

    def own() -> dict[str, Tensor]:
        wanted = torch.get_default_dtype()
        return {name: p.to(wanted) for name, p in encoding.network.named_parameters()}

    oracle = in_float64(biased(encoding, encoding.network, own))
    agrees(encoding, oracle, queries, keys, dtype)


@with_memory
@each_dtype
def test_fire_up_to_its_threshold(dtype: torch.dtype, queries: int, keys: int) -> None:
    """There FIRE is an MLP of ln(1 + n) / ln(1 + L m), at c = 1: the network, with a ReLU."""
    encoding: Any = FIRE(shape(head_width=4), hidden=4, threshold=1000.0)
    randomized(encoding, dtype)
    del encoding.c
    encoding.c = torch.ones(2, dtype=dtype)
    bias = theirs.DynamicPositionBias(4, heads=2, depth=1, log_distance=True)
    bias.mlp[0][-1] = nn.ReLU()

    def weights() -> dict[str, Tensor]:
        most = torch.log1p(1000.0 * encoding.threshold_scale[LAYER]) + 1e-6
        return {
            "mlp.0.0.weight": (encoding.w1[LAYER] / most)[:, None],
            "mlp.0.0.bias": encoding.b1[LAYER],
            "mlp.1.weight": encoding.w2[LAYER].T,
            "mlp.1.bias": encoding.b2[LAYER],
        }

    with torch.no_grad():
        encoding.threshold_scale.abs_().add_(1)
    agrees(encoding, biased(encoding, bias, weights), queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_xpos(layout: str, dtype: torch.dtype, queries: int, keys: int) -> None:
    """Theirs pairs neighbours: for our other layout, the dimensions are put in that order."""
    encoding = XPos(shape(head_width=4), layout=layout)
    module = _attention(encoding.shape)
    width = encoding.shape.head_width
    order = torch.arange(width)
    if layout == "half":
        order = order.unflatten(0, (2, -1)).T.flatten()
    with widened(torch.float64):  # its float32 angles are off by 1e-4 at distance 1000
        rotary = theirs.RotaryEmbedding(width, use_xpos=True).forward_from_seq_len(keys)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(module, q[..., order], k[..., order], v, rotary_pos_emb=rotary)

    agrees(encoding, attend, queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize("positions", [4, 64])
def test_cope(positions: int, dtype: torch.dtype, queries: int, keys: int) -> None:
    """Theirs adds q . e to logits that are divided by sqrt(d) already, and so divides one of the
    two terms; the paper divides both. Hence a table that is divided beforehand."""
    encoding = CoPE(shape(head_width=4), positions=positions)
    randomized(encoding, dtype)
    module = _attention(encoding.shape, use_cope=True, cope_max_pos=positions)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        table = encoding.table[LAYER].T * encoding.shape.head_width**-0.5
        return _attend(module, q, k, v, weights={"attend.cope.pos_emb": table})

    agrees(encoding, attend, queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize(("make", "sign"), [(FoX, 1), (CABLE, -1)], ids=["fox", "cable"])
def test_forgetting(
    make: Callable[[Shape], FoX], sign: int, dtype: torch.dtype, queries: int, keys: int
) -> None:
    """CABLE's -softplus(z) is the logarithm of a forget gate of -z.

    In float64 beside our float32 too: theirs subtracts float32 sums, which pass 800 at length
    1000 and are rounded there to 6e-5.
    """
    encoding = make(shape(head_width=4))
    randomized(encoding, dtype)
    module = _attention(encoding.shape, data_dependent_alibi=True)
    gate = "data_dependent_alibi.to_forget_gates.0"

    def attend(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        weights = {
            f"{gate}.weight": sign * encoding.weight[LAYER].to(x.dtype),
            f"{gate}.bias": sign * encoding.bias[LAYER].to(x.dtype),
        }
        return _attend(module, q, k, v, x, weights)

    agrees(encoding, last_rows(in_float64(attend)), queries, keys, dtype)
