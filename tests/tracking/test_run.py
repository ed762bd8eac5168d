"""A run and its mirror: W&B's file has what the run's own files have, whatever happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb

from posbench import cli, tracking
from posbench.evaluation import results
from posbench.machine.files import read_rows
from tests.helpers.toy import arguments, flat, train
from tests.helpers.wandb_file import axes, opened, records, rows, settle, summary

pytestmark = pytest.mark.usefixtures("_no_wandb_account")
SECRETS = {"WANDB_API_KEY": "0123456789abcdef" * 3, "HF_TOKEN": "hf_" + "s3cret" * 6}


def folder(root: Path, name: str = "rope") -> Path:
    return root / "outputs" / "default" / name / "seed1"


def scored(run: Path) -> list[dict[str, float | int | None]]:
    return [
        {
            "length": result.length,
            **{f"{result.protocol}/{k}": v for k, v in results.shown(result).items() if v},
        }
        for result in results.read(run)
    ]


def test_the_mirror_has_the_rows_the_results_and_the_configuration(tmp_path: Path) -> None:
    extra = "eval.probes=[copy] eval.probe_distances=[16] eval.probe_trials=4"
    assert train(tmp_path, "tracking.wandb=offline run.experiment=a/b encoding=alibi", extra) == 0
    run = tmp_path / "outputs" / "a" / "b" / "alibi" / "seed1"
    assert rows(run) == read_rows(run / "metrics.jsonl")
    assert rows(run, "length") == scored(run)
    (probe,) = results.read_probes(run)
    (found,) = rows(run, "distance")
    assert found == {"distance": 16, "copy/recall": probe.recall, "copy/lift": probe.lift}
    assert axes(run)["fixed_targets/perplexity"] == "length"
    assert axes(run)["copy/recall"] == "distance"
    perplexities = {r.length: r.perplexity for r in results.read(run)}
    for length, perplexity in perplexities.items():
        assert summary(run)[f"fixed_targets/perplexity/{length}"] == perplexity
    cost = json.loads((run / "summary.json").read_text())
    assert cost["positional_parameters"] == 0
    assert cost.items() <= summary(run).items()
    told = opened(run).run
    assert (told.display_name, told.run_group) == ("alibi-seed1", "a/b")
    assert list(told.tags) == ["ALiBi", "files", "length 16", "untuned"]
    config = {item.key: json.loads(item.value_json) for item in told.config.update}
    assert config["encoding"]["_target_"] == "posbench.encodings.alibi.ALiBi"
    assert config["train"]["steps"] == 4


def test_a_killed_run_goes_on_and_its_mirror_has_every_point_once(tmp_path: Path) -> None:
    """kill -9 between checkpoints: the last rows are trained, and written, again."""
    more = ["tracking.wandb=offline train.steps=60 train.checkpoint_every=25"]
    words = flat(arguments(tmp_path, *more))
    run = folder(tmp_path)
    command = [sys.executable, "-m", "posbench", "train", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(read_rows(run / "metrics.jsonl")) < 30 or tracking.saved_id(run) is None:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = tracking.saved_id(run)
    (latest,) = (path.name for path in (run / "checkpoints").iterdir())
    assert latest == "step-000025"
    assert train(tmp_path, *more) == 0
    assert tracking.saved_id(run) == before == opened(run).run.run_id
    assert [row["step"] for row in rows(run)] == list(range(1, 61))
    assert rows(run) == read_rows(run / "metrics.jsonl")
    assert rows(run, "length") == scored(run)


@pytest.mark.slow
def test_late_evaluation_goes_into_the_same_run(tmp_path: Path) -> None:
    assert train(tmp_path, "tracking.wandb=offline") == 0
    run = folder(tmp_path)
    before = opened(run).run.run_id
    assert cli.run(["eval", f"run={run}", "eval.lengths=[48]", "runtime.threads=1"]) == 0
    assert opened(run).run.run_id == before
    assert rows(run) == read_rows(run / "metrics.jsonl")
    assert [row["length"] for row in rows(run, "length")] == [16, 32, 48]
    assert rows(run, "length") == scored(run)
    assert "fixed_targets/perplexity/48" in summary(run)
    (end,) = [r.exit for r in records(run) if r.HasField("exit")]
    assert end.exit_code == 0


@pytest.mark.slow
def test_a_run_that_was_not_tracked_is_tracked_later(tmp_path: Path) -> None:
    assert train(tmp_path) == 0
    run = folder(tmp_path)
    assert cli.run(["eval", f"run={run}", "tracking.wandb=offline", "runtime.threads=1"]) == 0
    assert rows(run) == read_rows(run / "metrics.jsonl")


def test_a_run_that_fails_is_finished_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("posbench.runs.run.evaluate", broken)
    with pytest.raises(RuntimeError, match="broken"):
        train(tmp_path, "tracking.wandb=offline")
    run = folder(tmp_path)
    (end,) = [r.exit for r in records(run) if r.HasField("exit")]
    assert end.exit_code == 1
    assert rows(run) == read_rows(run / "metrics.jsonl")


@pytest.mark.slow
def test_every_job_of_a_sweep_is_a_run_of_its_own(tmp_path: Path) -> None:
    words = flat(arguments(tmp_path, "tracking.wandb=offline encoding=alibi,rope"))
    assert cli.run(["train", "-m", *words]) == 0
    runs = [folder(tmp_path, name) for name in ("alibi", "rope")]
    for run, name in zip(runs, ("alibi-seed1", "rope-seed1"), strict=True):
        assert (opened(run).run.display_name, opened(run).run.run_group) == (name, "default")
        assert rows(run) == read_rows(run / "metrics.jsonl")
    assert tracking.saved_id(runs[0]) != tracking.saved_id(runs[1])


PROCESS = """
import sys
from pathlib import Path
from posbench import tracking
from posbench.config import TrackingConfig
folder, name = Path(sys.argv[1]), sys.argv[2]
folder.mkdir()
tracker = tracking.start(TrackingConfig(1, wandb="offline"), folder=folder, name=name, group="g",
                         settings={}, resume_id=None)
for step in range(1, 101):
    tracker.log({"step": step, "of": name}, "step")
print("ready", flush=True)
sys.stdin.readline()
tracker.finish(0)
"""


@pytest.mark.slow
def test_jobs_in_other_processes_have_runs_of_their_own(tmp_path: Path) -> None:
    """Two at a time, started by a process that is at W&B itself, as a launcher's parent may be."""
    wandb.setup()
    assert "WANDB_SERVICE" in os.environ  # which children inherit
    names = ("one", "two")
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path / name), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.communicate("end\n", timeout=120)
        assert job.returncode == 0
    for name in names:
        expected = [{"step": step, "of": name} for step in range(1, 101)]
        assert rows(tmp_path / name) == expected
    assert len({tracking.saved_id(tmp_path / name) for name in names}) == 2


def test_no_secret_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither where W&B can use the key, nor where it writes its logs."""
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    extra = "tracking.checkpoints=true"
    assert train(tmp_path, "tracking.wandb=offline", extra) == 0
    settle()
    assert rows(folder(tmp_path)) == read_rows(folder(tmp_path) / "metrics.jsonl")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for secret in SECRETS.values():
        assert not [path for path in files if secret.encode() in path.read_bytes()]
        assert not any(secret in text for text in capfd.readouterr())


def test_the_last_checkpoint_is_an_artifact_where_that_is_asked_for(tmp_path: Path) -> None:
    assert train(tmp_path, "tracking.wandb=offline", "tracking.checkpoints=true") == 0
    (kept,) = [r.artifact for r in records(folder(tmp_path)) if r.HasField("artifact")]
    assert kept.type == "model"
    assert sorted(entry.path for entry in kept.manifest.contents) == [
        "model.safetensors",
        "state.json",
        "training.safetensors",
    ]
    assert set(kept.aliases) == {"latest", "step-000004"}


def test_ctrl_c_finishes_the_run_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posbench.training.trainer import Trainer

    advance = Trainer.advance

    def interrupted(trainer: Trainer) -> None:
        advance(trainer)
        if trainer.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", interrupted)
        assert train(tmp_path, "tracking.wandb=offline train.checkpoint_every=100") == 130
    run = folder(tmp_path)
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    assert train(tmp_path, "tracking.wandb=offline train.checkpoint_every=100") == 0
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert rows(run) == read_rows(run / "metrics.jsonl")
