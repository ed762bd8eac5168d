"""Longer contexts for a trained RoPE model, at evaluation and without parameters.

    Interpolated  positions / s                               (Chen et al. 2023, arXiv 2306.15595)
    NTK           base s^(d/(d-2))                            (bloc97 2023)
    DynamicNTK    base (s l/L - (s - 1))^(d/(d-2)), l > L     (emozilla 2023)
    YaRN          by frequency, and sharper logits            (Peng et al. 2023, arXiv 2309.00071)
    LogNRoPE      logits ln(n)/ln(L), n > L                   (Su 2021)
    Streaming     the last W keys and the first n             (Xiao et al. 2024, arXiv 2309.17453)

s is `factor`, L `original_length`, l the length of the current window. None keeps any state: a
long window does not change how the next, shorter one is computed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.encodings.base import Shape, Span
from posbench.encodings.logn import LogN
from posbench.encodings.rope import RoPE
from posbench.encodings.sinusoid import frequencies


class Extended(RoPE):
    """Base class: RoPE trained at original_length, used at factor times that length."""

    directions = "both, unpublished"

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        *,
        factor: float,
        original_length: int,
    ) -> None:
        super().__init__(shape, base, layout)
        if not factor >= 1:
            raise ValueError(f"extension.factor={factor} must be at least 1")
        if original_length < 1:
            raise ValueError(f"extension.original_length={original_length} must be at least 1")
        self.factor, self.original_length = factor, original_length

    def with_base(self, growth: float, device: torch.device) -> Tensor:
        """The frequencies of base * growth^(d/(d-2)): the lowest falls by growth, exactly."""
        width = self.shape.head_width
        power = width / (width - 2) if width > 2 else 1.0
        return frequencies(width, self.base * growth**power, device)


class Interpolated(Extended):
    """Position interpolation."""

    paper = "2306.15595"
    formula = "positions / s"

    def frequencies(self, span: Span) -> Tensor:
        return super().frequencies(span) / self.factor


class NTK(Extended):
    """A larger base: high frequencies stay, the lowest is interpolated."""

    paper = ""  # bloc97 2023
    formula = "base s^(d/(d-2))"

    def frequencies(self, span: Span) -> Tensor:
        return self.with_base(self.factor, span.keys.device)


class DynamicNTK(Extended):
    """A base that grows with the window; windows of original_length see plain RoPE."""

    paper = ""  # emozilla 2023
    formula = "base (s l/L - (s - 1))^(d/(d-2)), l > L"

    def frequencies(self, span: Span) -> Tensor:
        ratio = max(1.0, span.extent / self.original_length)
        return self.with_base(self.factor * ratio - (self.factor - 1), span.keys.device)


class YaRN(Extended):
    """NTK by parts: pairs that turn often stay, those that turn once or less are interpolated.

    What counts is how often a pair turns within original_length: at alpha turns or fewer its
    frequency is divided by s, at beta or more it is kept. In between, the share that is kept grows
    linearly with the turns in the paper (ramp="paper"), with the index of the pair in the authors'
    code (ramp="code", bounds rounded to whole indices). Queries and keys are multiplied by
    attention_factor, 0.1 ln s + 1 unless given, so logits by its square.
    """

    paper = "2309.00071"
    formula = """
        theta_c (g_c + (1 - g_c) / s), g_c from 0 at alpha turns to 1 at beta;
        q' and k' times 0.1 ln s + 1
    """

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        *,
        factor: float,
        original_length: int,
        alpha: float = 1.0,
        beta: float = 32.0,
        ramp: str = "paper",
        attention_factor: float | None = None,
    ) -> None:
        super().__init__(shape, base, layout, factor=factor, original_length=original_length)
        if not 0 < alpha < beta:
            raise ValueError(f"extension.alpha={alpha} must lie in 0 .. extension.beta={beta}")
        if ramp not in ("paper", "code"):
            raise ValueError(f"extension.ramp={ramp}: choose paper or code")
        if attention_factor is None:
            attention_factor = 0.1 * math.log(factor) + 1
        if not attention_factor > 0:
            raise ValueError(f"extension.attention_factor={attention_factor} must be positive")
        self.alpha, self.beta = alpha, beta
        self.ramp = ramp
        self.attention_factor = attention_factor

    def frequencies(self, span: Span) -> Tensor:
        theta = super().frequencies(span)
        slow = theta / self.factor
        return slow + self._kept(theta) * (theta - slow)

    def _kept(self, theta: Tensor) -> Tensor:
        """The share g_c of each pair's frequency that is kept, 0 .. 1; [d/2]."""
        if self.ramp == "paper":
            turns = self.original_length * theta / (2 * math.pi)
            return ((turns - self.alpha) / (self.beta - self.alpha)).clamp(0, 1)
        first = max(0, math.floor(self._pair(self.beta)))
        last = min(self.shape.head_width - 1, math.ceil(self._pair(self.alpha)))
        number = torch.arange(len(theta), device=theta.device).double()
        return 1 - ((number - first) / max(last - first, 0.001)).clamp(0, 1)

    def _pair(self, turns: float) -> float:
        """The (fractional) index of the pair that turns `turns` times within original_length."""
        period = self.original_length / (turns * 2 * math.pi)
        return self.shape.head_width * math.log(period) / (2 * math.log(self.base))

    def turn(self, x: Tensor, positions: Tensor, theta: Tensor) -> Tensor:
        return super().turn(x, positions, theta) * self.attention_factor


class LogNRoPE(LogN, RoPE):
    """RoPE with logits scaled by ln(n)/ln(original_length) beyond it."""

    paper = ""  # Su 2021
    formula = "logits ln(n)/ln(L), n > L"

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        *,
        original_length: int,
    ) -> None:
        RoPE.__init__(self, shape, base, layout)
        if original_length < 2:
            raise ValueError(f"extension.original_length={original_length} must be at least 2")
        self.length = original_length


class Streaming(RoPE):
    """Streaming attention: the last `recent` keys and the first `sinks`.

    Positions are counted within these keys: the query is never farther from a sink than the two
    numbers together, however long the text.
    """

    paper = "2309.17453"
    formula = "the last W keys and the first n, positions counted within these"
    directions = "causal"

    def __init__(
        self,
        shape: Shape,
        base: float = 10_000.0,
        layout: str = "half",
        *,
        original_length: int,
        sinks: int = 4,
        recent: int | None = None,
    ) -> None:
        super().__init__(shape, base, layout)
        self.recent = original_length - sinks if recent is None else recent
        self.sinks = sinks
        if sinks < 0 or self.recent < 1:
            raise ValueError(
                f"extension.sinks={sinks} and extension.recent={self.recent}: the first must not "
                "be negative, the second at least 1"
            )

    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        index = span.keys - span.keys[0]
        sink = index < self.sinks
        cached = (span.queries - span.keys[0]).clamp(max=self.sinks + self.recent - 1)
        theta = self.frequencies(span)
        near_q = self.turn(q, cached, theta).to(logits.dtype)
        near_k = self.turn(k, index, theta).to(logits.dtype)
        logits = torch.where(sink, self.scale * near_q @ near_k.mT, logits)
        far = span.queries[:, None] - span.keys >= self.recent
        return logits.masked_fill(far & ~sink, -torch.inf)
