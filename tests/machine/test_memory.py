"""What a model needs is known before it is made, and said beside what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from torch import nn

from posbench import cli, config
from posbench.config import ModelConfig, SpeedCommand
from posbench.encodings import Shape
from posbench.encodings.nope import NoPE
from posbench.machine import memory
from posbench.machine.memory import NotEnough
from posbench.model import footprint
from posbench.model.transformer import Transformer, build
from posbench.speed import work
from tests.helpers.marks import a_few
from tests.helpers.toy import arguments, flat, train
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]

GIB = 2**30


def sizes(width: int = 24, layers: int = 3) -> ModelConfig:
    return ModelConfig(width, 4, layers, 40, 0.0, "auto")


def made(model: ModelConfig) -> Transformer:
    shape = Shape(model.width, model.heads, model.layers)
    return build(shape, 77, NoPE, seed=0, feed_forward=model.feed_forward)


def free(monkeypatch: pytest.MonkeyPatch, there: int | None) -> None:
    monkeypatch.setattr(memory, "available", lambda device=None: there)


def test_the_parameters_are_those_of_the_model() -> None:
    for model in (sizes(), sizes(8, 1)):
        counted = sum(parameter.numel() for parameter in made(model).parameters())
        assert footprint.weights(model, 77) == counted


def test_this_machine_has_some() -> None:
    there = memory.available()
    assert there is not None
    assert 2**20 < there < 2**50


def test_a_container_may_have_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.available() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() != 3000


def test_a_device_is_asked_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 80 * GIB))
    memory.require("training", 3 * GIB, torch.device("cuda"))
    with pytest.raises(NotEnough, match=r"needs at least 4\.0 GiB .* 3\.0 GiB are free \(cuda\)"):
        memory.require("training", 4 * GIB, torch.device("cuda"))


def test_where_it_is_not_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, None)
    memory.require("training", 2**70)


def test_a_module_is_measured_by_its_shapes_alone() -> None:
    """Neither memory nor random numbers are used for it."""
    before = torch.get_rng_state()
    with pytest.raises(NotEnough, match="table needs at least 3,725"):
        memory.require_module("table", lambda: nn.Embedding(10**9, 1000))
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_said_of_a_module_that_reads_its_numbers() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = float(torch.ones(3).sum())

    memory.require_module("it", Reads)


@pytest.mark.parametrize(
    ("override", "said"),
    a_few(
        [
            ("model.width=1000000000", "model (width 1000000000, 2 layers) needs at least"),
            ("model.feed_forward=1000000000000", "model (width 16, 2 layers)"),
            ("model.layers=1000000000", "1000000000 layers"),
            ("encoding=irope model.layers=1000000000", "1000000000 layers"),
            ("encoding=learned encoding.max_length=100000000000", "encoding (Learned) needs"),
            ("encoding=shaw encoding.k=100000000000", "encoding (Shaw) needs"),
        ],
        4,
    ),
)
@pytest.mark.parametrize("command", ["train", "describe"])
def test_what_can_never_fit_is_one_line(
    tmp_path: Path, capfd: Output, command: str, override: str, said: str
) -> None:
    assert cli.run([command, *filter(None, flat(arguments(tmp_path, override)))]) == 1
    assert said in one_line(capfd)


def test_training_needs_more_than_the_weights(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 100_000)
    assert train(tmp_path, "encoding=alibi") == 1
    assert "training (8,368 parameters, train.batch=2, train.length=16) needs" in one_line(capfd)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
    ids=["python", "cpu", "cuda"],
)
def test_memory_that_runs_out_all_the_same_is_one_line(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Transformer, "forward", fail)
    assert train(tmp_path, "encoding=alibi") == 1
    assert "out of memory" in one_line(capfd)
    folder = tmp_path / "outputs" / "default" / "alibi" / "seed1"
    assert '"failed"' in (folder / "status.json").read_text()
    assert (folder / "error.txt").exists()


@pytest.mark.parametrize("encoding", ["nope", "t5"])
def test_a_long_description_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: Output, encoding: str
) -> None:
    free(monkeypatch, GIB)
    assert cli.run(["describe", f"encoding={encoding}", "describe.length=10000000"]) == 1
    assert "describe.length=10000000 needs at least" in one_line(capfd)


def test_long_windows_are_not_checked(monkeypatch: pytest.MonkeyPatch, capfd: Output) -> None:
    free(monkeypatch, GIB)
    assert cli.run(["check", "encoding=nope", "train.length=1000000"]) == 1
    assert "train.length=1000000) needs at least" in one_line(capfd)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_measurement_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        words = ["run.name=x", "encoding=nope", "train.length=1000000"]
        asked = config.load(compose("speed", words), SpeedCommand)
    free(monkeypatch, 100 * 2**20)
    with pytest.raises(NotEnough):
        work.MODES[mode](asked, 1_000_000, torch.device("cpu"))
