"""The decoder every encoding is measured in: pre-norm, GELU, tied output.

"Memory" is segment memory, as in Transformer-XL.
Shapes: B batch, T tokens, M memory, S = M + T keys, D width, H heads, d head width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posbench.attention import KERNELS, choose
from posbench.attention.fused import takes_dropout
from posbench.attention.precision import precise
from posbench.encodings import Encoding, Shape, Span
from posbench.model.decoder import EnhancedDecoder
from posbench.objectives import DecoderSettings

Memory = Sequence[Tensor]  # the inputs [B, M, D] of each layer, of the segment before

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, the layer's input

TOKEN_SCALE = 2.0  # token embeddings start with size 1/TOKEN_SCALE and enter multiplied by it


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key_value = nn.Linear(shape.width, 2 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(shape.width)
        self.feed_forward_in = nn.Linear(shape.width, feed_forward, bias=False)
        self.feed_forward_out = nn.Linear(feed_forward, shape.width, bias=False)

    def forward(
        self, x: Tensor, past: Tensor | None, attend: Attend, keys: Tensor | None = None
    ) -> Tensor:
        """x [B, T, D], past [B, M, D] or None -> [B, T, D].

        keys [B, T, D], where given, are what is attended to in place of x.
        """
        normed = self.attention_norm(x)
        context = normed if past is None else torch.cat((self.attention_norm(past), normed), 1)
        if keys is not None:
            context = self.attention_norm(keys)
        k, v = self.key_value(context).chunk(2, dim=-1)
        q, k, v = (self._by_head(y) for y in (self.query(normed), k, v))
        x = x + self._drop(self.attention_out(attend(q, k, v, context).transpose(1, 2).flatten(2)))
        hidden = F.gelu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + self._drop(self.feed_forward_out(hidden))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)  # [B, H, T, d]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """A decoder language model around one encoding."""

    def __init__(
        self,
        shape: Shape,
        vocabulary: int,
        encoding: Encoding,
        *,
        feed_forward: int,
        dropout: float = 0.0,
        attention: str = "auto",
        special: int = 0,
        decoder: EnhancedDecoder | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.special = special  # the last ids, which other models of these tokens do not have
        self.shape = shape
        self.dropout = dropout
        self.serving = [encoding.at(layer) for layer in range(shape.layers)]
        self.attention = attention
        self.kernels = [choose(part, attention, None, dropout) for part, _ in self.serving]
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.layers = nn.ModuleList(
            Layer(shape, feed_forward, dropout) for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.encoding = encoding

    def forward(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        hidden: Tensor | None = None,
        keep: int | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """tokens [B, T] -> (final states [B, T, D], the memory for the next segment).

        hidden [B, M], where given, is True where a row must not see its memory. keep: how many
        tokens to remember; None: as many as the encoding does.
        Raises ValueError for a window longer than encoding.max_length.
        """
        spans = self._spans(tokens, memory, hidden)
        x = self.tokens(tokens) * (TOKEN_SCALE * self.shape.width**0.5)
        dtype, x = x.dtype, x.to(precise(x.dtype))
        for part, span in spans.items():
            x = part.embed(x, span.queries)
        x = F.dropout(x.to(dtype), self.dropout, self.training)
        inputs = []
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            inputs.append(x)
            past = None if memory is None else memory[number]
            attend = self._attend(number, spans)
            if number == last and self.decoder is not None:
                positions = torch.arange(x.shape[1], device=x.device)
                x = self.decoder(x, positions, lambda z, c: layer(z, None, attend, c))  # noqa: B023
            else:
                x = layer(x, past, attend)
        return self.norm(x), self._remember(memory, inputs, keep)

    @property
    def max_length(self) -> int | None:
        """The longest window, of the encoding and of the decoder; None: any."""
        parts = (self.encoding, self.decoder)
        limits = [p.max_length for p in parts if p is not None and p.max_length is not None]
        return min(limits, default=None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """PyTorch's hook for .to() and the like: choose the kernels for the new device."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        where, asked = self.tokens.weight.device, self.attention
        self.kernels = [choose(part, asked, where, self.dropout) for part, _ in self.serving]
        return self

    @property
    def kernel(self) -> str:
        """The kernels at work, e.g. "fused", or "fused, reference" where layers differ."""
        return ", ".join(sorted(set(map(self._at_work, range(len(self.kernels))))))

    def _at_work(self, number: int) -> str:
        name, (part, _) = self.kernels[number], self.serving[number]
        if name == "fused" and self.dropout and not takes_dropout(part):
            return "fused (blocked in training, for dropout)"
        return name

    def logits(self, states: Tensor) -> Tensor:
        """states [..., D] -> logits [..., V], by the tied token embedding."""
        return F.linear(states, self.tokens.weight)

    def _spans(
        self, tokens: Tensor, memory: Memory | None, hidden: Tensor | None
    ) -> dict[Encoding, Span]:
        """Each encoding that serves a layer, and its span. Raises ValueError for one too long."""
        length = tokens.shape[1]
        limit = None if self.decoder is None else self.decoder.max_length
        if limit is not None and length > limit:
            raise ValueError(f"the decoder has {limit} positions, not {length}")
        spans: dict[Encoding, Span] = {}
        for number, (part, _) in enumerate(self.serving):
            if part in spans:
                continue
            past = 0 if memory is None else memory[number].shape[1]
            if part.max_length is not None and past + length > part.max_length:
                raise ValueError(
                    f"{type(part).__name__} has {part.max_length} positions, not {past + length}"
                )
            span = Span.window(length, past, tokens.device, two_sided=self.shape.two_sided)
            if hidden is not None and past:
                span = dataclasses.replace(span, hidden=F.pad(hidden[:, -past:], (0, length)))
            spans[part] = part.place(span)
        return spans

    def _attend(self, number: int, spans: Mapping[Encoding, Span]) -> Attend:
        kernel, span = KERNELS[self.kernels[number]], spans[self.serving[number][0]]
        dropout = self.dropout if self.training else 0.0
        return lambda q, k, v, x: kernel(q, k, v, self.encoding, number, span, dropout, x)

    def _remember(
        self, memory: Memory | None, inputs: list[Tensor], asked: int | None
    ) -> list[Tensor]:
        """The memory for the next segment: each layer's last inputs; empty if none keeps any."""
        keep = [part.memory_length if asked is None else asked for part, _ in self.serving]
        if not any(keep):
            return []
        if memory is not None:
            inputs = [torch.cat(pair, 1) for pair in zip(memory, inputs, strict=True)]
        return [
            x[:, x.shape[1] - min(kept, x.shape[1]) :].detach()
            for x, kept in zip(inputs, keep, strict=True)
        ]


def build(
    shape: Shape,
    vocabulary: int,
    make_encoding: Callable[[Shape], Encoding],
    *,
    seed: int,
    feed_forward: int,
    dropout: float = 0.0,
    attention: str = "auto",
    special: int = 0,
    decoder: DecoderSettings | None = None,
) -> Transformer:
    """A model whose weights outside `encoding.` depend on the seed and the shape alone.

    special: how many of the last ids have weights drawn apart, so that all others are those of a
    model without these ids.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_seed_of("encoding", seed))
        encoding = make_encoding(shape)
        torch.default_generator.manual_seed(_seed_of("decoder", seed))
        made = None if decoder is None else EnhancedDecoder(shape, decoder)
        model = Transformer(
            shape,
            vocabulary,
            encoding,
            feed_forward=feed_forward,
            dropout=dropout,
            attention=attention,
            special=special,
            decoder=made,
        )
    initialise(model, torch.Generator().manual_seed(seed))
    return model


def _seed_of(part: str, seed: int) -> int:
    """A seed for the encoding: with the model's own, positions would copy token embeddings."""
    return int.from_bytes(hashlib.sha256(f"{part} {seed}".encode()).digest()[:4])


@torch.no_grad()
def initialise(model: Transformer, generator: torch.Generator) -> None:
    """Every weight outside `encoding.`, in one place.

    Matrices N(0, 1/fan_in), those that write to the residual stream smaller by sqrt(2 N), query
    projections times the encoding's query_gain.

    Token embeddings are of unit size at the input, as Vaswani's sqrt(D) E with E ~ N(0, 1/D), so
    that positions of unit size do not swamp them. But a tied output then starts sure that each
    token repeats: loss 10.0 where a uniform guess over 1,024 has 6.9. Half the size, scaled twice
    as much at the input, starts at 7.6 and trains better.
    """
    depth = (2 * model.shape.layers) ** -0.5
    for name, parameter in model.named_parameters():
        if name.startswith(("encoding.", "decoder.")) or parameter.dim() < 2:
            continue  # norms start as ones and zeros
        std = parameter.shape[1] ** -0.5
        if name.endswith("_out.weight"):
            std *= depth
        elif name.startswith("tokens."):
            std /= TOKEN_SCALE
            apart = torch.Generator().manual_seed(generator.initial_seed() + 1)
            parameter[len(parameter) - model.special :].normal_(std=std, generator=apart)
            parameter[: len(parameter) - model.special].normal_(std=std, generator=generator)
            continue
        parameter.normal_(std=std, generator=generator)
    for layer, (part, _) in zip(model.layers, model.serving, strict=True):
        cast(Layer, layer).query.weight.mul_(part.query_gain)
