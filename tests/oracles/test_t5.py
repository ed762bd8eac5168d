"""T5's bias and the whole attention under it are transformers' T5Attention's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from posbench.encodings.t5 import T5Bias, T5Unscaled
from tests.helpers.oracle_modules import (
    Given,
    Oracle,
    assert_agrees,
    causal,
    each_dtype,
    each_length,
    merged,
    randomized,
    shape,
    split,
    widened,
)

transformers: Any = pytest.importorskip("transformers")
t5: Any = pytest.importorskip("transformers.models.t5.modeling_t5")

each_size = pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16)])


def _attention(encoding: T5Bias) -> Any:
    shape = encoding.shape
    config = transformers.T5Config(
        d_model=shape.width,
        d_kv=shape.head_width,
        num_heads=shape.heads,
        is_decoder=not shape.two_sided,
        relative_attention_num_buckets=encoding.buckets,
        relative_attention_max_distance=encoding.max_distance,
    )
    config._attn_implementation = "eager"
    return t5.T5Attention(
        config, has_relative_attention_bias=True, layer_idx=0, is_causal=not shape.two_sided
    ).eval()


def attention(encoding: T5Bias) -> Oracle:
    """Of a decoder; for a two-sided encoding, of an encoder."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module = _attention(encoding)
        module.q, module.k, module.v = (Given(merged(x)) for x in (q, k, v))
        module.o = nn.Identity()
        weights = {"relative_attention_bias.weight": encoding.bias.T}
        arguments = (merged(q), causal(encoding, q))
        return split(functional_call(module, weights, arguments)[0], like=q)

    return attend


@each_dtype
@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [(32, 128), (32, 256), (32, 1024), (8, 16), (8, 64), (4, 50), (16, 100), (64, 512)],
)
def test_buckets(buckets: int, max_distance: int, dtype: torch.dtype) -> None:
    """Not at (10, 160) or (40, 640): some of their edges are integers, which the oracle in float64
    puts a bucket too low, by a rounded logarithm; posbench follows shared/encodings.md exactly.
    """
    distance = torch.arange(5001)
    with widened(dtype):
        expected = t5.T5Attention._relative_position_bucket(
            -distance, bidirectional=False, num_buckets=buckets, max_distance=max_distance
        )
    encoding = T5Bias(shape(), buckets=buckets, max_distance=max_distance)
    assert torch.equal(encoding.bucket(distance), expected)


@each_length
@each_dtype
@each_size
def test_attention(buckets: int, max_distance: int, dtype: torch.dtype, length: int) -> None:
    """Which has no 1/sqrt(d): T5Unscaled's."""
    encoding = T5Unscaled(shape(), buckets=buckets, max_distance=max_distance)
    randomized(encoding, dtype)
    assert_agrees(encoding, attention(encoding), length, dtype)


@pytest.mark.parametrize("length", [7, 128])
@each_dtype
def test_attention_in_a_scaled_model(dtype: torch.dtype, length: int) -> None:
    """T5Bias keeps the 1/sqrt(d), and adds the bias after it."""
    encoding = T5Bias(shape())
    randomized(encoding, dtype)
    gain = math.sqrt(encoding.shape.head_width)
    assert_agrees(encoding, attention(encoding), length, dtype, gain=gain)


def test_initial_size_of_queries_and_bias() -> None:
    """What T5 leaves out of the logits, it takes from the query projection at the start."""
    torch.manual_seed(0)
    sizes = {"d_model": 256, "d_kv": 64, "num_heads": 4, "num_layers": 1, "vocab_size": 8}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_ff=8, relative_attention_num_buckets=1000, **sizes)
    )
    attention = model.decoder.block[0].layer[0].SelfAttention
    encoding = T5Unscaled(shape(heads=4, head_width=64), buckets=1000, max_distance=2000)
    q, k, bias = (
        x.weight.std().item()
        for x in (attention.q, attention.k, attention.relative_attention_bias)
    )
    assert encoding.query_gain == pytest.approx(q / k, rel=0.02)
    assert encoding.bias.std().item() == pytest.approx(bias, rel=0.1)
