"""Two-sided attention is that of encoders in transformers and x-transformers.

The oracles of the causal encodings leave their mask out where an encoding is two-sided.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench.encodings import Encoding, Shape
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias, T5Unscaled
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers.oracle_agreement import Oracle, agrees
from tests.helpers.oracle_modules import (
    Given,
    each_dtype,
    merged,
    randomized,
    shape,
    split,
    widened,
)
from tests.helpers.tolerance import EXACT, SINGLE
from tests.oracles import test_deberta as deberta
from tests.oracles import test_relative as relative
from tests.oracles import test_t5 as t5
from tests.oracles import test_x_transformers as x_transformers

transformers: Any = pytest.importorskip("transformers")
masking: Any = pytest.importorskip("transformers.masking_utils")
modernbert: Any = pytest.importorskip("transformers.models.modernbert.modeling_modernbert")
bert: Any = pytest.importorskip("transformers.models.bert.modeling_bert")
mpnet: Any = pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
roformer: Any = pytest.importorskip("transformers.models.roformer.modeling_roformer")

SHAPE = shape(head_width=4, two_sided=True)
LAYERS = 4
"""Of ModernBERT."""

each_length = pytest.mark.parametrize("length", [1, 2, 7, 128, 300])
each_size = pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16)])


# T5


@each_dtype
@pytest.mark.parametrize("length", [3, 5001])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 256), (8, 16), (8, 50), (16, 100), (64, 512)]
)
def test_t5_buckets(buckets: int, max_distance: int, length: int, dtype: torch.dtype) -> None:
    """Theirs counts from the query to the key: -n."""
    n = torch.arange(1 - length, length)
    with widened(dtype):
        expected = t5.t5.T5Attention._relative_position_bucket(
            -n, bidirectional=True, num_buckets=buckets, max_distance=max_distance
        )
    encoding = T5Bias(SHAPE, buckets=buckets, max_distance=max_distance)
    assert torch.equal(encoding.bucket(n), expected)


@each_length
@each_dtype
@each_size
def test_t5_is_the_encoders(
    buckets: int, max_distance: int, dtype: torch.dtype, length: int
) -> None:
    encoding = T5Unscaled(SHAPE, buckets=buckets, max_distance=max_distance)
    randomized(encoding, dtype)
    agrees(encoding, t5.attention(encoding), length, length, dtype)


def _mpnet(encoding: T5Bias) -> Oracle:
    """T5's bias under 1/sqrt(d). It knows no other sizes than 32 and 128."""
    config = transformers.MPNetConfig(
        hidden_size=encoding.shape.width, num_attention_heads=encoding.shape.heads
    )
    module = mpnet.MPNetSelfAttention(config).eval()
    encoder = types.SimpleNamespace(
        relative_position_bucket=mpnet.MPNetEncoder.relative_position_bucket,
        relative_attention_bias=lambda bucket: F.embedding(bucket, encoding.bias.T),
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module.q, module.k, module.v = (Given(merged(x)) for x in (q, k, v))
        module.o = nn.Identity()
        bias = mpnet.MPNetEncoder.compute_position_bias(encoder, merged(q))
        return split(module(merged(q), position_bias=bias)[0], like=q)

    return attend


@each_length
@each_dtype
def test_t5_is_mpnets(dtype: torch.dtype, length: int) -> None:
    encoding = T5Bias(SHAPE)
    randomized(encoding, dtype)
    agrees(encoding, _mpnet(encoding), length, length, dtype)


@each_length
@each_dtype
@each_size
def test_t5_is_x_transformers(
    buckets: int, max_distance: int, dtype: torch.dtype, length: int
) -> None:
    encoding = T5Bias(SHAPE, buckets=buckets, max_distance=max_distance)
    randomized(encoding, dtype)
    bias = x_transformers.theirs.RelativePositionBias(
        scale=1, causal=False, num_buckets=buckets, max_distance=max_distance, heads=2
    )
    weights = {"relative_attention_bias.weight": encoding.bias.T}
    oracle = x_transformers.biased(encoding, bias, lambda: weights)
    agrees(encoding, oracle, length, length, dtype)


# DeBERTa


@pytest.mark.parametrize(
    ("terms", "k", "length"),
    [
        *(("c2p+p2c", 3, length) for length in (1, 2, 7, 128)),
        ("c2p", 3, 128),
        ("p2c", 3, 128),
        ("none", 3, 128),
        ("c2p+p2c", 1, 7),
        ("c2p+p2c", 128, 128),
        ("c2p+p2c", 128, 300),
    ],
)
@each_dtype
@deberta.each_version
def test_deberta(version: str, dtype: torch.dtype, terms: str, k: int, length: int) -> None:
    """Rows of both halves of the table; the first from n = -k on, the last from k - 1 on."""
    c2p, p2c = "c2p" in terms, "p2c" in terms
    encoding = DeBERTa(SHAPE, k=k, c2p=c2p, p2c=p2c, p2c_index="code")
    randomized(encoding, dtype)
    agrees(encoding, deberta.attention(version, encoding), length, length, dtype)


@deberta.each_version
@each_dtype
@pytest.mark.parametrize("length", [1, 2, 7, 128])
def test_debertas_paper_reads_the_mirrored_row(
    version: str, dtype: torch.dtype, length: int
) -> None:
    """Q^r's row k - n where the oracle reads k + n: within the |n| < k that both hold."""
    k = 128
    encoding = DeBERTa(SHAPE, k=k, c2p=False, p2c_index="paper")
    randomized(encoding, dtype)
    assert encoding.table is not None
    mirrored = encoding.table[[0, *range(2 * k - 1, 0, -1)]]
    agrees(encoding, deberta.attention(version, encoding, mirrored), length, length, dtype)


# Transformer-XL


@each_length
@each_dtype
@pytest.mark.parametrize("untie", [False, True], ids=["tied", "untied"])
def test_transformer_xl_is_xlnet(untie: bool, dtype: torch.dtype, length: int) -> None:
    encoding = TransformerXL(SHAPE, untie=untie)
    randomized(encoding, dtype)
    agrees(encoding, relative.by_xlnet(encoding), length, length, dtype)


@each_length
@each_dtype
@pytest.mark.parametrize("family", ["Wav2Vec2Conformer", "Wav2Vec2Bert"])
def test_transformer_xl_is_conformer(family: str, dtype: torch.dtype, length: int) -> None:
    encoding = TransformerXL(SHAPE, untie=True)
    randomized(encoding, dtype)
    agrees(encoding, relative.by_conformer(encoding, family), length, length, dtype)


# Shaw


@each_length
@each_dtype
@pytest.mark.parametrize("k", [1, 3, 16])
@pytest.mark.parametrize("oracle", [relative.by_wav2vec2_bert, relative.by_speecht5])
def test_shaw_on_keys(
    oracle: Callable[[Shaw], Oracle], k: int, dtype: torch.dtype, length: int
) -> None:
    encoding = Shaw(SHAPE, k=k, values=False)
    randomized(encoding, dtype)
    agrees(encoding, oracle(encoding), length, length, dtype)


# ALiBi


@each_length
@each_dtype
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_alibi_is_x_transformers(heads: int, dtype: torch.dtype, length: int) -> None:
    encoding = ALiBi(shape(heads, head_width=4, two_sided=True))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = x_transformers.theirs.AlibiPositionalBias(heads)
        return x_transformers.biased(encoding, bias, dict)(q, k, v)

    agrees(encoding, attend, length, length, dtype)


# Rotations


def _sines_and_cosines(length: int, width: int) -> Tensor:
    """[T, d]: all sines, then all cosines."""
    c = torch.arange(width // 2, dtype=torch.float64)
    angles = torch.arange(length)[:, None] / 10_000 ** (2 * c / width)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def test_roformers_table() -> None:
    """Which it keeps in float32, whatever the model's dtype."""
    table = roformer.RoFormerSinusoidalPositionalEmbedding(1536, 8).create_weight()
    expected = _sines_and_cosines(1536, 8).float()
    torch.testing.assert_close(table, expected, rtol=SINGLE, atol=SINGLE)


@each_length
@each_dtype
def test_rope_is_roformers(dtype: torch.dtype, length: int) -> None:
    shape_ = shape(head_width=8, two_sided=True)
    encoding = RoPE(shape_, layout="interleaved")
    config = transformers.RoFormerConfig(
        hidden_size=shape_.width, num_attention_heads=shape_.heads, rotary_value=False
    )
    module = roformer.RoFormerSelfAttention(config).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module.query, module.key, module.value = (Given(merged(x)) for x in (q, k, v))
        table = _sines_and_cosines(length, shape_.head_width).to(q.dtype)[None, None]
        return split(module(merged(q), sinusoidal_pos=table)[0], like=q)

    agrees(encoding, attend, length, length, dtype)


def _modernbert(layer: int) -> Oracle:
    """With transformers' own mask."""
    config = transformers.ModernBertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=LAYERS, local_attention=10
    )
    config._attn_implementation = "eager"
    module = modernbert.ModernBertAttention(config, layer_idx=layer).eval()
    module.Wo = nn.Identity()
    kind = config.layer_types[layer]
    with widened(torch.float64):  # its float32 angles are rounded at large distances
        angles = modernbert.ModernBertRotaryEmbedding(config)(
            torch.zeros(1), torch.arange(300)[None], kind
        )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        module.Wqkv = Given(torch.cat([merged(x) for x in (q, k, v)], dim=-1))
        turns = tuple(x[:, :length].to(q.dtype) for x in angles)
        reach = config.sliding_window if kind == "sliding_attention" else length
        return split(module(merged(q), turns, within(reach, length, q.dtype))[0], like=q)

    return attend


def within(reach: int, length: int, dtype: torch.dtype) -> Tensor:
    """transformers' |n| <= reach, as what is added to logits; [1, 1, T, T]."""
    sees = masking.sliding_window_bidirectional_overlay(reach)
    i = torch.arange(length)
    logits = torch.zeros(1, 1, length, length, dtype=dtype)
    return logits.masked_fill(~sees(0, 0, i[:, None], i), torch.finfo(dtype).min)


@each_length
@each_dtype
@pytest.mark.parametrize("layer", range(LAYERS))
def test_local_and_global_layers_are_modernberts(
    layer: int, dtype: torch.dtype, length: int
) -> None:
    """Every third is global, with another base. The others see 5 keys to both sides: |n| < 6."""
    pattern = Pattern(
        Shape(16, 2, LAYERS, two_sided=True),
        ["global", "local", "local"],
        {"local": RoPE, "global": lambda shape: RoPE(shape, base=160_000.0)},
        windows={"local": 6},
    )
    encoding, number = pattern.at(layer)
    agrees(encoding, _modernbert(layer), length, length, dtype, layer=number)


# Windows


def _masked_mpnet(encoding: Encoding, reach: int) -> Oracle:
    """Without its bias, under transformers' mask."""
    config = transformers.MPNetConfig(
        hidden_size=encoding.shape.width, num_attention_heads=encoding.shape.heads
    )
    module = mpnet.MPNetSelfAttention(config).eval()
    module.o = nn.Identity()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module.q, module.k, module.v = (Given(merged(x)) for x in (q, k, v))
        return split(module(merged(q), within(reach, q.shape[2], q.dtype))[0], like=q)

    return attend


@each_length
@each_dtype
@pytest.mark.parametrize("window", [1, 2, 65])
def test_a_window_holds_the_distances_below_it(
    window: int, dtype: torch.dtype, length: int
) -> None:
    """Theirs are inclusive: |n| < w is |n| <= w - 1."""
    encoding = NoPE(SHAPE)
    encoding.window = window
    agrees(encoding, _masked_mpnet(encoding, window - 1), length, length, dtype)


# Learned positions


@pytest.mark.parametrize("length", [1, 7, 64])
def test_learned_positions_are_berts(length: int) -> None:
    """Of BertEmbeddings without its token types and norm; their gradients, too."""
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=SHAPE.width, max_position_embeddings=64, hidden_dropout_prob=0.0
    )
    theirs = bert.BertEmbeddings(config).double()
    theirs.LayerNorm = nn.Identity()
    nn.init.zeros_(theirs.token_type_embeddings.weight)
    ours = Learned(SHAPE, 64).double()
    with torch.no_grad():
        ours.table.copy_(theirs.position_embeddings.weight)
    ids = torch.randint(11, (2, length), generator=torch.Generator().manual_seed(0))
    expected = theirs(ids)
    actual = ours.embed(theirs.word_embeddings(ids), torch.arange(length))
    torch.testing.assert_close(actual, expected, rtol=EXACT, atol=EXACT)
    gradients = [
        torch.autograd.grad(out.square().sum(), table)[0]
        for out, table in ((actual, ours.table), (expected, theirs.position_embeddings.weight))
    ]
    torch.testing.assert_close(*gradients, rtol=EXACT, atol=EXACT)
