"""The loss by pieces is cross-entropy, and so are its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.training import loss
from tests.helpers.tolerance import HALF, ULPS, relative

DTYPES = {torch.float64: ULPS, torch.float32: relative(torch.float32, 16)}


def _drawn(tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """states [N, D], weight [V, D], targets [N]."""
    generator = torch.Generator().manual_seed(tokens)
    states = torch.randn(tokens, 6, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(11, (tokens,), generator=generator)
    return states.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 4, 5, 13])
def test_it_is_cross_entropy(
    tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "ROWS", 4)
    states, weight, targets = _drawn(tokens, dtype)
    actual = loss.cross_entropy(states, weight, targets)
    expected = F.cross_entropy(states @ weight.T, targets)
    torch.testing.assert_close(
        actual.to(dtype), expected, rtol=DTYPES[torch.float32], atol=DTYPES[torch.float32]
    )
    for mine, theirs in zip(
        torch.autograd.grad(3 * actual, (states, weight)),
        torch.autograd.grad(3 * expected, (states, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=DTYPES[dtype], atol=DTYPES[dtype])


def test_autocast_rounds_products_only() -> None:
    """Beside float32: what is left is bfloat16's step, 2^-8, of factors of size 1."""
    states, weight, targets = _drawn(40, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss.cross_entropy(states, weight, targets)
    assert rounded.dtype is torch.float32
    exact = loss.cross_entropy(states, weight, targets)
    torch.testing.assert_close(rounded, exact, rtol=2 * HALF, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(rounded, (states, weight)),
        torch.autograd.grad(exact, (states, weight)),
        strict=True,
    ):
        assert mine.dtype is torch.float32
        assert (mine - theirs).norm() < 2 * HALF * theirs.norm()


def test_a_sure_model_has_no_overflow() -> None:
    states, weight, targets = _drawn(5, torch.float32)
    loud = loss.cross_entropy(1e4 * states.detach(), weight, targets)
    expected = F.cross_entropy(1e4 * states.detach() @ weight.T, targets)
    torch.testing.assert_close(loud, expected)
