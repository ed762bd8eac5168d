"""No position against torch's own attentions; positions added to the input against embeddings.

Of transformers' sinusoids Marian's (also RoFormer's, Informer's, TrOCR's ...) has the paper's
angles 10000^(-2k/D), all sines first; SpeechT5's has them interleaved, as the paper prints them
and posbench adds them. Whisper's and fairseq's (Speech2Text, FSMT, M2M-100 ...) are
tensor2tensor's: sines first, and 10000^(-k/(D/2 - 1)), which is the paper's with another base.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.sinusoidal import Sinusoidal
from tests.helpers.cases import assert_same, with_gradients
from tests.helpers.oracle_agreement import agrees, each_square, unseen, with_memory
from tests.helpers.oracle_modules import (
    LENGTHS,
    TOLERANCE,
    each_dtype,
    each_length,
    merged,
    randomized,
    shape,
    split,
    widened,
)

transformers: Any = pytest.importorskip("transformers")
gpt2: Any = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
marian: Any = pytest.importorskip("transformers.models.marian.modeling_marian")
speech_to_text: Any = pytest.importorskip(
    "transformers.models.speech_to_text.modeling_speech_to_text"
)
speecht5: Any = pytest.importorskip("transformers.models.speecht5.modeling_speecht5")
whisper: Any = pytest.importorskip("transformers.models.whisper.modeling_whisper")
x_transformers: Any = pytest.importorskip("x_transformers.x_transformers")


@each_square
@each_dtype
def test_nope_is_scaled_dot_product_attention(dtype: torch.dtype, queries: int, keys: int) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    agrees(NoPE(shape()), attend, queries, keys, dtype)


@with_memory
@each_dtype
def test_nope_with_memory(dtype: torch.dtype, queries: int, keys: int) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = causal_lower_right(queries, keys)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    agrees(NoPE(shape()), attend, queries, keys, dtype)


@with_memory
@each_dtype
@pytest.mark.parametrize("heads", [1, 3])
def test_nope_is_multihead_attention(
    heads: int, dtype: torch.dtype, queries: int, keys: int
) -> None:
    """Its projections are the identity."""
    width = shape(heads).width
    module = nn.MultiheadAttention(width, heads, bias=False, batch_first=True, dtype=dtype)
    eye = torch.eye(width, dtype=dtype)
    weights = {"in_proj_weight": eye.repeat(3, 1), "out_proj.weight": eye}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inputs = tuple(merged(each) for each in (q, k, v))
        mask = {"attn_mask": unseen(queries, keys)}
        return split(functional_call(module, weights, inputs, mask)[0], like=q)

    agrees(NoPE(shape(heads)), attend, queries, keys, dtype)


def _sines_first(sinusoid: Tensor) -> Tensor:
    """From the paper's order; [..., D]."""
    return torch.cat((sinusoid[..., 0::2], sinusoid[..., 1::2]), dim=-1)


def _added(encoding: Sinusoidal, length: int) -> Tensor:
    """What the encoding adds at positions 0 .. length-1; float64 [length, D]."""
    nothing = torch.zeros(1, length, encoding.shape.width, dtype=torch.float64)
    return encoding.embed(nothing, torch.arange(length))[0]


@each_length
def test_sinusoid_is_speecht5s(length: int) -> None:
    encoding = Sinusoidal(shape())
    with widened(torch.float64):
        module = speecht5.SpeechT5ScaledPositionalEncoding(0.0, encoding.shape.width).eval()
        x = torch.randn(2, length, encoding.shape.width)
        expected = module(x)
    actual = encoding.embed(x, torch.arange(length))
    assert_same([actual], [expected], 1e-10)


@each_length
def test_sinusoid_is_marians(length: int) -> None:
    """Computed in float64 and rounded to float32."""
    encoding = Sinusoidal(shape())
    module = marian.MarianSinusoidalPositionalEmbedding(length, encoding.shape.width)
    expected = module.create_weight()
    actual = _sines_first(_added(encoding, length)).float()
    assert_same([actual], [expected], 1e-7)


@each_length
def test_sinusoid_is_x_transformers(length: int) -> None:
    """Which scales it by a parameter, D^-0.5 at first."""
    encoding = Sinusoidal(shape())
    with widened(torch.float64):
        module = x_transformers.ScaledSinusoidalEmbedding(encoding.shape.width)
        expected = module(torch.zeros(1, length, 1))
    actual = _sines_first(_added(encoding, length)) * encoding.shape.width**-0.5
    assert_same([actual], [expected], 1e-10)


@each_length
def test_tensor2tensors_sinusoid_has_another_base(length: int) -> None:
    """10000^(-k/(D/2 - 1)) = base^(-2k/D) for base = 10000^(D/(D - 2))."""
    width = shape().width
    actual = _sines_first(_added(Sinusoidal(shape(), base=1e4 ** (width / (width - 2))), length))
    fairseq = speech_to_text.Speech2TextSinusoidalPositionalEmbedding
    with widened(torch.float64):
        expected = [
            whisper.sinusoids(length, width),
            fairseq.get_embedding(length, width),
        ]
    assert_same([actual, actual], expected, 1e-10)


@each_length
@each_dtype
def test_learned_is_an_embedding_table(dtype: torch.dtype, length: int) -> None:
    """GPT-2's positions are a torch.nn.Embedding of this kind."""
    encoding = Learned(shape(), max_length=max(LENGTHS))
    randomized(encoding, dtype)
    x = torch.randn(2, length, encoding.shape.width, dtype=dtype, requires_grad=True)
    positions = torch.arange(length)
    config = transformers.GPT2Config(
        vocab_size=4, n_embd=encoding.shape.width, n_positions=max(LENGTHS), n_layer=0
    )
    module = gpt2.GPT2Model(config).wpe.to(dtype)
    table = functional_call(module, {"weight": encoding.table}, (positions,))
    expected = with_gradients(x + table, encoding, [x])
    actual = with_gradients(encoding.embed(x, positions), encoding, [x])
    assert_same(actual, expected, TOLERANCE[dtype])
