"""The enhanced mask decoder, against its three lines written out, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.encodings import Encoding, Shape
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.model.transformer import Transformer, build
from posbench.objectives import DecoderSettings
from tests.helpers.tolerance import EXACT

SHAPE = Shape(16, 2, 3, two_sided=True)
MAKE: dict[str, Callable[[Shape], Encoding]] = {
    "nope": NoPE,
    "rope": RoPE,
    "deberta": lambda shape: DeBERTa(shape, 4),
}
each = pytest.mark.parametrize("name", MAKE)


def model(name: str, decoder: DecoderSettings | None = None, layers: int = 3) -> Transformer:
    shape = Shape(16, 2, layers, two_sided=True)
    made = build(shape, 40, MAKE[name], seed=3, feed_forward=24, special=1, decoder=decoder)
    return made.double().eval()


def settings(
    query: str, passes: int = 2, positions: str = "learned", rows: int = 12
) -> DecoderSettings:
    return DecoderSettings(passes, query, positions, rows, "refuse")


def tokens(length: int = 9) -> Tensor:
    return torch.randint(39, (2, length), generator=torch.Generator().manual_seed(0))


@each
def test_one_pass_without_positions_is_the_plain_model(name: str) -> None:
    """To the last bit: the same products in the same order."""
    plain, made = model(name), model(name, settings("both", passes=1))
    with torch.no_grad():
        next(made.decoder.parameters()).zero_()
        assert torch.equal(made(tokens())[0], plain(tokens())[0])
        made.decoder.passes = 2
        assert not torch.allclose(made(tokens())[0], plain(tokens())[0])


@each
def test_without_positions_it_is_passes_over_the_last_layer(name: str) -> None:
    """objective.positions=none: no parameter more, no longest length, the same as a table of 0."""
    bare, made = model(name, settings("both", positions="none")), model(name, settings("both"))
    assert list(bare.decoder.parameters()) == []
    assert bare.max_length is None
    with torch.no_grad():
        next(made.decoder.parameters()).zero_()
        assert torch.equal(bare(tokens())[0], made(tokens())[0])


def test_other_weights_are_the_plain_models() -> None:
    plain, made = model("rope").state_dict(), model("rope", settings("both")).state_dict()
    assert set(made) - set(plain) == {"decoder.absolute.table"}
    assert all(torch.equal(made[key], plain[key]) for key in plain)


def norm(x: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight
        + layer.bias
    )


def written_out(made: Any, ids: Tensor, query: str, passes: int) -> Tensor:
    """Pair by pair, of RoPE: positions as a complex number's turns."""
    x = made.tokens(ids) * (2.0 * 16**0.5)
    for layer in made.layers[:-1]:
        x = once(layer, x, x)
    context, last = x, made.layers[-1]
    z = made.decoder.absolute.table[: ids.shape[1]].expand_as(context)
    z = z + context if query == "both" else z
    for _ in range(passes):
        z = once(last, z, context)
    return norm(z, made.norm)


def once(layer: Any, z: Tensor, context: Tensor) -> Tensor:
    asks, offers = norm(z, layer.attention_norm), norm(context, layer.attention_norm)
    key, value = (layer.key_value.weight[rows] for rows in (slice(0, 16), slice(16, 32)))
    q, k, v = asks @ layer.query.weight.T, offers @ key.T, offers @ value.T
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        out = []
        for i in range(z.shape[1]):
            logits = []
            for j in range(z.shape[1]):
                angle = torch.arange(4, dtype=torch.float64) * -2 / 8
                turn = torch.polar(torch.ones(4, dtype=torch.float64), (i - j) * 10_000**angle)
                a = torch.complex(q[:, i, head][:, :4], q[:, i, head][:, 4:])
                b = torch.complex(k[:, j, head][:, :4], k[:, j, head][:, 4:])
                logits.append((a * turn * b.conj()).real.sum(-1) / 8**0.5)
            weights = torch.stack(logits, -1).softmax(-1)
            out.append((weights[..., None] * v[..., head]).sum(1))
        heads.append(torch.stack(out, 1))
    x = z + torch.cat(heads, -1) @ layer.attention_out.weight.T
    inner = norm(x, layer.feed_forward_norm) @ layer.feed_forward_in.weight.T
    return x + F.gelu(inner) @ layer.feed_forward_out.weight.T


@pytest.mark.parametrize("query", ["positions", "both"])
@pytest.mark.parametrize("passes", [1, 2])
def test_it_is_its_three_lines(query: str, passes: int) -> None:
    made, ids = model("rope", settings(query, passes)), tokens(5)
    actual, expected = made(ids)[0], written_out(made, ids, query, passes)
    torch.testing.assert_close(actual, expected, rtol=EXACT, atol=EXACT)
    direction = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1)).double()
    ours, theirs = (
        torch.autograd.grad((out * direction).sum(), list(made.parameters()), allow_unused=True)
        for out in (actual, expected)
    )
    for (name, _), a, b in zip(made.named_parameters(), ours, theirs, strict=True):
        assert a is not None, name
        assert b is not None, name
        torch.testing.assert_close(a, b, rtol=EXACT, atol=EXACT)


def test_positions_enter_through_the_table_alone() -> None:
    """Equal rows leave a relative model without absolute positions; others do not."""
    made: Any = model("rope", settings("positions", rows=12))
    ids = torch.full((1, 6), 7)
    made.encoding = NoPE(SHAPE)  # nothing but the table tells two equal tokens apart
    made.serving = [made.encoding.at(layer) for layer in range(3)]
    with torch.no_grad():
        states = made(ids)[0][0]
        assert not torch.allclose(states[0], states[1])
        table = made.decoder.absolute.table
        table.copy_(table[:1].expand_as(table).clone())
        states = made(ids)[0][0]
        assert torch.allclose(states, states[:1].expand_as(states), atol=EXACT)


def test_a_window_beyond_the_table_is_refused() -> None:
    made = model("nope", settings("positions", rows=8))
    assert made.max_length == 8
    with pytest.raises(ValueError, match="the decoder has 8 positions, not 9"):
        made(tokens(9))
    assert model("nope", settings("positions", positions="sinusoidal")).max_length is None


@each
def test_a_model_of_one_layer_has_one(name: str) -> None:
    made: Any = model(name, settings("both"), layers=1)
    assert bool(made(tokens())[0].isfinite().all())
