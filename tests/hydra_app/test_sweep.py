"""Multiruns: what is seen before the first job, no trace of it in the next one, and the end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from posbench import cli
from posbench.encodings import Encoding
from posbench.evaluation import results
from posbench.machine.files import read_rows
from posbench.runs.run_folder import RunFolder
from tests.helpers.marks import a_few
from tests.helpers.toy import arguments, flat

Output = pytest.CaptureFixture[str]


class Wild(Encoding):
    """Comes to nothing at once."""

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        return distance.new_full((self.shape.heads, len(distance)), torch.nan, dtype=torch.float)


def sweep(root: Path, *more: str, command: str = "train") -> int:
    return cli.run([command, "-m", *flat(arguments(root, *more))])


def runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("config.yaml"))


@pytest.mark.parametrize(
    ("words", "said"),
    a_few(
        [
            ("encoding=alibi,shaw +encoding.k=3", "1 of 2 jobs.*encoding.k.*encoding=shaw"),
            ("encoding=shaw,alibi ++encoding.k=3", "1 of 2 jobs.*encoding.k: ALiBi.*alibi seed 1"),
            ("encoding=rope,t5 encoding.k=3", r"encoding.k: this.*in a sweep \+\+encoding.k"),
            ("encoding=alibi,nosuch", "1 of 2 jobs.*encoding=nosuch: there is no such"),
            ("encoding=alibi,t5 seed=1,x", "2 of 4 jobs.*seed: .*alibi seed x, t5 seed x"),
            ("encoding=alibi model.heads=2,3", "1 of 2 jobs.*model.heads=3 must divide"),
            ("encoding=alibi,t5 tuned=true", "2 of 2 jobs.*alibi.yaml: there is no such record"),
            ("encoding=alibi optim.lr=1e-2,1e-3", "2 jobs share the folder .*run.name"),
        ],
        3,
    ),
)
def test_what_a_job_would_trip_over_is_said_before_the_first(
    tmp_path: Path, capfd: Output, words: str, said: str
) -> None:
    assert sweep(tmp_path, words) == 1
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("error: ")
    assert re.search(said, told.err), told.err
    assert not runs(tmp_path)


def test_a_dry_run_lists_the_jobs_and_does_nothing(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # where it is narrow, a folder tells its run
    words = "encoding=alibi,learned seed=1,2"
    assert sweep(tmp_path, "encoding=alibi seed=2") == 0
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    capfd.readouterr()
    assert sweep(tmp_path, words, "dry_run=true") == 0
    told = capfd.readouterr().out
    rows = {row.split()[0]: row for row in told.splitlines() if " seed " in row}
    assert len(rows) == 4
    assert " done " in rows["2"]
    assert "MiB" not in rows["2"]
    for number in "134":
        assert " new " in rows[number]
        assert "MiB" in rows[number]
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert cli.run(["train", *flat(arguments(tmp_path, "encoding=t5 dry_run=true"))]) == 0
    assert "t5 seed 1" in capfd.readouterr().out
    assert len(runs(tmp_path)) == 1


@pytest.mark.slow
def test_what_failed_before_it_got_anywhere_is_in_nobodys_way(
    tmp_path: Path, capfd: Output
) -> None:
    """A failed job's folder is of the configuration that it would have run with."""
    short = "encoding=learned run.name=x ++encoding.max_length=8 tuned=auto seed=1,2"
    assert sweep(tmp_path, short) == 1
    capfd.readouterr()
    assert sweep(tmp_path, short, "dry_run=true") == 1
    told = " ".join(capfd.readouterr().out.split())
    assert "another configuration" not in told
    words = "encoding=learned run.name=x tuned=auto seed=1"
    assert sweep(tmp_path, words, "dry_run=true") == 0
    assert " new " in capfd.readouterr().out
    assert sweep(tmp_path, words) == 0


def test_a_dry_run_says_what_cannot_run(tmp_path: Path, capfd: Output) -> None:
    words = "encoding=learned,learned_clamp ++encoding.max_length=8 dry_run=true"
    assert sweep(tmp_path, words) == 1
    told = capfd.readouterr()
    assert "positions" in " ".join(told.out.split())
    assert "error: 1 of 2 jobs cannot run" in told.err


def test_other_commands_have_no_dry_run(tmp_path: Path, capfd: Output) -> None:
    for command in ("check", "tune", "speed", "describe"):
        assert cli.run([command, "dry_run=true"]) == 1
        assert "posbench train alone" in capfd.readouterr().err


def test_a_command_that_knows_no_sweeps_fails_with_a_job_of_one(
    tmp_path: Path, capfd: Output
) -> None:
    words = [f"runs=[{tmp_path}/a],[{tmp_path}/b]", f"folder={tmp_path}"]
    assert cli.run(["report", "-m", *words]) == 1
    assert "2 of 2 jobs failed" in capfd.readouterr().err


CASES = ["encoding=randomized_rope", "encoding=transformer_xl", "encoding=shaw"]
MORE = "model.dropout=0.1 train.accumulate=2 eval.probes=[copy] eval.probe_distances=[12]"


@pytest.mark.slow
def test_a_job_is_the_run_alone(tmp_path: Path) -> None:
    """Numbers, weights and probes, to the last bit, after jobs of other sizes and threads."""
    apart, together = tmp_path / "apart", tmp_path / "together"
    names = ",".join(word.partition("=")[2] for word in CASES)
    before = "encoding=t5 run.name=t5-${model.width} model.width=16,64 runtime.threads=2"
    assert sweep(together, MORE, before) == 0
    assert sweep(together, MORE, f"encoding={names} seed=1,2") == 0
    for words in CASES:  # the second seed: after most of the others
        assert _alone(["train", *flat(arguments(apart, MORE, words, "seed=2"))]) == 0
    found = runs(apart)
    assert len(found) == 3
    for one in found:
        other = together / one.relative_to(apart)
        assert _numbers(one) == _numbers(other)
        weights = [
            load_file(p / "checkpoints/step-000004/model.safetensors") for p in (one, other)
        ]
        assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def _alone(*commands: list[str]) -> int:
    """In a process that has not run anything; the sum of the exit codes."""
    code = f"from posbench import cli; raise SystemExit(sum(map(cli.run, {commands!r})))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    ).returncode


def _numbers(run: Path) -> list[object]:
    rows = read_rows(run / "metrics.jsonl")
    trained = [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in rows]
    probed = [(probe.distance, probe.hits, probe.lifts) for probe in results.read_probes(run)]
    return [trained, [result.nll for result in results.read(run)], probed]


@pytest.mark.slow
def test_the_peak_of_memory_is_the_runs_own(tmp_path: Path) -> None:
    """A small run after a large one in the same process: what was freed is not counted."""
    large = "encoding=rope run.name=large model.width=256 train.length=256 train.batch=8"
    small, alone = (f"encoding=rope run.name={name}" for name in ("small", "alone"))
    words = [flat(arguments(tmp_path, each)) for each in (large, small, alone)]
    assert _alone(["train", *words[0]], ["train", *words[1]]) == 0
    assert _alone(["train", *words[2]]) == 0
    peaks = {
        run.parent.name: RunFolder(run).summary["train_peak_memory"] / 2**20
        for run in runs(tmp_path)
    }
    assert peaks["large"] > peaks["alone"] + 50
    assert peaks["small"] < peaks["alone"] + 0.3 * (peaks["large"] - peaks["alone"])


def test_a_failing_job_leaves_its_traceback_and_the_way_to_repeat_it(
    tmp_path: Path, capfd: Output
) -> None:
    """One that diverges, one that fails before it has its folder; the third one is done."""
    conf = tmp_path / "conf" / "encoding"
    conf.mkdir(parents=True)
    (conf / "wild.yaml").write_text("_target_: tests.hydra_app.test_sweep.Wild\n")
    (conf / "short.yaml").write_text(
        "_target_: posbench.encodings.learned.Learned\nmax_length: 8\nstd: 1\nbeyond: refuse\n"
    )
    words = ["encoding=wild,short,alibi", f"--config-dir {conf.parent}"]
    assert sweep(tmp_path, *words) == 1
    told = capfd.readouterr().err
    assert "error: 2 of 3 jobs failed" in told
    for name, reason in (("wild", "the loss is nan"), ("short", "has 8 positions")):
        folder = tmp_path / f"outputs/default/{name}/seed1"
        assert reason in RunFolder(folder).status["reason"]
        assert "Traceback" in (folder / "error.txt").read_text()
        assert told.count(f"{name} seed 1: ") == 2  # at once, and at the end
    assert RunFolder(tmp_path / "outputs/default/alibi/seed1").finished
    repeat = told.strip().splitlines()[-1].split()
    assert f"--config-dir={conf.parent}" in repeat
    assert "encoding=short" in repeat
    assert cli.run(repeat[1:]) == 1
    capfd.readouterr()
    assert cli.run(["report", str(tmp_path), f"folder={tmp_path / 'report'}"]) == 0
    assert "8 positions" in " ".join(capfd.readouterr().out.split())
