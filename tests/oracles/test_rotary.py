"""Rotary encodings are those of transformers' LLaMA, GPT-J and GPT-NeoX.

GPT-NeoX turns a fraction of the dimensions (PartialRoPE), GPT-J too if asked; "proportional" is
transformers' name for p-RoPE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posbench.encodings import Encoding
from posbench.encodings.p_rope import PRoPE
from posbench.encodings.partial_rope import PartialRoPE
from posbench.encodings.rope import RoPE
from tests.helpers.oracle_modules import (
    Given,
    Oracle,
    additive,
    assert_agrees,
    each_dtype,
    each_length,
    merged,
    shape,
    split,
)

transformers: Any = pytest.importorskip("transformers")
llama: Any = pytest.importorskip("transformers.models.llama.modeling_llama")
gptj: Any = pytest.importorskip("transformers.models.gptj.modeling_gptj")
neox: Any = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")

LONGEST = 1000
SHAPE = shape(heads=2, head_width=16)
STATED = ("yarn", "llama3")
"""The kinds whose original length has a name of its own."""

Pair = tuple[Encoding, Oracle]


def config(kind: str = "default", base: float = 10_000.0, **more: Any) -> Any:
    """LLaMA's, with these rope_parameters; original_length L is what it was trained at."""
    length = more.pop("original_length", LONGEST)
    parameters = {"original_max_position_embeddings": length} if kind in STATED else {}
    made = transformers.LlamaConfig(
        hidden_size=SHAPE.width,
        num_attention_heads=SHAPE.heads,
        max_position_embeddings=length,
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters, **more},
    )
    made._attn_implementation = "eager"
    return made


def attention(rotary: Callable[[], Any]) -> Oracle:
    """LLaMA's, with the angles of what rotary makes."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module = llama.LlamaAttention(config(), layer_idx=0).eval()
        module.q_proj, module.k_proj, module.v_proj = (Given(merged(x)) for x in (q, k, v))
        return _run(module, "o_proj", rotary(), q)

    return attend


def _llama(**parameters: Any) -> Oracle:
    return attention(lambda: llama.LlamaRotaryEmbedding(config(**parameters)))


def _gptj(rotary_dim: int) -> Oracle:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = transformers.GPTJConfig(
            n_embd=SHAPE.width, n_head=SHAPE.heads, rotary_dim=rotary_dim, n_positions=LONGEST
        )
        made._attn_implementation = "eager"
        module = gptj.GPTJAttention(made, layer_idx=0).eval()
        module.q_proj, module.k_proj, module.v_proj = (Given(merged(x)) for x in (q, k, v))
        return _run(module, "out_proj", gptj.GPTJRotaryEmbedding(made), q)

    return attend


def _neox(fraction: float, base: float = 10_000.0) -> Oracle:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = transformers.GPTNeoXConfig(
            hidden_size=SHAPE.width,
            num_attention_heads=SHAPE.heads,
            rotary_pct=fraction,
            rotary_emb_base=base,
        )
        made._attn_implementation = "eager"
        module = neox.GPTNeoXAttention(made, layer_idx=0).eval()
        module.query_key_value = Given(merged(torch.cat((q, k, v), dim=-1)))
        return _run(module, "dense", neox.GPTNeoXRotaryEmbedding(made), q)

    return attend


def _run(module: Any, projection: str, rotary: Any, q: Tensor) -> Tensor:
    setattr(module, projection, nn.Identity())
    length = q.shape[2]
    angles = rotary(q, torch.arange(length)[None])
    hidden, mask = merged(q), additive(length, q.dtype)
    return split(module(hidden, attention_mask=mask, position_embeddings=angles)[0], like=q)


ROTARY: dict[str, Pair] = {
    "llama": (RoPE(SHAPE), _llama()),
    "llama-500": (RoPE(SHAPE, base=500.0), _llama(base=500.0)),
    "gptj": (RoPE(SHAPE, layout="interleaved"), _gptj(rotary_dim=16)),
    "neox-partial": (PartialRoPE(SHAPE), _neox(fraction=0.25)),
    "neox-partial-500": (PartialRoPE(SHAPE, base=500.0, fraction=0.5), _neox(0.5, base=500.0)),
    "gptj-partial": (PartialRoPE(SHAPE, layout="interleaved"), _gptj(rotary_dim=4)),
    "proportional": (
        PRoPE(SHAPE, fraction=0.6),  # floor(0.6 * 8) = 4 of the 8 pairs
        _llama(kind="proportional", partial_rotary_factor=0.6),
    ),
}


@each_length
@each_dtype
@pytest.mark.parametrize("name", ROTARY)
def test_attention(name: str, dtype: torch.dtype, length: int) -> None:
    assert_agrees(*ROTARY[name], length, dtype)
