"""One run by 1, 2 and 3 processes of torchrun: the same numbers, one writer, clean ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from posbench import cli
from posbench.encodings import Shape
from posbench.encodings.alibi import ALiBi
from posbench.errors import UserError
from posbench.evaluation import results
from posbench.evaluation.causal import Sliding, Stream
from posbench.evaluation.score import score
from posbench.evaluation.windows import Window
from posbench.machine import distributed
from posbench.machine.distributed import World
from posbench.machine.files import read_rows
from posbench.model.transformer import build
from posbench.runs.run import make_trainer
from posbench.runs.run_folder import RunFolder
from tests.evaluation.test_score import documents, settings
from tests.helpers.places import ROOT
from tests.helpers.ranks import copied, cut
from tests.helpers.tolerance import close, of_model, training
from tests.helpers.toy import arguments, flat, train
from tests.training.test_trainer import composed, made

SIZES = "train.batch=8 train.accumulate=2 train.steps=6 runtime.dtype=float32"
EVAL = (
    "eval.protocols=[fixed_targets,stream] eval.tokens=700 eval.segment=8 eval.blocks=7 "
    "eval.batch_tokens=64 eval.probes=[copy] eval.probe_distances=[20] eval.probe_trials=5"
)

# Of a loss of these runs; by windows of 32 and the bytes' vocabulary.
AFTER_SIX = training(
    build(Shape(16, 2, 2), 257, ALiBi, seed=0, feed_forward=32), 32, 6, torch.float32
)


class Idle(ALiBi):
    """Has a parameter that nothing uses: nobody must wait for its gradient."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.idle = nn.Parameter(torch.ones(3))


def words(root: Path, *more: str) -> list[str]:
    return flat(arguments(root, SIZES, EVAL, *more))


def start(processes: int, *command: str) -> subprocess.Popen[str]:
    """A module with its arguments, in processes of torchrun's."""
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [sys.executable, "-m", *run, "-m", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def torchrun(processes: int, *command: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr, to which torchrun adds its own."""
    with start(processes, *command) as process:
        out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def folder(root: Path, name: str, seed: int = 1) -> Path:
    return root / "outputs" / "default" / name / f"seed{seed}"


def column(run: Path, key: str) -> list[float]:
    return [row[key] for row in read_rows(run / "metrics.jsonl")]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "step-000006" / "model.safetensors")


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration folder with an encoding of these tests."""
    conf = tmp_path_factory.mktemp("conf")
    (conf / "encoding").mkdir()
    (conf / "encoding" / "idle.yaml").write_text(f"_target_: {__name__}.Idle\n")
    return conf


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, outside: Path) -> Path:
    """Runs of one process."""
    root = tmp_path_factory.mktemp("alone")
    encodings = "encoding=t5,idle,randomized_rope,transformer_xl"
    assert cli.run(["train", "--config-dir", str(outside), "-m", encodings, *words(root)]) == 0
    return root


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, alone: Path) -> Path:
    """Runs of two processes: see ranks.py."""
    root = tmp_path_factory.mktemp("two")
    more = words(alone, f"run.root={root}/outputs", "encoding=transformer_xl")
    code, _, err = torchrun(2, "tests.helpers.ranks", str(root), *more)
    assert code == 0, err
    return root


@pytest.mark.slow
def test_two_processes_resume_to_the_bit_with_dropout(two: Path) -> None:
    whole, again = folder(two, "0.2"), folder(two / "again", "0.2")
    assert RunFolder(again).finished
    assert column(again, "loss") == column(whole, "loss")
    assert all(weights(again)[name].equal(w) for name, w in weights(whole).items())
    assert [r.nll for r in results.read(again)] == [r.nll for r in results.read(whole)]
    extra = load_file(again / "checkpoints" / "step-000006" / "training.safetensors")
    assert extra["extra.memory.000"].shape[0] == 8  # lanes, of both
    assert not extra["extra.random"].equal(extra["extra.random.001"])


@pytest.mark.slow
def test_three_processes_do_what_one_does(
    alone: Path, two: Path, outside: Path, tmp_path: Path
) -> None:
    """A sweep of 8 lanes and 7 blocks of targets; one run goes on from two processes."""
    resumed = folder(tmp_path, "transformer_xl")
    copied(folder(two, "0.0"), tmp_path, 4).parent.rename(resumed.parent)
    evaluated = copied(folder(alone, "t5"), tmp_path, 6)
    held = FileLock(folder(tmp_path, "alibi").parent / ".seed1.lock")
    Path(held.lock_file).parent.mkdir(parents=True)
    encodings = "encoding=alibi,idle,randomized_rope,t5,transformer_xl"
    more = words(alone, f"run.root={tmp_path}/outputs")
    command = ["posbench", "train", "--config-dir", str(outside), "-m", encodings, *more]
    with held:
        code, out, err = torchrun(3, *command)
    assert code == 1
    first, last = errors(err)
    assert "alibi seed 1" in first
    assert "another process is at work" in first
    assert "1 of 5 jobs failed" in last
    assert err.count("encoding=alibi") == 1  # in the command that repeats it
    assert out.count("idle seed 1  training") == 1
    assert not (folder(tmp_path, "alibi") / "config.yaml").exists()

    for name in ("idle", "randomized_rope", "transformer_xl"):
        one, three = folder(alone, name), folder(tmp_path, name)
        assert RunFolder(three).finished
        assert column(three, "step") == [1, 2, 3, 4, 5, 6]
        for key in ("loss", "grad_norm"):
            np.testing.assert_allclose(column(three, key), column(one, key), rtol=AFTER_SIX)
        same_results(one, three, rel=AFTER_SIX)
        probed = [
            [(p.distance, p.trials_hash) for p in results.read_probes(run)] for run in (one, three)
        ]
        assert probed[0] == probed[1]
    assert weights(folder(tmp_path, "idle"))["encoding.idle"].equal(torch.ones(3))
    begun_by = {"transformer_xl": 2, "t5": 1, "idle": 3}
    for name, processes in begun_by.items():
        assert RunFolder(folder(tmp_path, name)).provenance["processes"] == processes
    same_results(folder(alone, "t5"), evaluated, rel=AFTER_SIX / 6)  # the same weights
    assert [*results.read_probes(evaluated)] == [*results.read_probes(folder(alone, "t5"))]

    cut(resumed, 4)  # and goes on from three
    assert train(tmp_path, SIZES, EVAL, f"corpus.path={alone}/text encoding=transformer_xl") == 0
    losses = column(folder(alone, "transformer_xl"), "loss")
    np.testing.assert_allclose(column(resumed, "loss"), losses, rtol=AFTER_SIX)


@pytest.mark.slow
def test_a_masked_model_of_two_processes_has_the_masks_of_one(tmp_path: Path) -> None:
    """And the targets of its evaluation are spread over both."""
    masked = "objective=masked objective.spans=3 objective.decoder=enhanced encoding=t5"
    masked += " objective.positions=sinusoidal eval.protocols=[fixed_targets] eval.probes=[]"
    assert train(tmp_path, SIZES, EVAL, masked, "run.name=one") == 0
    code, _, err = torchrun(2, "posbench", "train", *words(tmp_path, masked, "run.name=two"))
    assert code == 0, err
    one, two = folder(tmp_path, "one"), folder(tmp_path, "two")
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(column(two, key), column(one, key), rtol=AFTER_SIX)
    same_results(one, two, rel=AFTER_SIX)


def same_results(one: Path, other: Path, rel: float) -> None:
    found = [results.read(run) for run in (one, other)]
    assert [(r.protocol, r.length, r.targets) for r in found[0]] == [
        (r.protocol, r.length, r.targets) for r in found[1]
    ]
    assert [r.nll for r in found[1]] == pytest.approx([r.nll for r in found[0]], rel=rel, abs=0)


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks(process: subprocess.Popen[str]) -> list[int]:
    """Process ids, by rank."""
    found = {}
    for entry in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        found[next(int(v[5:]) for v in environment if v.startswith(b"RANK="))] = int(entry)
    return [found[rank] for rank in sorted(found)]


def endless(root: Path) -> list[str]:
    more = "train.steps=100000 train.checkpoint_every=20 run.name=x"
    return ["posbench", "train", *words(root, more)]


def killed(root: Path, processes: int, rank: int) -> str:
    """The one line in which an endless run ends that loses a process after a checkpoint."""
    with start(processes, *endless(root)) as process:
        first = folder(root, "x") / "checkpoints" / "step-000020"
        wait_for(lambda: first.exists(), process)
        os.kill(ranks(process)[rank], signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    (line,) = errors(err)
    return line


@pytest.mark.slow
def test_a_killed_process_ends_the_others(tmp_path: Path) -> None:
    run = folder(tmp_path, "x")
    line = killed(tmp_path, processes=2, rank=1)
    assert "one of the 2 processes" in line
    status = RunFolder(run).status
    assert status["state"] == "failed"
    assert status["reason"] in line
    assert not [path for path in run.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.long
def test_a_run_without_its_first_process_goes_on_and_stops_when_asked(tmp_path: Path) -> None:
    run = folder(tmp_path, "x")
    killed(tmp_path, processes=3, rank=0)
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
    with start(2, *endless(tmp_path)) as process:
        wait_for(lambda: max(column(run, "step")) > saved + 40, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("stopped at step") == 1
    assert not errors(err)
    steps = column(run, "step")
    assert steps == [*range(1, len(steps) + 1)]
    assert (run / "checkpoints" / f"step-{len(steps):06d}").exists()
    assert RunFolder(run).status["state"] == "interrupted"


class Split(World):
    """One process that does the work of several, one after another."""

    def spread(self, items: Sequence[Any], work: Callable[[Sequence[Any]], Any]) -> list[Any]:
        found: list[Any] = [None] * len(items)
        for rank in range(self.size):
            found[rank :: self.size] = work(items[rank :: self.size])
        return found


@pytest.mark.parametrize("protocol", [Sliding, Stream])
@pytest.mark.parametrize("size", [2, 3, 50])
def test_scores_are_the_same(protocol: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than a chunk of logits, and with processes that have nothing to do. Each
    token is at another place of a product of logits, which may round it otherwise.
    """
    monkeypatch.setattr("posbench.evaluation.score.LOGIT_ROWS", 32)
    texts = documents(80, 40, 61, 47, 55)
    model = build(Shape(16, 2, 2), 50, ALiBi, seed=1, feed_forward=32)
    windows: list[Window] = protocol(settings(stride=3, segment=8, tokens=1000)).windows(texts, 16)
    whole = score(model, texts, windows, 64, torch.device("cpu"))
    parts = score(model, texts, windows, 64, torch.device("cpu"), Split(size=size))
    close(parts, whole, torch.float32, of_model(model, 16))


@pytest.mark.parametrize("count", [3, 8, 13])
def test_lanes_are_shared_out_evenly(count: int) -> None:
    shares = [range(count)[World(rank, 3).share(count)] for rank in range(3)]
    assert [lane for share in shares for lane in share] == [*range(count)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_draw_their_own_dropout_and_the_same_positions() -> None:
    def drawn(rank: int, step: int, dropout: float) -> float:
        trainer = made(f"model.dropout={dropout}")
        trainer.world, trainer.step = World(rank, 3), step
        trainer.seed()
        return torch.rand(()).item()

    assert len({drawn(rank, 0, 0.0) for rank in range(3)}) == 1
    assert len({drawn(rank, step, 0.1) for rank in (1, 2) for step in (0, 5)}) == 4
    assert drawn(0, 5, 0.1) == drawn(0, 0, 0.0)  # as one process would


def test_fewer_windows_than_processes() -> None:
    class Vocabulary:
        vocabulary = 50

    config, cpu = composed("train.batch=2"), torch.device("cpu")
    with pytest.raises(UserError, match=r"train.batch=2 is less than the 3 processes"):
        make_trainer(config, Vocabulary(), cpu, torch.float32, World(size=3))  # type: ignore[arg-type]


def test_what_several_processes_are_not_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in ({"RANK": "0", "WORLD_SIZE": "2"} | where).items():
        monkeypatch.setenv(name, value)
    assert cli.run(["report"]) == 2
    assert errors(capfd.readouterr().err) == [
        "error: report is for one process: run it without torchrun"
    ]
    monkeypatch.setenv("RANK", "1")
    assert cli.run(["report"]) == 2
    assert not capfd.readouterr().err
    # A job in a process of a launcher's: torchrun's do not know of it.
    with pytest.raises(UserError, match="leave out hydra/launcher"):
        distributed.world()


def test_a_failure_that_the_others_do_not_know_of_ends_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory runs out in one process: its next job would meet the others' last one."""
    tried = []

    def fails(console: Console, name: str, steps: int) -> None:
        tried.append(name)
        raise MemoryError("not enough memory")

    monkeypatch.setattr(distributed, "world", lambda: World(size=2))
    monkeypatch.setattr(World, "gather", lambda self, value: [value, value])
    monkeypatch.setattr("posbench.runs.run.display", fails)
    assert cli.run(["train", "-m", "seed=1,2,3", *words(tmp_path)]) == 1
    assert tried == ["rope seed 1"]
