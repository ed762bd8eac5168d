"""Windows and mixes by layer, in Mistral's, SmolLM3's and Gemma 3's attentions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posbench.encodings import Shape
from posbench.encodings.nope import NoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.rope import RoPE
from tests.helpers.oracle_agreement import Oracle, agrees, each_square, last_rows, with_memory
from tests.helpers.oracle_modules import Given, each_dtype, merged, split, widened

transformers: Any = pytest.importorskip("transformers")
masking: Any = pytest.importorskip("transformers.masking_utils")
gemma3: Any = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
mistral: Any = pytest.importorskip("transformers.models.mistral.modeling_mistral")
smollm3: Any = pytest.importorskip("transformers.models.smollm3.modeling_smollm3")

SHAPE = Shape(width=16, heads=2, layers=8)


def _config(kind: Any, **more: Any) -> Any:
    config = kind(
        hidden_size=SHAPE.width,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.heads,
        head_dim=SHAPE.head_width,
        num_hidden_layers=SHAPE.layers,
        **more,
    )
    config._attn_implementation = "eager"
    return config


def _oracle(module: Any, rotary: Any, mask: Callable[..., Tensor], *kind: str) -> Oracle:
    """rotary, a class, and mask are the model's, used as its forward does."""
    module.o_proj = nn.Identity()
    with widened(torch.float64):  # its float32 angles are off by 1e-4 at distance 1000
        angles = rotary(module.config)(torch.zeros(1), torch.arange(1000)[None], *kind)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        module.q_proj, module.k_proj, module.v_proj = (Given(merged(x)) for x in (q, k, v))
        hidden, length = merged(q), q.shape[2]
        cos, sin = (x[:, :length].to(q.dtype) for x in angles)
        seen = mask(module.config, hidden, None, None)
        out, *_ = module.eval()(hidden, position_embeddings=(cos, sin), attention_mask=seen)
        return split(out, like=q)

    return last_rows(attend)


@with_memory
@each_dtype
@pytest.mark.parametrize("window", [4, 100])
def test_window_is_mistrals(window: int, dtype: torch.dtype, queries: int, keys: int) -> None:
    encoding = RoPE(SHAPE)
    encoding.window = window
    config = _config(transformers.MistralConfig, sliding_window=window)
    module = mistral.MistralAttention(config, layer_idx=0)
    mask = masking.create_sliding_window_causal_mask
    oracle = _oracle(module, mistral.MistralRotaryEmbedding, mask)
    agrees(encoding, oracle, queries, keys, dtype)


@each_square
@each_dtype
@pytest.mark.parametrize("layer", [2, 3])
def test_every_fourth_layer_without_position_is_smollm3s(
    layer: int, dtype: torch.dtype, queries: int, keys: int
) -> None:
    pattern = Pattern(SHAPE, ["rope", "rope", "rope", "nope"], {"rope": RoPE, "nope": NoPE})
    config = _config(
        transformers.SmolLM3Config, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    module = smollm3.SmolLM3Attention(config, layer_idx=layer)
    oracle = _oracle(module, smollm3.SmolLM3RotaryEmbedding, masking.create_causal_mask)
    encoding, number = pattern.at(layer)
    agrees(encoding, oracle, queries, keys, dtype, layer=number)


@each_square
@each_dtype
@pytest.mark.parametrize("layer", [4, 5])
def test_local_and_global_layers_are_gemma3s(
    layer: int, dtype: torch.dtype, queries: int, keys: int
) -> None:
    """Without its norm of queries and keys. In layer 5 the window and the base are others."""
    pattern = Pattern(
        SHAPE,
        ["local"] * 5 + ["global"],
        {"local": RoPE, "global": lambda shape: RoPE(shape, base=1e6)},
        windows={"local": 20},
    )
    config = _config(
        transformers.Gemma3TextConfig, sliding_window=20, query_pre_attn_scalar=SHAPE.head_width
    )
    module = gemma3.Gemma3Attention(config, layer_idx=layer)
    module.q_norm = module.k_norm = nn.Identity()
    kind = config.layer_types[layer]
    masks = {
        "full_attention": masking.create_causal_mask,
        "sliding_attention": masking.create_sliding_window_causal_mask,
    }
    oracle = _oracle(module, gemma3.Gemma3RotaryEmbedding, masks[kind], kind)
    encoding, number = pattern.at(layer)
    agrees(encoding, oracle, queries, keys, dtype, layer=number)
