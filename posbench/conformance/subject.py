"""Subject, the encoding under test, with all that a check needs to call it.

Shapes: B batch, H heads, T queries, S keys, D width, d head width.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from posbench.attention import KERNELS, choose
from posbench.config import Config
from posbench.encodings import Encoding, Shape, Span
from posbench.errors import UserError
from posbench.model import footprint, from_config
from posbench.model.transformer import Transformer

VOCABULARY = 64
BATCH = 2
SINGLE_ONLY = ("flex",)  # kernels that sum in float32


class Broken(Exception):
    """Raised by a check that fails; the message says what is wrong, and by how much."""


class NotApplicable(Exception):
    """Raised by a check that does not apply to the encoding; the message says why."""


class Inputs(NamedTuple):
    """q [B, H, T, d], k and v [B, H, S, d], the layer's input x [B, S, D]: N(0, 1)."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(each.detach().to(dtype) for each in self))


@dataclass(frozen=True)
class Subject:
    """A configuration, as `posbench train` would use it."""

    config: Config
    device: torch.device

    @cached_property
    def shape(self) -> Shape:
        return from_config.shape(self.config)

    @property
    def length(self) -> int:
        """The training length."""
        return self.config.train.length

    @property
    def layers(self) -> range:
        return range(self.shape.layers)

    def encoding(self, dtype: torch.dtype = torch.float64) -> Encoding:
        """The encoding with noise on every parameter, so that none is zero or equal to others."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            encoding = from_config.encoding(self.config.encoding, self.shape)
            with torch.no_grad():
                for parameter in encoding.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
            encoding.after_step()
        return encoding.to(self.device, dtype).eval()

    def model(self, seed: int = 1, encoding: dict[str, object] | None = None) -> Transformer:
        """The model as training starts with it; `encoding` replaces the settings under test."""
        config = dataclasses.replace(self.config, seed=seed)
        config.model = dataclasses.replace(config.model, dropout=0.0)
        if encoding is not None:
            config.encoding = dict(encoding)
        return from_config.model(config, VOCABULARY).to(self.device)

    def require_memory(self) -> None:
        """Raise NotEnough where RAM does not suffice for the training step that a check does."""
        train = dataclasses.replace(self.config.train, batch=BATCH)
        size = torch.float32.itemsize
        footprint.require_training(self.model(), self.config.model, train, self.device, size)

    def kernels(
        self, layer: int, encoding: Encoding, dtype: torch.dtype = torch.float64
    ) -> list[str]:
        """The kernels that can serve a layer here, in dtype; the reference first."""
        served = []
        for name in KERNELS:
            if name in SINGLE_ONLY and dtype == torch.float64:
                continue
            try:
                served.append(choose(encoding.at(layer)[0], name, self.device))
            except (ValueError, UserError):  # a cell that it cannot compute, or no CUDA
                continue
        return served

    def inputs(self, queries: int, keys: int, dtype: torch.dtype = torch.float64) -> Inputs:
        """Random inputs; two calls with one size give the same numbers."""
        generator = torch.Generator().manual_seed(queries + 1000 * keys)

        def draw(length: int, *inner: int) -> Tensor:
            size = (BATCH, *inner, length, self.shape.head_width if inner else self.shape.width)
            drawn = torch.randn(size, generator=generator, dtype=torch.float64)
            return drawn.to(self.device, dtype).requires_grad_()

        heads = self.shape.heads
        return Inputs(draw(queries, heads), draw(keys, heads), draw(keys, heads), draw(keys))

    def tokens(self, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(length)
        return torch.randint(VOCABULARY, (BATCH, length), generator=generator).to(self.device)

    def span(self, encoding: Encoding, layer: int, queries: int, keys: int) -> Span:
        """A span of `keys` keys, the last `queries` of them queries, placed by the encoding."""
        part = encoding.at(layer)[0]
        if part.max_length is not None and keys > part.max_length:
            raise NotApplicable(f"a window of {keys} is refused: the longest is {part.max_length}")
        two_sided = self.shape.two_sided
        return part.place(Span.window(queries, keys - queries, self.device, two_sided=two_sided))


def attend(kernel: str, inputs: Inputs, encoding: Encoding, layer: int, span: Span) -> Tensor:
    """One kernel's output [B, H, T, d]."""
    q, k, v, x = inputs
    return KERNELS[kernel](q, k, v, encoding, layer, span, 0.0, x)


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value if that exceeds 1."""
    size = max(1.0, float(expected.detach().abs().max()))
    worst = float((actual.detach().double() - expected.detach().double()).abs().max()) / size
    return worst if worst == worst else float("inf")


def require(worst: float, tolerance: float, what: str) -> None:
    """Raise Broken where a difference exceeds its tolerance, or is no number."""
    if not worst <= tolerance:
        raise Broken(f"{what}: off by {worst:.1e}, allowed {tolerance:.0e}")
