"""Run folders and a tuned record that commit ceeadd1 made are read, and gone on with.

tests/data/ceeadd1 has a finished run, one that SIGTERM stopped after step 5 of 8, a record of
posbench tune, and their corpus. Corpora and tokenizers had other modules then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from posbench import cli
from posbench.config import ReproCommand, ReproConfig
from posbench.config.schemas import MachineChanges
from posbench.config.targets import as_of_now
from posbench.evaluation import results
from posbench.runs import repro
from posbench.runs.run_folder import RunFolder
from tests.helpers.places import ROOT

FINISHED, STOPPED = "runs/finished/seed1", "runs/stopped/seed1"
# As the two runs were started then, but for where they lie.
ASKED = (
    "corpus=files corpus.path=text tokenizer=bytes encoding=t5 tracking.wandb=disabled "
    "run.root=. run.experiment=runs model.width=16 model.heads=2 model.layers=2 "
    "model.feed_forward=32 model.dropout=0.1 train.length=16 train.batch=2 "
    "train.checkpoint_every=4 tracking.every=2 optim.warmup=1 eval.lengths=[16,32] "
    "eval.targets=8 eval.blocks=4 eval.probes=[copy] eval.probe_distances=[16] "
    "eval.probe_trials=8 runtime.device=cpu runtime.dtype=float32 runtime.threads=1"
).split()


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests/data/ceeadd1", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_the_files_have_names_of_then() -> None:
    text = Path(FINISHED, "config.yaml").read_text() + Path("runs/tuned/tuned.yaml").read_text()
    assert "posbench.sources.Files" in text
    assert "posbench.tokenizer.Bytes" in text


def test_report_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "runs", "folder=made", "report.formats=[terminal,csv]"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "finished" in shown
    assert "stopped" in shown
    assert "tokenizer Bytes, vocabulary 257" in shown
    (there, *_) = results.read(Path(FINISHED))
    assert f"{there.perplexity}" in Path("made/report.csv").read_text()


def test_eval_scores_one_again() -> None:
    before = {each.length: each for each in results.read(Path(FINISHED))}
    assert cli.run(["eval", FINISHED, "eval.lengths=[16,32]", "eval.probes=[copy]"]) == 0
    rows = [json.loads(row) for row in Path(FINISHED, "results.jsonl").read_text().splitlines()]
    assert [row["length"] for row in rows] == [16, 32, 16, 32]
    for row in rows[2:]:
        there = before[row["length"]]
        assert row["targets"] == there.targets
        assert row["nll"] == pytest.approx(there.nll, rel=1e-4)


def test_repro_replays_it() -> None:
    asked = ReproCommand(FINISHED, ReproConfig(4, True), MachineChanges(None, None, None))
    done = repro.replay(asked, Console(quiet=True))
    assert len(done.pairs) == 5  # two rows of loss and gradient norm, one score
    assert all(pair.relative < 1e-3 for pair in done.pairs), done.pairs


def test_train_goes_on_with_the_one_that_was_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", *ASKED, "run.name=stopped", "train.steps=8"]) == 0
    assert "goes on after step 5 with" in " ".join(capsys.readouterr().out.split())
    folder = RunFolder(Path(STOPPED))
    assert folder.finished
    assert [(part["from"], part["to"]) for part in folder.parts] == [(0, 5), (5, 8)]
    rows = [json.loads(row) for row in Path(STOPPED, "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 6, 8]


def test_train_finds_the_one_that_is_finished(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", *ASKED, "run.name=finished", "train.steps=4"]) == 0
    assert "is finished" in " ".join(capsys.readouterr().out.split())


def test_train_uses_the_tuned_record(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASKED, "run.name=tuned", "train.steps=4", "tuned=true"]
    assert cli.run(["train", *words]) == 0
    assert "tuned, 2 trials: lr 0.005" in " ".join(capsys.readouterr().out.split())


def test_a_yaml_of_a_user_may_name_them_so(capsys: pytest.CaptureFixture[str]) -> None:
    names = "corpus._target_=posbench.sources.Files tokenizer._target_=posbench.tokenizer.Bytes"
    assert cli.run(["train", *ASKED, *names.split(), "run.name=finished", "train.steps=4"]) == 0
    assert "is finished" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("posbench.sources.Hub", "posbench.corpus.sources.Hub"),
        ("posbench.tokenizer.BPE", "posbench.corpus.tokenizer.BPE"),
        ("posbench.encodings.t5.T5Bias", "posbench.encodings.t5.T5Bias"),
        ("mine.tokenizer.Own", "mine.tokenizer.Own"),
    ],
)
def test_a_class_by_its_name_of_then(name: str, now: str) -> None:
    assert as_of_now({"corpus": {"_target_": name}}) == {"corpus": {"_target_": now}}
    assert as_of_now({"corpus._target_": name}) == {"corpus._target_": now}
    assert as_of_now({"corpus": {"name": name}}) == {"corpus": {"name": name}}
