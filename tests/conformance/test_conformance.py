"""posbench check holds for every shipped yaml, and catches what it is there to catch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hydra import compose, initialize_config_module
from torch import Tensor, nn

from posbench import cli
from posbench.config import Config, load
from posbench.conformance import CHECKS, Subject, findings
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from tests.helpers.marks import a_few
from tests.helpers.places import ROOT

NAMES = sorted(path.stem for path in ROOT.glob("conf/encoding/*.yaml"))

CLIPPED = ("deberta", "randomized_t5", "shaw", "shaw_keys", "t5", "t5_unscaled")


def composed(*words: str) -> Config:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        return load(compose("train", ["run.name=x", *words]), Config)


@pytest.mark.parametrize("name", a_few(NAMES, 6))
def test_every_shipped_encoding_keeps_its_promises(name: str) -> None:
    subject = Subject(composed(f"encoding={name}"), torch.device("cpu"))
    found = list(findings(subject))
    assert [f.name for f in found] == list(CHECKS)
    assert not [f for f in found if f.holds is False]
    kept = next(f for f in found if f.name == "memory")
    assert (kept.holds is True) == (name == "transformer_xl")
    clip = next(f for f in found if f.name == "clip")
    assert (clip.holds is True) == (name in CLIPPED)


SINGLE = [name for name in NAMES if name not in ("irope", "swan", "local_global")]


@pytest.mark.parametrize("name", a_few(NAMES, 3))
def test_every_encoding_can_be_part_of_a_mix_from_yaml_alone(name: str) -> None:
    """Of a window too, unless it is a mix itself."""
    window = ["+encoding.windows.x=24"] if name in SINGLE else []
    mix = ["encoding=irope", f"+encoding@encoding.parts.x={name}", "~encoding.parts.rope"]
    config = composed(*mix, "encoding.pattern=[x,nope,x]", "model.layers=6", *window)
    subject = Subject(config, torch.device("cpu"))
    if window:
        assert subject.encoding().at(0)[0].window == 24
    states, _ = subject.model().train()(subject.tokens(64))
    states.sum().backward()
    assert states.isfinite().all()
    broken = [f for f in findings(subject, only=MIXED) if f.holds is False]
    assert not broken


MIXED = (
    "causality",
    "kernels = reference",
    "window",
    "clip",
    "translation",
    "state-dict round trip",
)

# Faults. Each is an encoding as a user might write it.


class Future(Encoding):
    """Scores weighted by what the whole row holds."""

    def scores(self, logits: Tensor, q: Tensor, k: Tensor, span: Span, layer: int) -> Tensor:
        return logits * logits.std(-1, keepdim=True, correction=0)


class Stale(Encoding):
    """A cache without the length in its key."""

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        if not hasattr(self, "longest"):
            self.longest = len(distance)
        return -(distance / self.longest).expand(self.shape.heads, -1)


class Short(Encoding):
    """A cache that the first window fills, however short it is."""

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = -distance.float()
        return self.kept[: len(distance)].expand(self.shape.heads, -1)


class Outgrown(Encoding):
    """A table made once, for the training length."""

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return -torch.arange(300.0)[distance].expand(self.shape.heads, -1)


class CoarseAngles(RoPE):
    """Positions in bfloat16."""

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        coarse = Span(span.queries.bfloat16(), span.keys.bfloat16())
        return super().rotate(q, k, coarse, layer)


class CoarseBias(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance, layer).bfloat16()


class Dead(ALiBi):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.unused = nn.Parameter(torch.ones(3))


class Buffered(ALiBi):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("table", torch.ones(3))


class Forgetful(ALiBi):
    """What it needs is drawn anew at each construction, and is no parameter."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slopes = torch.rand(shape.heads).tolist()


class Detached(T5Bias):
    """A learned table that no gradient reaches."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance, layer).detach()


class Absolute(Encoding):
    """Depends on where the window stands, and does not say so."""

    def position_bias(self, span: Span, layer: int) -> Tensor:
        bias = -(span.keys.double() / (1 + span.queries.double()[:, None]))
        return bias.expand(self.shape.heads, -1, -1)


class Modest(ALiBi):
    """Is equivariant, and denies it."""

    translation_equivariant = False


class ByBlock(Encoding):
    """Counts from the first query at hand instead of from the window's first key."""

    def position_bias(self, span: Span, layer: int) -> Tensor:
        bias = -((span.queries - span.queries[0]).double()[:, None] - span.keys.double()).abs()
        return bias.expand(self.shape.heads, -1, -1)


class NoMemory(TransformerXL):
    """Positions of the keys counted without the memory."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, memory_length=64)

    def rotate(self, q: Tensor, k: Tensor, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        count = torch.arange(len(span.queries)).cos().to(q.dtype)
        return super().rotate(q * count[:, None], k, span, layer)


class Overflowing(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        bias = super().distance_bias(distance, layer)
        return torch.where(distance < 1000, bias, torch.nan)


class Refusing(Encoding):
    """Raises instead of declaring max_length."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if len(positions) > 500:
            raise ValueError("too long")
        return x


class OneHead(ALiBi):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_bias(distance, layer)[:1]


class Windowed(Encoding):
    """Says that it sees 32 keys, and sees 31."""

    window = 32

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        bias = torch.where(distance >= 31, -torch.inf, 0.0)
        return bias.expand(self.shape.heads, -1)


class Unclipped(ALiBi):
    """Its bias goes on at 40, and so does not end at 16."""

    clip = 16

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        past = torch.where(distance < 40, distance.clamp(max=16), distance)
        return super().distance_bias(past, layer)


class OneSided(Shaw):
    """The vectors on keys end where they say; those on values go on."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, k=20)
        self.clip = 8

    def distance_keys(self, distance: Tensor, layer: int) -> Tensor:
        return super().distance_keys(distance.clamp(max=8), layer)


class Negative(Encoding):
    clip = -1


class Unexpected(Encoding):
    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return distance.missing  # type: ignore[attr-defined]


FAULTS = {
    Future: "causality",
    Stale: "short, long, short",
    Short: "short, long, short",
    Outgrown: "short, long, short",
    CoarseAngles: "translation",
    CoarseBias: "shapes and dtypes",
    Dead: "gradients",
    Detached: "gradients",
    Buffered: "only parameters",
    Forgetful: "state-dict round trip",
    Absolute: "translation",
    Modest: "translation",
    ByBlock: "blocks = whole",
    NoMemory: "memory",
    Overflowing: "short, long, short",
    Refusing: "short, long, short",
    OneHead: "shapes and dtypes",
    Windowed: "window",
    Unclipped: "clip",
    OneSided: "clip",
    Negative: "clip",
    Unexpected: "shapes and dtypes",
}


def subject_of(fault: type[Encoding], **settings: object) -> Subject:
    config = composed("model.width=32", "model.heads=4")
    settings = {"_target_": f"{__name__}.{fault.__name__}", **settings}
    return Subject(dataclasses.replace(config, encoding=settings), torch.device("cpu"))


@pytest.mark.parametrize("fault", a_few([*FAULTS], 6), ids=lambda fault: fault.__name__)
def test_a_fault_is_caught(fault: type[Encoding]) -> None:
    broken = {f.name: f.detail for f in findings(subject_of(fault)) if f.holds is False}
    assert FAULTS[fault] in broken
    assert all(broken.values())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Unclipped, "clip = 16, but distance_bias changes at distance 40"),
        (OneSided, "clip = 8, but distance_values changes at distance 9"),
        (Negative, "clip = -1"),
    ],
)
def test_a_false_clip_is_told_with_the_distance(fault: type[Encoding], said: str) -> None:
    (found,) = findings(subject_of(fault), only=["clip"])
    assert found.holds is False
    assert said in found.detail


def test_no_clip_is_nothing_to_check() -> None:
    (found,) = findings(subject_of(ALiBi), only=["clip"])
    assert found.holds is None


def test_keys_that_the_constructor_lacks_are_caught() -> None:
    found = {f.name: f for f in findings(subject_of(Dead, slopes="paper"))}
    assert "slopes" in found["yaml keys = constructor"].detail
    assert found["yaml keys = constructor"].holds is False


def test_the_command_prints_a_table_and_fails_where_something_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["check", "encoding=alibi", "model.width=32"]) == 0
    assert "causality" in capfd.readouterr().out
    wrong = ["check", "encoding=alibi", "model.width=32", f"encoding._target_={__name__}.Modest"]
    assert cli.run(wrong) == 1
    out, err = capfd.readouterr()
    assert "FAILS" in out
    assert err.count("\n") == 1
    assert "translation" in err
