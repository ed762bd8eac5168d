"""Relative vectors: Transformer-XL against XLNet and wav2vec2-conformer, Shaw against SpeechT5
and wav2vec2-BERT, in transformers' own modules.

All but XLNet know no memory: they get a causal mask over as many queries as keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from posbench.encodings.shaw import Shaw
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers.cases import LAYER
from tests.helpers.oracle_agreement import (
    Oracle,
    agrees,
    each_square,
    last_rows,
    unseen,
    with_memory,
)
from tests.helpers.oracle_modules import (
    Given,
    causal,
    each_dtype,
    merged,
    randomized,
    shape,
    split,
    widened,
)

transformers: Any = pytest.importorskip("transformers")
xlnet: Any = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
conformer: Any = pytest.importorskip(
    "transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer"
)
speecht5: Any = pytest.importorskip("transformers.models.speecht5.modeling_speecht5")
w2v_bert: Any = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")


def by_xlnet(encoding: TransformerXL) -> Oracle:
    """Two-sided where the encoding is.

    Its sinusoid is concatenated, as ours; its row for distance S is one that nothing reads.
    """
    width, heads = encoding.shape.width, encoding.shape.heads
    direction = "bi" if encoding.shape.two_sided else "uni"
    config = transformers.XLNetConfig(
        vocab_size=4, d_model=width, n_head=heads, n_layer=1, attn_type=direction
    )
    model = xlnet.XLNetModel(config).eval()
    attention = model.layer[0].rel_attn
    attention.forward = attention.rel_attn_core

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        with widened(torch.float64):  # its float32 angles are off by 1e-4 at distance 1000
            sinusoid = model.relative_positional_encoding(queries, keys)
        r = (sinusoid.to(q.dtype) @ encoding.projection[LAYER]).unflatten(-1, (heads, -1))
        mask = None
        if not encoding.shape.two_sided:
            mask = unseen(queries, keys)[:, :, None, None].to(q.dtype)
        owner = LAYER % len(encoding.u)
        weights = {"r_w_bias": encoding.u[owner], "r_r_bias": encoding.v[owner]}
        arguments = (*(x.permute(2, 0, 1, 3) for x in (q, k, v)), r.expand(-1, len(q), -1, -1))
        out = functional_call(attention, weights, arguments, {"attn_mask": mask})
        return out.permute(1, 2, 0, 3)

    return attend


def by_conformer(encoding: TransformerXL, family: str = "Wav2Vec2Conformer") -> Oracle:
    """Two-sided where the encoding is; of one family of models or the other, Wav2Vec2Bert.

    Its sinusoid interleaves sines and cosines, so W_R's rows are put in that order.
    """
    theirs = {"Wav2Vec2Conformer": conformer, "Wav2Vec2Bert": w2v_bert}[family]
    width, heads = encoding.shape.width, encoding.shape.heads
    interleaved = torch.arange(width).unflatten(0, (2, -1)).T.flatten()
    config = getattr(transformers, f"{family}Config")(
        hidden_size=width,
        num_attention_heads=heads,
        position_embeddings_type="relative",
        max_source_positions=1000,
    )
    config._attn_implementation = "eager"
    attention = getattr(theirs, f"{family}SelfAttention")(config).eval()
    with widened(torch.float64):  # see by_xlnet
        sinusoid = getattr(theirs, f"{family}RelPositionalEmbedding")(config)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        owner = LAYER % len(encoding.u)
        attention.linear_q, attention.linear_k = Given(merged(q)), Given(merged(k))
        attention.linear_v, attention.linear_out = Given(merged(v)), nn.Identity()
        weights = {
            "linear_pos.weight": encoding.projection[LAYER][interleaved].T,
            "pos_bias_u": encoding.u[owner],
            "pos_bias_v": encoding.v[owner],
        }
        r = sinusoid(merged(q).double()).to(q.dtype)
        arguments = (merged(q), causal(encoding, q), r)
        return split(functional_call(attention, weights, arguments)[0], like=q)

    return attend


@with_memory
@each_dtype
@pytest.mark.parametrize("untie", [False, True], ids=["tied", "untied"])
def test_transformer_xl_is_xlnet(untie: bool, dtype: torch.dtype, queries: int, keys: int) -> None:
    encoding = TransformerXL(shape(head_width=4), untie=untie)
    randomized(encoding, dtype)
    agrees(encoding, by_xlnet(encoding), queries, keys, dtype)


@each_square
@each_dtype
def test_transformer_xl_is_conformer(dtype: torch.dtype, queries: int, keys: int) -> None:
    encoding = TransformerXL(shape(head_width=4), untie=True)
    randomized(encoding, dtype)
    agrees(encoding, by_conformer(encoding), queries, keys, dtype)


def by_speecht5(encoding: Shaw) -> Oracle:
    """Two-sided where the encoding is.

    Its table runs from distance i - j = -m to m - 1; ours from j - i = -k to k, so m = k + 1.

    The row of -m is read by queries that look more than k keys ahead: that of -k once more.
    """
    module = speecht5.SpeechT5RelativePositionalEncoding(
        encoding.shape.head_width, max_length=encoding.k + 1
    )
    attention = speecht5.SpeechT5Attention(encoding.shape.width, encoding.shape.heads).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention.q_proj, attention.k_proj = Given(merged(q)), Given(merged(k))
        attention.v_proj, attention.out_proj = Given(merged(v)), nn.Identity()
        rows = encoding.key_table[LAYER].flip(0)
        weights = {"pe_k.weight": torch.cat((rows[:1], rows))}
        mask = causal(encoding, q)
        out, *_ = attention(
            merged(q),
            attention_mask=None if mask is None else mask.expand(len(q), -1, -1, -1),
            position_bias=functional_call(module, weights, (merged(q),)),
        )
        return split(out, like=q)

    return attend


def by_wav2vec2_bert(encoding: Shaw) -> Oracle:
    """Two-sided where the encoding is. Its rows are ours: clip(j - i, -left, right) + left."""
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=encoding.shape.width,
        num_attention_heads=encoding.shape.heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=encoding.k,
        right_max_position_embeddings=encoding.k,
    )
    config._attn_implementation = "eager"
    attention = w2v_bert.Wav2Vec2BertSelfAttention(config).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention.linear_q, attention.linear_k = Given(merged(q)), Given(merged(k))
        attention.linear_v, attention.linear_out = Given(merged(v)), nn.Identity()
        weights = {"distance_embedding.weight": encoding.key_table[LAYER]}
        arguments = (merged(q), causal(encoding, q))
        return split(functional_call(attention, weights, arguments)[0], like=q)

    return attend


@with_memory
@each_dtype
@pytest.mark.parametrize(
    ("oracle", "k"),
    [(by_speecht5, 0), (by_speecht5, 16), (by_wav2vec2_bert, 16)],
    ids=["speecht5-0", "speecht5-16", "wav2vec2_bert-16"],
)
def test_shaw_on_keys(
    oracle: Callable[[Shaw], Oracle], k: int, dtype: torch.dtype, queries: int, keys: int
) -> None:
    encoding = Shaw(shape(head_width=4), k=k, values=False)
    randomized(encoding, dtype)
    agrees(encoding, last_rows(oracle(encoding)), queries, keys, dtype)
