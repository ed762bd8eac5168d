"""Which encodings, devices and models the flex kernel is chosen for, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from posbench.attention import KERNELS, choose
from posbench.attention.flex import flex_attention
from posbench.conformance import Subject, attention, subject
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cope import CoPE
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.fire import FIRE
from posbench.encodings.fox import FoX
from posbench.encodings.nope import NoPE
from posbench.encodings.randomized import Randomized, RandomizedALiBi, RandomizedRoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.errors import UserError
from posbench.model import from_config
from posbench.model import transformer as models
from tests.conformance.test_conformance import composed

SHAPE = Shape(8, heads=2, layers=1)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class RandomizedDeBERTa(Randomized, DeBERTa):
    pass


IMPOSSIBLE = [(Shaw, "distance_values"), (CoPE, "scores"), (RandomizedDeBERTa, "place")]


@pytest.mark.parametrize(("make", "cell"), IMPOSSIBLE)
def test_an_impossible_choice_names_the_cell(make: type[Encoding], cell: str) -> None:
    encoding, q = make(SHAPE), torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=rf"flex: {make.__name__} fills the cell `{cell}`"):
        choose(encoding, "flex", CUDA)
    with pytest.raises(ValueError, match=f"{make.__name__} fills the cell `{cell}`"):
        flex_attention(q, q, q, encoding, 0, Span.window(3))


def test_a_cell_that_a_setting_leaves_empty_is_no_obstacle() -> None:
    assert choose(Shaw(SHAPE, values=False), "flex", CUDA) == "flex"


def test_gaps_are_refused_where_keys_meet_distances() -> None:
    """Of an encoding that places nothing itself."""
    span = Span(torch.tensor([4, 9]), torch.tensor([1, 4, 9]), consecutive=False)
    q, k = torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="gaps"):
        flex_attention(q, k, k, DeBERTa(SHAPE), 0, span)


@pytest.mark.parametrize("make", [ALiBi, T5Bias, TransformerXL, DeBERTa, FoX, FIRE])
def test_auto_takes_flex_on_cuda_for_more_than_plain_attention(make: type[Encoding]) -> None:
    encoding = make(SHAPE)
    assert choose(encoding, "auto", CUDA) == choose(encoding, "flex", CUDA) == "flex"
    assert choose(encoding, "auto", CPU) == choose(encoding) != "flex"
    assert choose(encoding, "auto", CUDA, dropout=0.1) == choose(encoding)


def test_auto_on_cuda_falls_back_where_flex_cannot_serve() -> None:
    assert choose(Shaw(SHAPE), "auto", CUDA) == "fused"
    assert choose(CoPE(SHAPE), "auto", CUDA) == "blocked"
    assert choose(RandomizedDeBERTa(SHAPE), "auto", CUDA) == "blocked"


def test_auto_on_cuda_leaves_plain_attention_to_pytorch() -> None:
    for make in (NoPE, RoPE, RandomizedRoPE):
        assert choose(make(SHAPE), "auto", CUDA) == "fused"
    windowed = NoPE(SHAPE)
    windowed.window = 4
    assert choose(windowed, "auto", CUDA) == "flex"


def test_gaps_between_positions_are_no_obstacle_to_a_bias() -> None:
    assert choose(RandomizedALiBi(SHAPE), "auto", CUDA) == "flex"
    assert choose(RandomizedALiBi(SHAPE), "auto", CPU) == "blocked"


def test_flex_drops_no_weights() -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"model\.dropout=0\.1"):
        choose(ALiBi(SHAPE), "flex", CUDA, dropout=0.1)
    with pytest.raises(ValueError, match=r"dropout=0\.1"):
        flex_attention(q, q, q, ALiBi(SHAPE), 0, Span.window(3), dropout=0.1)


def test_flex_on_a_cpu_is_an_error_that_says_what_to_use() -> None:
    with pytest.raises(UserError, match=r"model\.attention=flex: needs CUDA.*use auto, reference"):
        choose(ALiBi(SHAPE), "flex", CPU)


def test_a_model_with_flex_is_refused_at_once_where_there_is_no_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="needs CUDA"):
        from_config.model(composed("encoding=alibi", "model=tiny", "model.attention=flex"), 9)


def test_a_model_with_flex_is_refused_on_a_cpu_beside_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """runtime.device=cpu: a model is built before it is moved."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = from_config.model(composed("encoding=alibi", "model=tiny", "model.attention=flex"), 9)
    assert model.kernel == "flex"
    with pytest.raises(UserError, match="needs CUDA"):
        model.to("cpu")


def test_a_model_chooses_anew_where_it_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build(SHAPE, 9, ALiBi, seed=0, feed_forward=8)
    assert model.kernel == "fused"

    def chosen(encoding: Encoding, asked: str, device: torch.device, dropout: float) -> str:
        return f"{type(encoding).__name__} {asked} {device} {dropout}"

    monkeypatch.setattr(models, "choose", chosen)
    assert model.to("meta").kernel == "ALiBi auto meta 0.0"


def test_check_compares_flex_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, which is all that it has: values and gradients."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    given = Subject(composed("encoding=t5", "model=tiny"), CPU)
    assert "flex" not in attention.kernels_agree(given)

    def on_cuda(encoding: Encoding, asked: str, device: Any) -> str:
        return choose(encoding, asked, CUDA)

    monkeypatch.setattr(subject, "choose", on_cuda)
    monkeypatch.setattr(attention, "SIZES", [(7, 7), (5, 40)])
    assert "flex: to" in attention.kernels_agree(given)
    encoding = given.encoding()
    assert "flex" not in given.kernels(0, encoding)
    assert "flex" in given.kernels(0, encoding, torch.float32)


def test_check_finds_a_flex_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        return KERNELS["reference"](q, k, v, *rest) * 1.001

    monkeypatch.setitem(KERNELS, "flex", wrong)
    monkeypatch.setattr(subject, "choose", lambda encoding, asked, device: asked)
    given = Subject(composed("encoding=t5", "model=tiny"), CPU)
    with pytest.raises(subject.Broken, match="flex"):
        attention.kernels_agree(given)
