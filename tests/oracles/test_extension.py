"""Context extension of a rotary model is transformers': frequencies, and attention under them.

Its "yarn" disagrees with the paper (Peng et al. 2023, equations 17 and 18): between the pairs
that are kept and those that are interpolated it goes linearly in the pair's *number*, from a
rounded number to another, where the paper, shared/encodings.md and posbench go linearly in its
turns. transformers has the paper's rule as "llama3", so that YaRN's frequencies are compared with
that, those of its ramp="code" and its attention factor with "yarn".
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.encodings import Span
from posbench.encodings.extension import NTK, DynamicNTK, Interpolated, YaRN
from tests.helpers.oracle_modules import assert_agrees, each_dtype, each_length, shape, widened
from tests.helpers.tolerance import FORMULA, ULPS, relative
from tests.oracles.test_rotary import SHAPE, Pair, attention, config, llama

rope_utils: Any = pytest.importorskip("transformers.modeling_rope_utils")

WIDE = shape(heads=1, head_width=64)

each_factor = pytest.mark.parametrize("factor", [1.0, 2.0, 7.5, 32.0])
each_base = pytest.mark.parametrize("base", [10_000.0, 500_000.0])
each_original = pytest.mark.parametrize("original", [64, 512, 4096])


def _theirs(kind: str, dtype: torch.dtype, seen: int | None = None, **more: Any) -> Any:
    """The frequencies [d/2] for a window of seen tokens, and the attention factor; d = 64."""
    made = config(kind, **more)
    made.head_dim = WIDE.head_width
    with widened(dtype):
        frequencies, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](made, seq_len=seen)
    assert frequencies.dtype == dtype
    return frequencies, factor


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    limit = FORMULA if expected.dtype == torch.float64 else relative(torch.float32, 16)
    torch.testing.assert_close(actual.to(expected.dtype), expected, rtol=limit, atol=0)


@each_dtype
@each_base
@each_factor
def test_linear_frequencies(factor: float, base: float, dtype: torch.dtype) -> None:
    expected, _ = _theirs("linear", dtype, base=base, factor=factor)
    encoding = Interpolated(WIDE, base, factor=factor, original_length=64)
    _assert_close(encoding.frequencies(Span.window(100)), expected)


@each_dtype
@each_base
@each_factor
@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1000])
def test_dynamic_frequencies(length: int, factor: float, base: float, dtype: torch.dtype) -> None:
    expected, _ = _theirs(
        "dynamic", dtype, seen=length, base=base, factor=factor, original_length=64
    )
    encoding = DynamicNTK(WIDE, base, factor=factor, original_length=64)
    _assert_close(encoding.frequencies(Span.window(length)), expected)


@each_dtype
@each_base
@each_factor
def test_ntk_frequencies(factor: float, base: float, dtype: torch.dtype) -> None:
    """transformers has it as a dynamic factor of 1 at a window of factor * original_length."""
    expected, _ = _theirs(
        "dynamic", dtype, seen=int(64 * factor), base=base, factor=1.0, original_length=64
    )
    encoding = NTK(WIDE, base, factor=factor, original_length=64)
    _assert_close(encoding.frequencies(Span.window(100)), expected)


@each_dtype
@each_base
@each_factor
@each_original
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 32.0), (2.0, 16.0)])
def test_yarn_frequencies(
    alpha: float, beta: float, original: int, factor: float, base: float, dtype: torch.dtype
) -> None:
    expected, _ = _theirs(
        "llama3",
        dtype,
        base=base,
        factor=factor,
        low_freq_factor=alpha,
        high_freq_factor=beta,
        original_length=original,
    )
    encoding = YaRN(WIDE, base, factor=factor, original_length=original, alpha=alpha, beta=beta)
    _assert_close(encoding.frequencies(Span.window(100)), expected)


@each_dtype
@each_base
@each_factor
@each_original
def test_yarn_frequencies_of_the_code(
    original: int, factor: float, base: float, dtype: torch.dtype
) -> None:
    expected, _ = _theirs("yarn", dtype, base=base, factor=factor, original_length=original)
    encoding = YaRN(WIDE, base, factor=factor, original_length=original, ramp="code")
    _assert_close(encoding.frequencies(Span.window(100)), expected)


@each_base
@each_original
def test_yarn_frequencies_where_the_codes_ramp_has_not_begun_or_is_over(
    original: int, base: float
) -> None:
    """And between, where the two disagree, in transformers' "yarn" as here none is faster than
    before or slower than interpolated."""
    encoding = YaRN(WIDE, base, factor=4.0, original_length=original)
    actual = encoding.frequencies(Span.window(100))
    expected, _ = _theirs("yarn", torch.float64, base=base, factor=4.0, original_length=original)
    pair = torch.arange(32)

    def number(turns: float) -> float:
        """Of the pair that turns so often within the original length."""
        return 32 * math.log(original / (2 * math.pi * turns)) / math.log(base)

    kept, interpolated = pair <= math.floor(number(32)), pair >= math.ceil(number(1))
    assert interpolated.any()
    _assert_close(actual[kept | interpolated], expected[kept | interpolated])
    assert not torch.allclose(actual, expected, rtol=1e-3)


@each_factor
@pytest.mark.parametrize("given", [None, 1.5])
def test_yarn_attention_factor(factor: float, given: float | None) -> None:
    _, expected = _theirs(
        "yarn", torch.float64, factor=factor, attention_factor=given, original_length=64
    )
    encoding = YaRN(WIDE, factor=factor, original_length=64, attention_factor=given)
    assert encoding.attention_factor == pytest.approx(expected, rel=ULPS)


def _yarn() -> Any:
    """LLaMA's rotary module with the paper's frequencies and YaRN's attention factor."""
    parts = {"low_freq_factor": 1.0, "high_freq_factor": 32.0}
    rotary = llama.LlamaRotaryEmbedding(config("llama3", factor=4.0, original_length=256, **parts))
    yarn = config("yarn", factor=4.0, original_length=256)
    rotary.attention_scaling = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](yarn)[1]
    return rotary


def _extended(kind: str) -> Any:
    return llama.LlamaRotaryEmbedding(config(kind, factor=4.0, original_length=64))


EXTENDED: dict[str, Pair] = {
    "linear": (
        Interpolated(SHAPE, factor=4.0, original_length=64),
        attention(lambda: _extended("linear")),
    ),
    "dynamic": (
        DynamicNTK(SHAPE, factor=4.0, original_length=64),
        attention(lambda: _extended("dynamic")),
    ),
    "yarn": (YaRN(SHAPE, factor=4.0, original_length=256), attention(_yarn)),
}


@each_length
@each_dtype
@pytest.mark.parametrize("name", EXTENDED)
def test_attention(name: str, dtype: torch.dtype, length: int) -> None:
    """In windows below and above the original length."""
    assert_agrees(*EXTENDED[name], length, dtype)


def test_dynamic_forgets_a_long_window() -> None:
    """As transformers does in the window after."""
    rotary, encoding = _extended("dynamic"), EXTENDED["dynamic"][0]
    assert isinstance(encoding, DynamicNTK)
    for length in (1000, 10, 200):
        rotary(torch.zeros(1), torch.arange(length)[None])
        _assert_close(encoding.frequencies(Span.window(length)), rotary.inv_freq)
