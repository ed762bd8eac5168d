"""Resuming: train(n), killed, and the rest is train(2n), to the last bit, for every encoding.

In one process, with the same threads and kernels; for anything else see test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from posbench.corpus.segments import Batch
from posbench.machine.files import read_rows
from posbench.training import checkpoint
from posbench.training.loop import fit
from posbench.training.trainer import Trainer
from tests.helpers.marks import a_few
from tests.training.test_trainer import made

ENCODINGS = sorted(
    file.name.removesuffix(".yaml")
    for file in (resources.files("posbench.conf") / "encoding").iterdir()
)
WORDS = (
    "train.steps=8 train.checkpoint_every=2 train.accumulate=2 model.dropout=0.1 tracking.every=1"
).split()
MIXES = [  # memory in some layers only; random positions beside it
    "irope encoding.pattern=[rope,xl] ~encoding.parts.nope "
    "+encoding@encoding.parts.xl=transformer_xl",
    "irope encoding.pattern=[random,xl] ~encoding.parts.nope ~encoding.parts.rope "
    "+encoding@encoding.parts.xl=transformer_xl +encoding@encoding.parts.random=randomized_rope",
]


class Killed(BaseException):
    """The process is gone: nothing of ours runs after it."""


class Watched:
    """A stream that says which batches were asked for."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.asked = stream, list[int]()

    def batch(self, step: int) -> Batch:
        self.asked.append(step)
        return self.stream.batch(step)


def trainer(encoding: str) -> tuple[Trainer, Watched]:
    torch.manual_seed(1)
    made_ = made(f"encoding={encoding.split()[0]}", *encoding.split()[1:], *WORDS)
    made_.stream = watched = Watched(made_.stream)
    return made_, watched


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in rows]


def nothing(row: dict[str, float]) -> None: ...


@pytest.fixture(autouse=True)
def randomness() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.mark.parametrize("encoding", a_few([*ENCODINGS, *MIXES], 4))
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path, encoding: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    undisturbed, batches = trainer(encoding)
    fit(undisturbed, whole, nothing, nothing)
    after = torch.get_rng_state()
    assert batches.asked == list(range(16))

    def kill(row: dict[str, float]) -> None:
        if row["step"] == 5:  # after its row, one step behind a checkpoint
            raise Killed

    first, _ = trainer(encoding)
    with pytest.raises(Killed):
        fit(first, cut, nothing, kill)
    torch.manual_seed(99)
    second, rest = trainer(encoding)
    fit(second, cut, nothing, nothing)
    assert rest.asked == list(range(8, 16))
    assert torch.get_rng_state().equal(after)
    assert numbers(cut) == numbers(whole)
    assert [step for step, *_ in numbers(cut)] == list(range(1, 9))
    for (name, one), other in zip(
        undisturbed.model.state_dict().items(), second.model.state_dict().values(), strict=True
    ):
        assert one.equal(other), name
    one, other = (checkpoint.latest(folder) for folder in (whole, cut))
    assert one is not None
    assert other is not None
    for file in ("model.safetensors", "training.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes()
