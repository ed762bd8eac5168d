"""ALiBi is transformers' BLOOM's and MPT's: slopes, and the causal attention.

Both oracles add m_h j (MPT m_h (j - S + 1)) where the paper has -m_h (i - j): the difference is
one number a row, to which softmax is blind. Their slopes are the authors' at any number of heads,
6 and 12 included.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posbench.encodings.alibi import ALiBi
from tests.helpers.oracle_modules import (
    LENGTHS,
    Given,
    Oracle,
    additive,
    assert_agrees,
    each_dtype,
    each_length,
    future,
    merged,
    randomized,
    shape,
    split,
    widened,
)
from tests.helpers.tolerance import FORMULA, ULPS, relative

transformers: Any = pytest.importorskip("transformers")
bloom: Any = pytest.importorskip("transformers.models.bloom.modeling_bloom")
mpt: Any = pytest.importorskip("transformers.models.mpt.modeling_mpt")


def _slopes(heads: int, dtype: torch.dtype) -> Tensor:
    """posbench's [H], read off the bias at distance 1."""
    return -ALiBi(shape(heads)).distance_bias(torch.tensor([1]), layer=0)[:, 0].to(dtype)


def _bloom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    _, heads, length, head_width = q.shape
    config = transformers.BloomConfig(hidden_size=heads * head_width, n_head=heads)
    module = bloom.BloomAttention(config, layer_idx=0).eval()
    module.query_key_value = Given(merged(torch.cat((q, k, v), dim=-1)))
    module.dense = nn.Identity()
    bias = _bloom_bias(len(q), heads, length, q.dtype)
    nothing = torch.zeros_like(merged(q))
    return split(module(nothing, nothing, bias, additive(length, q.dtype))[0], like=q)


def _bloom_bias(batch: int, heads: int, length: int, dtype: torch.dtype) -> Tensor:
    """[B H, 1, S]"""
    return bloom.build_alibi_tensor(torch.ones(batch, length, dtype=torch.long), heads, dtype)


def _mpt(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """bias [H, 1 or T, S]: MPT's own, unless given."""
    _, heads, length, head_width = q.shape
    config = transformers.MptConfig(d_model=heads * head_width, n_heads=heads)
    module = mpt.MptAttention(config, layer_idx=0).eval()
    module.Wqkv = Given(torch.cat([merged(x) for x in (q, k, v)], dim=-1))
    module.out_proj = nn.Identity()
    if bias is None:
        bias = mpt.build_mpt_alibi_tensor(heads, length).to(q.dtype)
    return split(module(merged(q), bias, attention_mask=future(length))[0], like=q)


ORACLES: dict[str, Oracle] = {"bloom": _bloom, "mpt": _mpt}


@pytest.mark.parametrize("heads", [*range(1, 17), 20, 24, 32, 40])
@each_dtype
def test_slopes(heads: int, dtype: torch.dtype) -> None:
    """Both follow the authors' code off powers of two as well, by different routes."""
    expected = _slopes(heads, dtype)
    with widened(dtype):
        column = _bloom_bias(1, heads, 2, dtype)[:, 0]
        assert torch.equal(column[:, 0], torch.zeros_like(expected))
        limit = ULPS if dtype == torch.float64 else relative(torch.float32, 16)
        torch.testing.assert_close(column[:, 1], expected, rtol=limit, atol=0)
        other = mpt.build_mpt_alibi_tensor(heads, 2)[:, 0]
        torch.testing.assert_close(other[:, 1] - other[:, 0], expected, rtol=limit, atol=0)


@pytest.mark.parametrize("heads", [8, 12, 6])
@pytest.mark.parametrize("name", ORACLES)
def test_the_column_form_differs_by_a_number_a_row(name: str, heads: int) -> None:
    length = 50
    with widened(torch.float64):
        if name == "bloom":
            column = _bloom_bias(1, heads, length, torch.float64)
        else:
            column = mpt.build_mpt_alibi_tensor(heads, length)
    i = torch.arange(length)
    distance = (i[:, None] - i).clamp(min=0)
    ours = ALiBi(shape(heads)).distance_bias(torch.arange(length), layer=0)[:, distance]
    shift = i if name == "bloom" else i - (length - 1)
    m = _slopes(heads, torch.float64)
    expected = (m[:, None] * shift)[..., None].expand_as(ours)
    seen = ~future(length)[0].expand_as(ours)
    torch.testing.assert_close((column - ours)[seen], expected[seen], rtol=FORMULA, atol=FORMULA)


SIZES = [*((heads, n) for heads in (8, 12, 6) for n in LENGTHS if n < 1000), (3, 1000)]


@pytest.mark.parametrize(("heads", "length"), SIZES)
@each_dtype
@pytest.mark.parametrize("name", ORACLES)
def test_attention(name: str, dtype: torch.dtype, heads: int, length: int) -> None:
    assert_agrees(ALiBi(shape(heads, head_width=4)), ORACLES[name], length, dtype)


@each_length
@each_dtype
def test_attention_with_learned_slopes(dtype: torch.dtype, length: int) -> None:
    """The bias is the test's, -m_h (i - j) with m = exp(log_slopes); the attention is MPT's."""
    encoding = ALiBi(shape(3, head_width=4), slopes="learned")
    randomized(encoding, dtype)

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert encoding.log_slopes is not None
        i = torch.arange(length)
        return _mpt(q, k, v, -encoding.log_slopes.exp()[:, None, None] * (i[:, None] - i))

    assert_agrees(encoding, oracle, length, dtype)
