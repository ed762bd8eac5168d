"""The models that compare_peers.py times: posbench's, x-transformers' and transformers'.

Every one is built from a configuration, with random weights: a feed-forward of 4 D with GELU, no
dropout, no cache, output tied to the token embedding. What a library does its own way stands in
NOTES.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench.encodings import Encoding, Shape
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cope import CoPE
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.fox import FoX
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.xpos import XPos
from posbench.model import transformer as models

xt: Any = importlib.import_module("x_transformers")
hf: Any = importlib.import_module("transformers")
hf_t5: Any = importlib.import_module("transformers.models.t5.modeling_t5")

CLIP = 512  # DeBERTa's k: the paper's, or the length if that is less
COPE_POSITIONS = 64


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What every library is asked for."""

    shape: Shape
    vocabulary: int
    length: int


@dataclasses.dataclass(frozen=True)
class Party:
    """A causal language model: tokens [B, T] -> states [B, T, D] -> logits [B, T, V]."""

    name: str
    setting: str
    module: nn.Module
    depth: int  # layers that were built
    states: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over all targets [B, T], in nats."""
        logits = self.logits(self.states(inputs))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


Make = Callable[[Wanted, bool], Party]
"""Whether to take the library's fused attention; AssertionError or ValueError where it refuses."""


OURS: dict[str, Callable[[Shape, int], Encoding]] = {
    "nope": lambda shape, length: NoPE(shape),
    "sinusoidal": lambda shape, length: Sinusoidal(shape),
    "learned": lambda shape, length: Learned(shape, max_length=length),
    "rope": lambda shape, length: RoPE(shape),
    "xpos": lambda shape, length: XPos(shape),
    "alibi": lambda shape, length: ALiBi(shape),
    "t5": lambda shape, length: T5Bias(shape),
    "deberta": lambda shape, length: DeBERTa(shape, k=min(length, CLIP), p2c_index="code"),
    "cope": lambda shape, length: CoPE(shape, positions=COPE_POSITIONS),
    "fox": lambda shape, length: FoX(shape),
}


def posbench(encoding: str, wanted: Wanted) -> Party:
    """As `posbench train` builds it, on the kernel that model.attention=auto chooses."""
    shape = wanted.shape
    model = models.build(
        shape,
        wanted.vocabulary,
        lambda shape: OURS[encoding](shape, wanted.length),
        seed=0,
        feed_forward=4 * shape.width,
    )
    depth = len(model.layers)
    return Party("posbench", model.kernel, model, depth, lambda x: model(x)[0], model.logits)


def _x_transformers(
    wanted: Wanted, fused: bool, *, absolute: dict[str, bool] | None = None, **options: Any
) -> Party:
    """absolute: what the wrapper is told of positions at the input; none unless given."""
    shape = wanted.shape
    decoder = xt.Decoder(
        dim=shape.width,
        depth=shape.layers,
        heads=shape.heads,
        attn_dim_head=shape.head_width,
        attn_flash=fused,
        ff_no_bias=True,
        verbose=False,
        **options,
    )
    model = xt.TransformerWrapper(
        num_tokens=wanted.vocabulary,
        max_seq_len=wanted.length,
        attn_layers=decoder,
        tie_embedding=True,
        **(absolute or {"use_abs_pos_emb": False}),
    )
    states = partial(model, return_embeddings=True)
    setting = f"attn_flash={fused}"
    depth = len(decoder.layers) // 2  # attention and feed-forward are one each
    return Party("x-transformers", setting, model, depth, states, model.to_logits)


def _rotary(wanted: Wanted, fused: bool, **options: Any) -> Party:
    """All of a head turned, as here; theirs turns half of it unless told."""
    width = wanted.shape.head_width
    return _x_transformers(wanted, fused, rotary_pos_emb=True, rotary_emb_dim=width, **options)


def _sizes(wanted: Wanted, fused: bool) -> dict[str, Any]:
    """What every configuration of transformers takes."""
    return {
        "vocab_size": wanted.vocabulary,
        "hidden_size": wanted.shape.width,
        "num_hidden_layers": wanted.shape.layers,
        "num_attention_heads": wanted.shape.heads,
        "use_cache": False,
        "attn_implementation": "sdpa" if fused else "eager",
    }


def _transformers(name: str, model: Any, blocks: nn.ModuleList, scale: float = 1.0) -> Party:
    """scale: of the states before the output, where the library has one."""
    embedding = model.get_input_embeddings().weight

    def logits(states: Tensor) -> Tensor:
        return F.linear(states if scale == 1 else states * scale, embedding)

    setting = model.config._attn_implementation
    return Party(name, setting, model, len(blocks), lambda x: model(x).last_hidden_state, logits)


def _bloom(wanted: Wanted, fused: bool) -> Party:
    model = hf.BloomModel(hf.BloomConfig(**_sizes(wanted, fused)))
    return _transformers("BLOOM", model, model.h)


def _t5(wanted: Wanted, fused: bool) -> Party:
    """The decoder alone: with nothing encoded it skips its cross-attention, removed here."""
    config = hf.T5Config(
        **_sizes(wanted, fused),
        d_kv=wanted.shape.head_width,
        d_ff=4 * wanted.shape.width,
        dropout_rate=0.0,
        feed_forward_proj="gelu",
        is_decoder=True,
        is_encoder_decoder=False,
    )
    model = hf_t5.T5Stack(config)
    for block in model.block:
        del block.layer[1]
    return _transformers("T5 decoder", model, model.block, scale=wanted.shape.width**-0.5)


def _gpt_neox(wanted: Wanted, fused: bool) -> Party:
    config = hf.GPTNeoXConfig(
        **_sizes(wanted, fused),
        intermediate_size=4 * wanted.shape.width,
        max_position_embeddings=wanted.length,
        rotary_pct=1.0,
        attention_bias=False,
        use_parallel_residual=False,
    )
    model = hf.GPTNeoXModel(config)
    return _transformers("GPT-NeoX", model, model.layers)


def _deberta(wanted: Wanted, fused: bool) -> Party:
    """An encoder: its parts are called one by one, because only they take a causal mask."""
    config = hf.DebertaV2Config(
        **_sizes(wanted, fused),
        intermediate_size=4 * wanted.shape.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        position_biased_input=False,
        relative_attention=True,
        max_relative_positions=min(wanted.length, CLIP),
        pos_att_type=["c2p", "p2c"],
        pad_token_id=None,
    )
    model = hf.DebertaV2Model(config)

    def states(tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        embedded = model.embeddings(tokens)
        return model.encoder(embedded, seen, output_hidden_states=False).last_hidden_state

    party = _transformers("DeBERTa-v2", model, model.encoder.layer)
    return dataclasses.replace(party, states=states)


PEERS: dict[str, list[Make]] = {
    "nope": [_x_transformers],
    "sinusoidal": [partial(_x_transformers, absolute={"scaled_sinu_pos_emb": True})],
    "learned": [partial(_x_transformers, absolute={"use_abs_pos_emb": True})],
    "rope": [_rotary, _gpt_neox],
    "xpos": [partial(_rotary, rotary_xpos=True)],
    "alibi": [partial(_x_transformers, alibi_pos_bias=True), _bloom],
    "t5": [partial(_x_transformers, rel_pos_bias=True), _t5],
    "deberta": [_deberta],
    "cope": [partial(_x_transformers, attn_use_cope=True, attn_cope_max_pos=COPE_POSITIONS)],
    "fox": [partial(_x_transformers, attn_data_dependent_alibi=True)],
}

NOTES = {
    "x-transformers": "no biases at all, in norms neither",
    "BLOOM": "a bias on every linear layer, a norm after the embedding",
    "T5 decoder": "RMS norms; cross-attention removed",
    "GPT-NeoX": "biases on the feed-forward; its output, tied here, need not be",
    "DeBERTa-v2": "an encoder under a causal mask, post-norm, a bias on every linear layer",
}


@torch.no_grad()
def check(party: Party, wanted: Wanted) -> None:
    """Raise ValueError unless the party is causal, and of the width and depth wanted."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(wanted.vocabulary, (2, min(wanted.length, 64)), generator=generator)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % wanted.vocabulary
    party.module.eval()
    before, after = party.states(tokens), party.states(other)
    if not torch.allclose(before[:, :-1], after[:, :-1], atol=1e-5):
        raise ValueError(f"{party.name} is not causal: the last token changes earlier states")
    if torch.allclose(before[:, -1], after[:, -1], atol=1e-5):
        raise ValueError(f"{party.name}: the last token does not change its own state")
    if (party.depth, before.shape[-1]) != (wanted.shape.layers, wanted.shape.width):
        raise ValueError(f"{party.name} has {party.depth} layers of width {before.shape[-1]}")
    if party.logits(before).shape != (*tokens.shape, wanted.vocabulary):
        raise ValueError(f"{party.name} does not give {wanted.vocabulary} logits a token")
