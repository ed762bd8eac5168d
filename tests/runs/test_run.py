"""Runs end to end at toy size: folders, resuming, stopping, sweeps, reports, outside encodings."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from posbench import cli
from posbench.evaluation import results
from posbench.machine.files import append_row, read_rows
from posbench.model import from_config
from posbench.report.reading import collect
from posbench.runs.run_folder import RunFolder
from posbench.training import checkpoint
from tests.helpers.inductor import needs_inductor
from tests.helpers.marks import a_few, slow
from tests.helpers.places import ROOT
from tests.helpers.tolerance import close, training
from tests.helpers.toy import arguments, flat, train

Output = pytest.CaptureFixture[str]
NINE = [
    "alibi",
    "deberta",
    "learned",
    "nope",
    "rope",
    "shaw",
    "sinusoidal",
    "t5",
    "transformer_xl",
]


def folder(root: Path, name: str = "alibi", seed: int = 1) -> Path:
    return root / "outputs" / "default" / name / f"seed{seed}"


def losses(path: Path) -> list[float]:
    return [row["loss"] for row in read_rows(path / "metrics.jsonl")]


def test_a_run_leaves_a_complete_folder(tmp_path: Path, capsys: Output) -> None:
    assert train(tmp_path, "encoding=alibi") == 0
    run = folder(tmp_path)
    assert RunFolder(run).status == {"state": "done", "reason": None}
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [1, 2, 3, 4]
    found = results.read(run)
    assert [(r.protocol, r.length) for r in found] == [("fixed_targets", n) for n in (16, 32)]
    assert len({r.targets for r in found}) == 1
    for result in found:
        file = run / "losses" / f"fixed_targets-{result.length}-{result.targets}.npz"
        arrays = np.load(file, allow_pickle=False)
        saved = arrays["losses"]
        assert arrays["windows"][:, 2:].tolist() == [[result.length, 8, 0]] * 4
        assert saved.shape == (result.tokens,) == (4 * 8,)
        terms = len(saved)
        close(saved.sum(), result.nll, torch.float32, terms)
        close(np.exp(saved.mean(dtype=float)), result.perplexity, torch.float32, terms)
        close(saved.mean() / np.log(2), result.bits_per_byte, torch.float32, terms)
    assert json.loads((run / "provenance.json").read_text())["packages"]["torch"]
    shown = capsys.readouterr().out
    assert "alibi" in shown
    assert f"{found[0].perplexity:.2f}" in shown


def test_the_same_command_again_says_that_it_is_done(tmp_path: Path, capsys: Output) -> None:
    assert train(tmp_path) == 0
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert train(tmp_path) == 0
    assert "is finished" in capsys.readouterr().out.replace("\n", " ")
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_another_config_in_the_same_folder_is_refused(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path, "encoding=alibi") == 0
    capfd.readouterr()
    assert train(tmp_path, "encoding=alibi", "optim.lr=0.1 model.layers=1") == 1
    said = capfd.readouterr().err
    for part in ("optim.lr", "0.1 asked", "model.layers", "run.name", "run.overwrite=true"):
        assert part in said
    assert train(tmp_path, "encoding=alibi", "optim.lr=0.1", "run.overwrite=true") == 0
    assert train(tmp_path, "encoding=alibi", "runtime.threads=2", "optim.lr=0.1") == 0


MIXED = (  # memory in some layers only
    "irope encoding.pattern=[rope,xl] ~encoding.parts.nope "
    "+encoding@encoding.parts.xl=transformer_xl"
)


@pytest.mark.parametrize("encoding", ["transformer_xl", MIXED, *slow("alibi", "randomized_rope")])
def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path: Path, encoding: str) -> None:
    arguments(tmp_path)  # writes the text
    more = [f"encoding={encoding} run.name=x train.steps=8 model.dropout=0.1 train.accumulate=2"]
    more.append(f"corpus.path={tmp_path}/text")
    assert train(tmp_path / "whole", *more) == 0
    assert train(tmp_path / "cut", *more) == 0
    whole, cut = folder(tmp_path / "whole", "x"), folder(tmp_path / "cut", "x")
    # As if killed after step 6: one checkpoint back, rows beyond it, no evaluation.
    (cut / "checkpoints" / "step-000008").rename(tmp_path / "gone")
    (cut / "results.jsonl").unlink()
    (cut / "status.json").write_text('{"state": "running", "reason": null}')
    assert train(tmp_path / "cut", *more) == 0
    assert losses(whole) == losses(cut)
    last = [load_file(run / "checkpoints/step-000008/model.safetensors") for run in (whole, cut)]
    assert all(last[0][name].equal(last[1][name]) for name in last[0])
    nll = [[r.nll for r in results.read(run)] for run in (whole, cut)]
    assert nll[0] == nll[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # torch's own
@needs_inductor
def test_a_compiled_run_gives_the_same_losses(tmp_path: Path) -> None:
    """Layers that differ, parameters with bounds, explicit scores, random positions."""
    mix = (
        "encoding=irope encoding.pattern=[dape,t5] ~encoding.parts.rope ~encoding.parts.nope "
        "+encoding@encoding.parts.dape=dape +encoding@encoding.parts.t5=randomized_t5 run.name=x"
    )
    assert train(tmp_path / "eager", mix) == 0
    compiled = "train.compile=true runtime.cuda_graphs=true"  # on a CPU the latter does nothing
    assert train(tmp_path / "compiled", mix, compiled) == 0
    eager, other = (losses(folder(tmp_path / kind, "x")) for kind in ("eager", "compiled"))
    run = RunFolder(folder(tmp_path / "eager", "x"))
    model = from_config.model(run.typed(), run.summary["vocabulary"])
    dtype = getattr(torch, run.provenance["dtype"])
    limit = training(model, 16, len(eager), dtype)
    assert other == pytest.approx(eager, rel=limit)


@pytest.mark.parametrize("stop", a_few([signal.SIGINT, signal.SIGTERM], 1))
def test_a_signal_saves_and_stops(tmp_path: Path, stop: signal.Signals) -> None:
    words = flat(arguments(tmp_path, "train.steps=100000 train.checkpoint_every=100000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "posbench", "train", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    metrics = folder(tmp_path, "rope") / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while len(read_rows(metrics)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(stop)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "the same command" in said
    saved = checkpoint.latest(folder(tmp_path, "rope"))
    assert saved is not None
    assert checkpoint.step_of(saved) == len(read_rows(metrics))
    assert RunFolder(folder(tmp_path, "rope")).status["state"] == "interrupted"


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, capfd: Output) -> None:
    words = "optim.lr=1e38 train.checkpoint_every=1 optim.clip=1e30"
    assert train(tmp_path, words) == 1
    said = capfd.readouterr().err
    assert "the loss is" in said
    assert "at step 2; last good checkpoint" in said
    assert "step-000001" in said
    assert RunFolder(folder(tmp_path, "rope")).status["state"] == "failed"
    assert "Diverged" in (folder(tmp_path, "rope") / "error.txt").read_text()


def test_lengths_and_probes_without_a_number_are_told_and_all_is_read(
    tmp_path: Path,
    capfd: Output,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's encoding breaks from distance 20 on: train, eval, report and claims end well."""
    (tmp_path / "breaking.py").write_text(
        "import torch\n"
        "from posbench.encodings import Encoding\n"
        "class Breaking(Encoding):\n"
        "    def distance_bias(self, distance, layer):\n"
        "        bias = torch.where(distance < 20, 0.0, float('nan'))\n"
        "        return bias.expand(self.shape.heads, -1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    probes = "eval.probes=[passkey,copy] eval.probe_distances=[12,40] eval.probe_trials=4"
    words = f"encoding=nope encoding._target_=breaking.Breaking run.name=breaking {probes}"
    assert train(tmp_path, words) == 0
    shown = capfd.readouterr().out
    reason = "the loss is no number in 4 of 4 windows from position 24"
    assert f"fixed_targets at length 32: {reason}" in caplog.messages
    assert f"breaking, n/a: {reason}" in " ".join(shown.split())
    for name in ("passkey", "copy"):
        assert f"{name}, recall by distance" in shown
    run = tmp_path / "outputs/default/breaking/seed1"
    assert RunFolder(run).status == {"state": "done", "reason": None}
    assert [path.name for path in (run / "losses").iterdir() if "-32-" in path.name] == []
    assert cli.run(["eval", f"run={run}", "eval.lengths=[16,24,32]", "eval.probes=[copy]"]) == 0
    shown = capfd.readouterr().out
    assert "copy, recall by distance" in shown
    assert "passkey, recall" not in shown
    outputs = tmp_path / "outputs"
    formats = "report.formats=[terminal,markdown,csv,html,latex] report.figures=[svg]"
    against = "report.against=press2022 report.baseline=breaking"
    words = f"runs=[{outputs}] folder={tmp_path} {formats} {against}"
    assert cli.run(["report", *words.split()]) == 0
    with (tmp_path / "report.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["reason"] == reason]
    assert {(row["quantity"], row["length"], row["value"]) for row in rows} >= {("nll", "32", "")}
    for kind in ("html", "md", "tex"):
        assert "the loss is no number" in (tmp_path / f"report.{kind}").read_text()
    assert cli.run(["claims", f"runs=[{outputs}]", f"folder={tmp_path}"]) == 0


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", "one bit"),
        ("training.safetensors", "cut"),
        ("state.json", "gone"),
        *slow(
            ("model.safetensors", "cut"),
            ("model.safetensors", "gone"),
            ("training.safetensors", "one bit"),
            ("training.safetensors", "gone"),
            ("state.json", "cut"),
            ("state.json", "one bit"),
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Output, name: str, damage: str
) -> None:
    assert train(tmp_path, "train.steps=6") == 0
    run = folder(tmp_path, "rope")
    weights = load_file(run / "checkpoints/step-000006/model.safetensors")
    before = {key: tensor.clone() for key, tensor in weights.items()}  # no view of the file
    whole = losses(run)
    (run / "status.json").write_text('{"state": "running", "reason": null}')

    def spoil(step: int) -> None:
        file = run / f"checkpoints/step-{step:06d}" / name
        written = bytearray(file.read_bytes())
        written[len(written) // 2] ^= 0x80 if damage == "one bit" else 0
        file.write_bytes(written[: len(written) // (2 if damage == "cut" else 1)])
        if damage == "gone":
            file.unlink()

    spoil(6)
    assert train(tmp_path, "train.steps=6") == 0
    assert "step-000006" in caplog.text
    assert name in caplog.text
    assert "step-000004" in caplog.text
    assert losses(run) == whole
    after = load_file(run / "checkpoints/step-000006/model.safetensors")
    assert all(before[tensor].equal(after[tensor]) for tensor in before)

    (run / "status.json").write_text('{"state": "running", "reason": null}')
    spoil(4)
    spoil(6)
    capfd.readouterr()
    assert train(tmp_path, "train.steps=6") == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ")
    assert name in said
    assert "step-000006" in said
    assert "run.overwrite=true" in said


def test_a_sweep_with_a_failing_job(tmp_path: Path, capfd: Output) -> None:
    words = flat(arguments(tmp_path, "encoding=alibi,learned,rope seed=1,2"))
    # A run of another configuration is in the way of one job.
    assert train(tmp_path, "encoding=rope seed=2 optim.lr=0.1") == 0
    capfd.readouterr()
    assert cli.run(["train", "-m", *words]) == 1
    told = capfd.readouterr()
    assert "rope seed 2" in told.err
    assert "optim.lr" in told.err
    assert "1 of 6 jobs failed" in told.err
    repeat = told.err.strip().splitlines()[-1].split()
    assert repeat[:2] == ["posbench", "train"]
    assert {"encoding=rope", "seed=2"} <= set(repeat)
    assert "-m" not in repeat
    found = collect.runs(collect.folders([str(tmp_path)]))
    done = [run for run in found if run.why_incomplete is None]
    assert len(done) == 6
    assert "seeds 1, 2" in " ".join(told.out.split())
    assert cli.run(["report", f"runs=[{tmp_path}]", f"folder={tmp_path}"]) == 0


@pytest.mark.slow
def test_a_mistake_does_not_cost_a_finished_run(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path, "encoding=shaw") == 0
    before = results.read(folder(tmp_path, "shaw"))
    for mistake in ("encoding.k=-1", "corpus.path=/nowhere", "eval.lengths=[9999]"):
        assert train(tmp_path, "encoding=shaw run.overwrite=true", mistake) == 1
    assert results.read(folder(tmp_path, "shaw")) == before
    assert RunFolder(folder(tmp_path, "shaw")).finished


def test_a_run_that_got_nowhere_is_replaced(tmp_path: Path) -> None:
    assert train(tmp_path, "optim.lr=1e38 optim.clip=1e30") == 1
    assert train(tmp_path, "optim.lr=1e-3") == 0


def test_a_corpus_that_changes_under_a_run_is_noticed(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path) == 0
    RunFolder(folder(tmp_path, "rope")).write_status("running")
    (tmp_path / "text" / "0.txt").write_text("other words entirely " * 300)
    assert train(tmp_path) == 1
    assert "another version of the corpus" in capfd.readouterr().err


def test_another_process_in_the_folder_is_named(tmp_path: Path, capfd: Output) -> None:
    """And its files stay as they are, also before its first checkpoint."""
    run = RunFolder(folder(tmp_path, "rope"))
    run.path.parent.mkdir(parents=True)
    with FileLock(run.path.with_name(".seed1.lock")):
        run.path.mkdir()
        (run.path / "config.yaml").write_text("run: {}\n")
        for words in ("optim.lr=0.1", "run.overwrite=true"):
            assert train(tmp_path, words) == 1
            assert "another process" in capfd.readouterr().err
        assert (run.path / "config.yaml").read_text() == "run: {}\n"
    assert train(tmp_path) == 0


def test_a_run_is_not_resumed_in_another_dtype(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path) == 0
    run = RunFolder(folder(tmp_path, "rope"))
    run.write_status("running")
    other = "float32" if run.provenance["dtype"] == "bfloat16" else "bfloat16"
    began = run.provenance | {"dtype": other}
    (run.path / "provenance.json").write_text(json.dumps(began))
    assert train(tmp_path) == 1
    assert f"begun in {other}" in capfd.readouterr().err


def test_a_damaged_config_gets_one_clear_line(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path) == 0
    (folder(tmp_path, "rope") / "config.yaml").write_text("a: [1\n")
    assert train(tmp_path) == 1
    said = capfd.readouterr().err
    assert "not valid YAML" in said
    assert said.count("\n") == 1


def test_other_lengths_of_a_finished_run_point_to_eval(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path) == 0
    assert train(tmp_path, "eval.lengths=[16,48]") == 1
    assert f"posbench eval {folder(tmp_path, 'rope')}" in capfd.readouterr().err


def test_half_a_line_left_by_a_crash_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2, "b')
    append_row(path, {"a": 3})
    assert read_rows(path) == [{"a": 1}, {"a": 3}]


def test_a_run_that_cannot_be_read_is_named(tmp_path: Path, capfd: Output) -> None:
    assert train(tmp_path) == 0
    (folder(tmp_path, "rope") / "results.jsonl").write_text("{not json\n")
    assert cli.run(["report", f"runs=[{tmp_path}]", f"folder={tmp_path}"]) == 1
    assert "a row" in capfd.readouterr().err


@pytest.mark.slow
def test_every_encoding_trains_reports_and_reads_na(tmp_path: Path, capsys: Output) -> None:
    words = flat(arguments(tmp_path, f"encoding={','.join(NINE)} train.steps=2"))
    assert cli.run(["train", "-m", *words]) == 0
    capsys.readouterr()
    assert cli.run(["report", f"runs=[{tmp_path}]", f"folder={tmp_path}"]) == 0
    report = (tmp_path / "report.md").read_text()
    for name in NINE:
        assert f"| {name} |" in report
    assert "learned, n/a: no position past 16" in report
    with (tmp_path / "report.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "1"]
    assert sum(row["quantity"] == "perplexity" for row in rows) == 9 * 2


def test_unfinished_runs_are_in_the_report_with_their_reason(tmp_path: Path) -> None:
    assert train(tmp_path, "encoding=alibi") == 0
    assert train(tmp_path, "encoding=rope optim.lr=1e38 optim.clip=1e30 seed=3") == 1
    assert train(tmp_path, "encoding=rope seed=4") == 0
    RunFolder(folder(tmp_path, "rope", 4)).write_status("running")
    assert cli.run(["report", f"runs=[{tmp_path}]", f"folder={tmp_path}"]) == 0
    report = (tmp_path / "report.md").read_text()
    assert "rope: seed 3 failed: the loss is" in report
    assert "rope: seed 4 running" in report


def test_eval_scores_a_finished_run_at_other_lengths(tmp_path: Path, capsys: Output) -> None:
    assert train(tmp_path, "encoding=alibi") == 0
    run = folder(tmp_path)
    first = results.read(run)
    capsys.readouterr()
    words = [str(run), "eval.lengths=[16,64]", "eval.protocols=[fixed_targets,nonoverlapping]"]
    assert cli.run(["eval", *words, "eval.tokens=200", "runtime.threads=1"]) == 0
    found = results.read(run)
    assert found[: len(first)] == first
    assert {(r.protocol, r.length) for r in found[len(first) :]} == {
        (protocol, length)
        for protocol in ("fixed_targets", "nonoverlapping")
        for length in (16, 64)
    }
    assert "64 (4×)" in capsys.readouterr().out


@pytest.mark.slow
def test_an_encoding_from_outside(tmp_path: Path) -> None:
    """The README's mine.py and mine.yaml, in a folder of the user's own."""
    readme = (ROOT / "README.md").read_text()
    python, yaml = (re.search(f"```{kind}\n(.*?)```", readme, re.S) for kind in ("python", "yaml"))
    assert python is not None
    assert yaml is not None
    (tmp_path / "conf" / "encoding").mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "mine.yaml").write_text(yaml[1])
    (tmp_path / "mine.py").write_text(python[1])
    words = flat(arguments(tmp_path, "encoding=mine,alibi"))
    here = ["--config-dir", "conf"]
    environment = {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(tmp_path)])}
    command = [sys.executable, "-m", "posbench", "train", "-m", *here, *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert cli.run(["report", f"runs=[{tmp_path}/outputs]", f"folder={tmp_path}"]) == 0
    report = (tmp_path / "report.md").read_text()
    assert "| mine |" in report
    assert "| 2 lr×10 |" in report
    assert "| alibi |" in report
    names = collect.runs(collect.folders([str(tmp_path)]))
    assert {run.name: run.summary["positional_parameters"] for run in names} == {
        "mine": 2,
        "alibi": 0,
    }
