"""What must hold of a model whatever its encoding, and the one thing that may differ.

Shapes: B batch, T tokens, M memory, D width.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import ClassVar, cast

import pytest
import torch
from hydra import compose, initialize_config_module
from torch import Tensor, nn

from posbench import config
from posbench.attention import KERNELS, ON_CPU, choose
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.transformer_xl import TransformerXL
from posbench.model import from_config
from posbench.model.transformer import TOKEN_SCALE, Transformer, build
from posbench.training.loss import cross_entropy
from tests.helpers.cases import CASES, NINE, Case, Make, inputs
from tests.helpers.places import ROOT
from tests.helpers.tolerance import EXACT

SHAPE = Shape(width=16, heads=4, layers=2)
VOCABULARY = 37
RELATIVE = [name for name in NINE if name not in ("sinusoidal", "learned")]

each_encoding = pytest.mark.parametrize("name", NINE)
each_kernel = pytest.mark.parametrize("kernel", ON_CPU)


def model_of(
    make: Make, seed: int = 0, shape: Shape = SHAPE, attention: str = "auto"
) -> Transformer:
    model = build(shape, VOCABULARY, make, seed=seed, feed_forward=24, attention=attention)
    return model.double().eval()


def tokens_of(length: int, batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def position_vectors(encoding: Encoding, length: int) -> Tensor:
    """What embed adds: [T, D]."""
    x = torch.zeros(1, length, encoding.shape.width, dtype=torch.float64)
    return encoding.embed(x, torch.arange(length))[0]


def close(actual: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# Weights


def _split(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """state_dict: (the model's own, the encoding's)."""
    state = model.state_dict()
    own = {key: value for key, value in state.items() if not key.startswith("encoding.")}
    return own, {key: value for key, value in state.items() if key.startswith("encoding.")}


@each_encoding
def test_only_the_encoding_differs(name: str) -> None:
    own, _ = _split(model_of(NINE[name]))
    expected, nothing = _split(model_of(NINE["nope"]))
    assert not nothing
    assert list(own) == list(expected)
    assert all(torch.equal(own[key], expected[key]) for key in own)


@each_encoding
def test_the_seed_decides_every_weight(name: str) -> None:
    """Matrices and tables; norms start at one and zero whatever the seed."""
    torch.manual_seed(5)
    first = model_of(NINE[name], seed=1).state_dict()
    torch.manual_seed(6)
    again, other = model_of(NINE[name], seed=1).state_dict(), model_of(NINE[name], 2).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    same = {key for key in first if torch.equal(first[key], other[key])}
    assert all("norm" in key for key in same), same


@each_encoding
def test_building_leaves_the_global_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    model_of(NINE[name])
    assert torch.equal(torch.get_rng_state(), before)


@each_encoding
def test_encodings_start_finite_and_as_documented(name: str) -> None:
    width, head = 64, 16
    shape = Shape(width=width, heads=width // head, layers=4)
    stds = {
        "learned": width**-0.5,
        "shaw": head**-0.5,
        "transformer_xl": 0.02,
        "t5": width**-0.5,
        "deberta": 0.02,
    }
    for key, value in _split(model_of(NINE[name], shape=shape))[1].items():
        assert value.isfinite().all(), key
        assert value.std().item() == pytest.approx(stds[name], rel=4 / value.numel() ** 0.5), key
        assert abs(value.mean().item()) < 5 * stds[name] / value.numel() ** 0.5, key


@each_encoding
def test_encodings_do_not_start_as_copies_of_other_weights(name: str) -> None:
    """Two generators under one seed draw the same numbers: P[p] would be E[token p]."""
    own, positional = _split(model_of(NINE[name], shape=Shape(32, heads=4, layers=2)))
    for key, value in positional.items():
        for other_key, other in own.items():
            size = min(value.numel(), other.numel())
            pair = torch.stack([value.flatten()[:size], other.flatten()[:size]])
            if "norm" not in other_key:
                chance = min(0.9, 6 / size**0.5)
                assert abs(torch.corrcoef(pair)[0, 1]) < chance, (key, other_key)


def entering(model: Transformer, tokens: Tensor) -> Tensor:
    """The scaled token embeddings [B, T, D], as the encoding is given them."""
    seen = list[Tensor]()

    def spy(x: Tensor, positions: Tensor) -> Tensor:
        seen.append(x)
        assert positions.tolist() == list(range(tokens.shape[1]))
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.encoding, "embed", spy)
        model(tokens)
    return seen[0]


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


@each_encoding
def test_tokens_enter_scaled_alike(name: str) -> None:
    model, tokens = model_of(NINE[name]), tokens_of(5)
    x, embedded = entering(model, tokens), model.tokens.weight[tokens]
    factor = x.flatten()[0] / embedded.flatten()[0]
    close(x, factor * embedded, 1e-14)
    assert torch.equal(x, entering(model_of(NINE["nope"]), tokens))


@pytest.mark.parametrize("width", [64, 256])
def test_token_and_position_sizes_at_the_input(width: int) -> None:
    """Tokens of unit size; sinusoids smaller by sqrt(2), learned vectors by sqrt(D)."""
    ratios: dict[Make, float] = {
        Sinusoidal: math.sqrt(2),
        lambda shape: Learned(shape, max_length=512): math.sqrt(width),
    }
    for make, ratio in ratios.items():
        shape = Shape(width, heads=4, layers=1)
        model = build(shape, 512, make, seed=0, feed_forward=8)
        tokens = _rms(entering(model, torch.arange(512)[None]))
        assert tokens == pytest.approx(1, rel=0.1)
        assert tokens / _rms(position_vectors(model.encoding, 512)) == pytest.approx(
            ratio, rel=0.1
        )


@each_encoding
def test_state_dict_round_trip(name: str) -> None:
    source, target = model_of(NINE[name], seed=1), model_of(NINE[name], seed=2)
    tokens = tokens_of(9)
    assert not torch.equal(source(tokens)[0], target(tokens)[0])
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(tokens)[0], target(tokens)[0])


# Weights in half the bits


class Buffered(Encoding):
    """A user's own: numbers in a buffer and in a layer of torch's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("places", torch.arange(5000.0) / 7)
        self.map = nn.Linear(1, shape.heads)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return self.map(self.get_buffer("places")[distance][:, None]).T


YAMLS = ROOT / "conf/encoding"
SHIPPED = sorted(path.stem for path in YAMLS.glob("*.yaml"))


@cache
def shipped(name: str) -> Make:
    """An encoding by the name of its yaml."""
    with initialize_config_module("posbench.conf", version_base="1.3"):
        asked = compose("train", [f"encoding={name}", "run.name=x", "train.length=24"])
    settings = config.load(asked, config.Config).encoding
    return lambda shape: from_config.encoding(settings, shape)


def _run(model: Transformer, tokens: Tensor, train: bool) -> list[Tensor]:
    """States; in training also the loss, and its gradient by the tokens' embeddings."""
    torch.manual_seed(0)  # some encodings draw positions in training
    model.train(train).zero_grad()
    with torch.set_grad_enabled(train):
        states, _ = model(tokens[:, :-1])
    if not train:
        return [states]
    loss = cross_entropy(states.flatten(0, 1), model.tokens.weight, tokens[:, 1:].flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
    return [states.detach(), loss.detach(), cast(Tensor, model.tokens.weight.grad)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_cast_to_half_the_bits_is_the_same_model(name: str, dtype: torch.dtype) -> None:
    """Weights, not autocast. A dozen roundings in a row at most, each of half a unit, in what is
    compared; in the gradient as many again."""
    tokens, shape = tokens_of(25), Shape(width=32, heads=2, layers=2)
    for kernel in ON_CPU:
        try:
            model = build(shape, VOCABULARY, shipped(name), seed=0, feed_forward=24)
            model.kernels = [choose(part, kernel) for part, _ in model.serving]
        except ValueError:
            continue  # a kernel that cannot serve it
        model.attention = kernel
        for train in (False, True):
            wanted = _run(model.float(), tokens, train)
            found = _run(model.to(dtype), tokens, train)
            model.float()
            assert found[0].dtype == dtype
            for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                rounding = 12 * (1 + (place == 2)) * torch.finfo(dtype).eps / 2
                off = (one.float() - other).norm() / other.norm()
                assert off < rounding, (kernel, train, place, off / rounding)


@pytest.mark.parametrize("cast_to", ["bfloat16", "half"])
@pytest.mark.parametrize("name", [*SHIPPED, "a user's own"])
def test_what_an_encoding_holds_is_not_rounded(name: str, cast_to: str) -> None:
    """So all that it computes of positions stays as it was, at any distance."""
    make = Buffered if name == "a user's own" else shipped(name)
    model = build(Shape(32, heads=2, layers=2), VOCABULARY, make, seed=0, feed_forward=24)
    before = {key: value.clone() for key, value in model.encoding.state_dict().items()}
    far = torch.arange(4090, 4097)
    biases = [model.encoding.at(0)[0].distance_bias(far, 0)] if name != "learned" else []
    getattr(model, cast_to)()
    assert model.tokens.weight.dtype.itemsize == 2
    after = model.encoding.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(value.dtype is torch.float32 for value in after.values())
    for bias in biases:
        again = model.encoding.at(0)[0].distance_bias(far, 0)
        assert (bias is None) == (again is None)
        assert bias is None or torch.equal(bias, cast(Tensor, again))
    assert model.double().tokens.weight.dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in model.encoding.parameters())


def first_input(model: Transformer, tokens: Tensor) -> Tensor:
    """What the first layer is given, in evaluation."""
    seen = list[Tensor]()
    model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model.eval()(tokens)
    return seen[0]


def test_positions_at_the_input_are_rounded_once() -> None:
    """Added in float32: a table, or sinusoids, and tokens in bfloat16."""
    for name in ("learned", "sinusoidal", "randomized_sinusoidal"):
        model = build(Shape(32, heads=2, layers=2), 37, shipped(name), seed=0, feed_forward=24)
        entered = first_input(model.bfloat16(), tokens := tokens_of(20))
        x = model.tokens(tokens) * (TOKEN_SCALE * 32**0.5)
        place = model.encoding.place(Span.window(20))
        wanted = model.encoding.embed(x.float(), place.queries).bfloat16()
        assert torch.equal(entered, wanted)


def test_logits_are_tied_to_the_tokens() -> None:
    model = model_of(NINE["nope"])
    states, _ = model(tokens_of(3))
    close(model.logits(states), states @ model.tokens.weight.T)


# Gradients


@each_encoding
@each_kernel
def test_every_tensor_learns(name: str, kernel: str) -> None:
    model = model_of(NINE[name], attention=kernel)
    states, _ = model(tokens_of(24))
    model.logits(states).logsumexp(-1).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("shaw", "key_table"),
        ("shaw", "value_table"),
        ("transformer_xl", "projection"),
        ("deberta", "key_projection"),
        ("deberta", "query_projection"),
    ],
)
def test_every_layer_reads_its_own_table(name: str, table: str) -> None:
    model = model_of(NINE[name])
    model(tokens_of(9))[0].square().sum().backward()
    gradient = model.encoding.get_parameter(table).grad
    assert gradient is not None
    assert (gradient.abs().amax((1, 2)) > 0).all()


def test_dropout_is_for_training() -> None:
    tokens = tokens_of(9)
    model = build(SHAPE, VOCABULARY, NINE["shaw"], seed=0, feed_forward=24, dropout=0.5).double()
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    assert torch.equal(model.eval()(tokens)[0], model_of(NINE["shaw"])(tokens)[0])


def _live_rows(make: Make, table: str) -> list[int]:
    """Which rows of a table [..., rows, columns] get a gradient from 24 tokens."""
    model = model_of(make)
    states, _ = model(tokens_of(24))
    states.square().sum().backward()
    gradient = model.encoding.get_parameter(table).grad
    assert gradient is not None
    by_row = gradient.abs().amax(-1).reshape(-1, gradient.shape[-2])
    rows: list[int] = by_row.amax(0).nonzero().flatten().tolist()
    return rows


@pytest.mark.parametrize("table", ["key_table", "value_table"])
def test_shaw_rows_of_the_future_are_dead(table: str) -> None:
    assert _live_rows(lambda shape: Shaw(shape, k=4), table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("index", "c2p", "p2c", "live"),
    [
        ("paper", True, True, range(8)),
        ("paper", True, False, range(4, 8)),
        ("paper", False, True, range(5)),
        ("code", True, True, range(4, 8)),
        ("code", False, True, range(4, 8)),
    ],
)
def test_deberta_dead_half(index: str, c2p: bool, p2c: bool, live: range) -> None:
    def make(shape: Shape) -> Encoding:
        return DeBERTa(shape, k=4, c2p=c2p, p2c=p2c, p2c_index=index)

    assert _live_rows(make, "table") == list(live)


# Causality and translation


@each_encoding
@each_kernel
@pytest.mark.parametrize("block", [5, 1024])
def test_the_future_does_not_leak(
    name: str, kernel: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["posbench.attention.fused"], "BLOCK", block)
    model, tokens = model_of(NINE[name], attention=kernel), tokens_of(13)
    before, _ = model(tokens)
    for t in (1, 5, 12):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % VOCABULARY
        after, _ = model(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t] != before[:, t]).any()


@each_encoding
@each_kernel
def test_a_prefix_is_the_beginning_of_the_whole(name: str, kernel: str) -> None:
    model, tokens = model_of(NINE[name], attention=kernel), tokens_of(20)
    close(model(tokens[:, :7])[0], model(tokens)[0][:, :7])


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in ("everything", "pairwise")], ids=lambda c: c.name
)
@each_kernel
@pytest.mark.parametrize("start", [1, 130])
def test_attention_depends_on_distance_only(case: Case, kernel: str, start: int) -> None:
    encoding, (q, k, v) = case.encoding(), inputs(case, 9, 13)
    here, there = Span.window(9, memory=4), Span.window(9, memory=4, start=start)
    assert there.keys[0] == start
    out = KERNELS[kernel](q, k, v, encoding, 1, there)
    close(out, KERNELS[kernel](q, k, v, encoding, 1, here))


def _moved(model: Transformer, by: int) -> Transformer:
    """The same model where every absolute position that an encoding is told is larger."""
    embed, rotate = model.encoding.embed, model.encoding.rotate

    def moved(span: Span) -> Span:
        return Span(span.queries + by, span.keys + by, span.hidden)

    model.encoding.embed = lambda x, positions: embed(x, positions + by)
    model.encoding.rotate = lambda q, k, span, layer: rotate(q, k, moved(span), layer)
    return model


@each_encoding
def test_models_of_relative_encodings_alone_are_equivariant(name: str) -> None:
    tokens = tokens_of(8)
    here, _ = model_of(NINE[name])(tokens)
    there, _ = _moved(model_of(NINE[name]), by=40)(tokens)
    if name in RELATIVE:
        close(there, here)
    else:
        assert (there - here).abs().max() > 0.1


# Long windows


@each_encoding
def test_a_long_window_leaves_nothing_behind(name: str) -> None:
    model, short, long = model_of(NINE[name]), tokens_of(7), tokens_of(60)
    keys = list(model.state_dict())
    fresh, _ = model_of(NINE[name])(short)
    assert torch.equal(model(short)[0], fresh)
    model(long)
    assert torch.equal(model(short)[0], fresh)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("name", [name for name in NINE if name != "learned"])
def test_any_length_is_encoded(name: str) -> None:
    states, _ = model_of(NINE[name])(tokens_of(700, batch=1))
    assert states.shape == (1, 700, 16)
    assert states.isfinite().all()


def test_learned_refuses_a_window_past_its_table() -> None:
    model = model_of(lambda shape: Learned(shape, max_length=10))
    assert model(tokens_of(10))[0].shape == (2, 10, 16)
    with pytest.raises(ValueError, match=r"(?s)(11.*10|10.*11)"):
        model(tokens_of(11))


# Segments and memory (Transformer-XL)


def _xl(memory_length: int, layers: int = 2, attention: str = "auto") -> Transformer:
    def make(shape: Shape) -> Encoding:
        return TransformerXL(shape, memory_length=memory_length, std=0.5)

    shape = Shape(width=16, heads=4, layers=layers)
    return model_of(make, shape=shape, attention=attention)


@each_kernel
@pytest.mark.parametrize("layers", [1, 2])
def test_segments_equal_one_long_window(kernel: str, layers: int) -> None:
    """With memory for all that went before, depth does not matter either."""
    tokens, model = tokens_of(18), _xl(12, layers, kernel)
    whole, _ = model(tokens)
    first, memory = model(tokens[:, :6])
    second, memory = model(tokens[:, 6:12], memory)
    third, _ = model(tokens[:, 12:], memory)
    close(torch.cat([first, second, third], dim=1), whole)


def test_segments_equal_one_long_window_in_float32() -> None:
    tokens, model = tokens_of(12), _xl(6, layers=1).float()
    _, memory = model(tokens[:, :6])
    close(model(tokens[:, 6:], memory)[0], model(tokens)[0][:, 6:], 1e-5)


@each_kernel
def test_short_memory_equals_a_window_with_the_same_keys(kernel: str) -> None:
    """One layer, 4 of 6 earlier tokens kept: the window over tokens 2 .. 11."""
    tokens, model = tokens_of(12), _xl(4, layers=1, attention=kernel)
    _, memory = model(tokens[:, :6])
    close(model(tokens[:, 6:], memory)[0], model(tokens[:, 2:])[0][:, 4:])


@pytest.mark.parametrize(("memory_length", "segments"), [(4, [6, 6]), (5, [3, 3, 3]), (8, [2, 5])])
def test_memory_is_the_last_hidden_states(memory_length: int, segments: list[int]) -> None:
    tokens = tokens_of(sum(segments))
    model, memory, seen = _xl(memory_length), None, 0
    for length in segments:
        _, memory = model(tokens[:, seen : seen + length], memory)
        seen += length
        kept = min(seen, memory_length)
        assert [past.shape for past in memory] == [(2, kept, 16)] * 2
        close(memory[0], entering(model, tokens[:, seen - kept : seen]), 1e-14)


def test_memory_of_upper_layers_is_their_input() -> None:
    """Kept whole, the second layer's memory is what one long window would keep."""
    tokens, model = tokens_of(9), _xl(9)
    _, whole = model(tokens)
    _, memory = model(tokens[:, :4])
    _, memory = model(tokens[:, 4:], memory)
    assert len(memory) == len(whole) == 2
    for past, expected in zip(memory, whole, strict=True):
        close(past, expected)


def test_memory_carries_no_gradient() -> None:
    model = _xl(6)
    _, memory = model(tokens_of(6))
    assert not any(past.requires_grad for past in memory)
    states, again = model(tokens_of(6, seed=1), memory)
    assert not any(past.requires_grad for past in again)
    states.sum().backward()
    used = tokens_of(6, seed=1).unique()
    gradient = model.tokens.weight.grad
    assert gradient is not None
    assert set(gradient.abs().sum(1).nonzero().flatten().tolist()) <= set(used.tolist())


@each_kernel
def test_memory_is_not_written_to(kernel: str) -> None:
    model, tokens = _xl(6, attention=kernel), tokens_of(5, seed=1)
    _, memory = model(tokens_of(6))
    kept = [past.clone() for past in memory]
    first, _ = model(tokens, memory)
    second, _ = model(tokens, memory)
    assert torch.equal(first, second)
    assert all(torch.equal(past, copy) for past, copy in zip(memory, kept, strict=True))


@each_kernel
def test_hidden_memory_is_no_memory(kernel: str) -> None:
    model, tokens = _xl(6, attention=kernel), tokens_of(5, seed=1)
    _, memory = model(tokens_of(6))
    with_memory, without = model(tokens, memory)[0], model(tokens)[0]
    assert (with_memory - without).abs().max() > 1e-3
    hidden = torch.zeros(2, 6, dtype=torch.bool)
    hidden[0] = True
    mixed, _ = model(tokens, memory, hidden)
    close(mixed[0], without[0])
    close(mixed[1], with_memory[1])


def test_part_of_the_memory_hidden() -> None:
    """One layer: hiding the two oldest of six equals remembering four."""
    tokens, model = tokens_of(11), _xl(6, layers=1)
    _, memory = model(tokens[:, :6])
    hidden = torch.zeros(2, 6, dtype=torch.bool)
    hidden[:, :2] = True
    close(model(tokens[:, 6:], memory, hidden)[0], model(tokens[:, 2:])[0][:, 4:])


def test_positions_count_the_memory() -> None:
    class Remembering(Encoding):
        memory_length = 3
        seen: ClassVar[list[list[int]]] = []

        def embed(self, x: Tensor, positions: Tensor) -> Tensor:
            self.seen.append(positions.tolist())
            return x

    model, memory = model_of(Remembering), None
    for length in (2, 2, 4):
        _, memory = model(tokens_of(length), memory)
    assert Remembering.seen == [[0, 1], [2, 3], [3, 4, 5, 6]]


@pytest.mark.parametrize("name", [name for name in NINE if name != "transformer_xl"])
def test_other_encodings_keep_no_memory(name: str) -> None:
    _, memory = model_of(NINE[name])(tokens_of(5))
    assert sum(past.shape[1] for past in memory) == 0
