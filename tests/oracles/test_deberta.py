"""The disentangled attention is transformers' DeBERTa's and DeBERTa-v2's.

Both are bidirectional: they get a causal mask. DeBERTa-v2 is run without logarithmic buckets,
without shared projections (share_att_key) and without a LayerNorm on the table (which belongs to
its encoder, norm_rel_ebd).

Both read Q^r at delta(i, j), the paper at delta(j, i) (equation 4): p2c_index says which.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from posbench.encodings.deberta import DeBERTa
from tests.helpers.cases import LAYER
from tests.helpers.oracle_modules import (
    Given,
    Oracle,
    assert_agrees,
    each_dtype,
    future,
    merged,
    randomized,
    shape,
    split,
)

transformers: Any = pytest.importorskip("transformers")
v1: Any = pytest.importorskip("transformers.models.deberta.modeling_deberta")
v2: Any = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")

SIZES = [(3, 1), (3, 2), (3, 7), (3, 128), (128, 128)]
"""k and length: beyond the last row, and with most rows in use."""

SHAPE = shape(heads=2, head_width=4)

each_version = pytest.mark.parametrize("version", ["v1", "v2"])


def _module(version: str, encoding: DeBERTa, q: Tensor, k: Tensor, v: Tensor) -> Any:
    config = {"v1": transformers.DebertaConfig, "v2": transformers.DebertaV2Config}[version](
        hidden_size=encoding.shape.width,
        num_attention_heads=encoding.shape.heads,
        relative_attention=True,
        max_relative_positions=encoding.k,
        pos_att_type=_terms(encoding),
        position_buckets=-1,
        share_att_key=False,
    )
    module = {"v1": v1, "v2": v2}[version].DisentangledSelfAttention(config)
    if version == "v1":
        module.in_proj = Given(merged(torch.cat((q, k, v), dim=-1)))
    else:
        module.query_proj, module.key_proj, module.value_proj = (
            Given(merged(x)) for x in (q, k, v)
        )
    return module.to(q.dtype).eval()


def _terms(encoding: DeBERTa) -> list[str]:
    c2p, p2c = encoding.key_projection, encoding.query_projection
    return [name for name, term in (("c2p", c2p), ("p2c", p2c)) if term is not None]


def _weights(version: str, encoding: DeBERTa) -> dict[str, Tensor]:
    """posbench's parameters under the module's names; the paper has no biases."""
    key, query = {
        "v1": ("pos_proj", "pos_q_proj"),
        "v2": ("pos_key_proj", "pos_query_proj"),
    }[version]
    weights = {}
    for name, projection in (
        (key, encoding.key_projection),
        (query, encoding.query_projection),
    ):
        if projection is not None:
            weights[f"{name}.weight"] = projection[LAYER].T
            weights[f"{name}.bias"] = projection.new_zeros(encoding.shape.width)
    weights.pop("pos_proj.bias", None)  # the one projection of v1 that has none
    return weights


def attention(version: str, encoding: DeBERTa, table: Tensor | None = None) -> Oracle:
    """table [2k, D]: P, unless it is the encoding's. Without a mask for a two-sided encoding."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = encoding.table if table is None else table
        if rows is None:  # neither term: no row is read
            rows = q.new_zeros(2 * encoding.k, encoding.shape.width)
        unseen = future(q.shape[2])
        if encoding.shape.two_sided:
            unseen = torch.zeros_like(unseen)
        relative = {"v1": v1, "v2": v2}[version].build_relative_position(q, k)
        out = functional_call(
            _module(version, encoding, q, k, v),
            _weights(version, encoding),
            (merged(q), ~unseen),
            {"relative_pos": relative, "rel_embeddings": rows},
        )
        return split(out[0], like=q)

    return attend


@pytest.mark.parametrize(
    ("terms", "k", "length"),
    [
        *((terms, *size) for terms in ("none", "c2p", "p2c", "c2p+p2c") for size in SIZES),
        ("c2p+p2c", 128, 1000),
    ],
)
@each_dtype
@each_version
def test_attention(version: str, dtype: torch.dtype, terms: str, k: int, length: int) -> None:
    c2p, p2c = "c2p" in terms, "p2c" in terms
    encoding = DeBERTa(SHAPE, k=k, c2p=c2p, p2c=p2c, p2c_index="code")
    randomized(encoding, dtype)
    assert_agrees(encoding, attention(version, encoding), length, dtype)


@each_version
@each_dtype
@pytest.mark.parametrize("length", [1, 2, 7, 128])
def test_the_papers_index_is_the_table_mirrored(
    version: str, dtype: torch.dtype, length: int
) -> None:
    """Row k - n where the oracle reads k + n: up to the window of n < k that both hold."""
    k = 128
    encoding = DeBERTa(SHAPE, k=k, c2p=False, p2c=True, p2c_index="paper")
    randomized(encoding, dtype)
    assert encoding.table is not None
    mirror = [0, *range(2 * k - 1, 0, -1)]
    assert_agrees(encoding, attention(version, encoding, encoding.table[mirror]), length, dtype)
