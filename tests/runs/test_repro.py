"""posbench repro: a run replayed from its folder, and what it says where the numbers differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.machine.files import read_rows
from posbench.runs.repro import differences
from posbench.runs.run_folder import RunFolder
from tests.helpers.marks import a_few
from tests.helpers.toy import train

Output = pytest.CaptureFixture[str]


def run_of(root: Path, *more: str) -> Path:
    """A finished toy run's folder."""
    assert train(root, "run.name=x", *more) == 0
    return root / "outputs" / "default" / "x" / "seed1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("run"), "encoding=alibi")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return shutil.copytree(finished, tmp_path / "seed1")


def repro(capfd: Output, run: Path, *more: str) -> tuple[int, str, str]:
    """The exit code, and what was said on stdout and stderr, each on one line."""
    capfd.readouterr()
    code = cli.run(["repro", str(run), *more])
    told = capfd.readouterr()
    assert told.err.count("\n") <= 1
    return code, " ".join(told.out.split()), told.err


def change_row(run: Path, step: int, **values: Any) -> None:
    rows = read_rows(run / "metrics.jsonl")
    rows[step - 1] |= values
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_provenance(run: Path, **values: Any) -> None:
    told = RunFolder(run).provenance | values
    (run / "provenance.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    "settings",
    a_few(
        [
            "encoding=transformer_xl model.dropout=0.1 train.accumulate=2",
            "encoding=randomized_rope tracking.every=2 train.steps=5",
            "encoding=t5 runtime.dtype=bfloat16",
        ],
        1,
    ),
)
def test_a_run_gives_the_same_numbers_again(tmp_path: Path, capfd: Output, settings: str) -> None:
    run = run_of(tmp_path, settings)
    files = [path for path in run.rglob("*") if path.is_file()]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    code, out, err = repro(capfd, run, "repro.score=true")
    assert (code, err) == (0, "")
    assert "the same to the last bit: loss, gradient norm, summed loss" in out
    steps = 5 if "steps=5" in settings else 4
    rows = 3 if "every=2" in settings else 4
    assert f"{steps} of {steps} steps replayed, {rows} rows compared" in out
    assert "what differs" not in out
    after = [path for path in run.rglob("*") if path.is_file()]
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in after}


@pytest.mark.slow
def test_so_many_steps_and_at_least_two_rows(tmp_path: Path, capfd: Output) -> None:
    run = run_of(tmp_path, "train.steps=9 tracking.every=3")
    for asked, steps, rows in ((1, 6, 2), (99, 9, 3)):
        code, out, _ = repro(capfd, run, f"repro.steps={asked}")
        assert code == 0
        assert f"{steps} of 9 steps replayed, {rows} rows compared" in out


@pytest.mark.parametrize(
    ("key", "name"), a_few([("loss", "loss"), ("grad_norm", "gradient norm")], 1)
)
def test_the_first_step_that_differs_is_named(
    run: Path, capfd: Output, key: str, name: str
) -> None:
    there = read_rows(run / "metrics.jsonl")[2][key]
    change_row(run, 3, **{key: there * (1 + 1e-6)})
    code, out, err = repro(capfd, run)
    assert code == 1
    assert "numbers that differ" in out
    assert f"from step 3 on ({name}, relative difference 1.0e-06)" in err
    assert "versions, device, threads and dtype are the run's" in err


def test_other_versions_are_named(run: Path, capfd: Output) -> None:
    packages = RunFolder(run).provenance["packages"]
    change_provenance(run, packages=packages | {"torch": "0.1"}, commit="abc")
    code, out, err = repro(capfd, run)
    assert (code, err) == (0, "")
    assert "torch 0.1" in out
    assert "commit abc" in out
    assert "the same to the last bit" in out
    change_row(run, 1, loss=1.0)
    code, _, err = repro(capfd, run)
    assert code == 1
    assert err.endswith("what differs: commit, torch\n")


def test_another_dtype_and_other_threads_are_named(run: Path, capfd: Output) -> None:
    other = "float32" if RunFolder(run).provenance["dtype"] == "bfloat16" else "bfloat16"
    code, out, err = repro(capfd, run, f"runtime.dtype={other}", "runtime.threads=2")
    assert code == 1
    assert f"dtype {RunFolder(run).provenance['dtype']} {other}" in out
    assert "what differs: dtype, threads" in err


def test_a_gpus_run_is_replayed_where_there_is_none(
    run: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    change_provenance(run, device="cuda", device_name="H200")
    code, out, _ = repro(capfd, run)
    assert code == 0
    assert "device cuda cpu" in out
    assert "H200" in out


def test_a_score_that_differs(run: Path, capfd: Output) -> None:
    path = run / "results.jsonl"
    rows = read_rows(path)
    rows[0]["nll"] += 1e-9
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert repro(capfd, run)[0] == 0
    code, _, err = repro(capfd, run, "repro.score=true")
    assert code == 1
    assert "summed loss of fixed_targets at length 16" in err


def test_a_run_that_goes_on_has_steps_but_no_score(run: Path, capfd: Output) -> None:
    RunFolder(run).write_status("interrupted")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert repro(capfd, run)[0] == 0
    code, _, err = repro(capfd, run, "repro.score=true")
    assert code == 1
    assert "not finished" in err


def test_a_replay_that_diverges_says_so(run: Path, capfd: Output) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("  lr: 0.005", "  lr: 1e38"))
    code, _, err = repro(capfd, run)
    assert code == 1
    assert "the run went on, but here the loss is" in err


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("", "has not logged a step"),
        ("{no\n", "a row is not JSON"),
        ('{"step": 1}\n', "not the rows of a training run ('loss')"),
        ("[]\n", "a row is no object"),
        ('{"step": 1, "loss": 1, "grad_norm": 1}\n' * 2, "not in order"),
    ],
)
def test_rows_that_are_none_get_one_clear_line(
    run: Path, capfd: Output, rows: str, expected: str
) -> None:
    (run / "metrics.jsonl").write_text(rows)
    code, _, err = repro(capfd, run)
    assert code == 1
    assert expected in err


def test_no_run_two_runs_no_steps(tmp_path: Path, run: Path, capfd: Output) -> None:
    code, _, err = repro(capfd, tmp_path)
    assert code == 1
    assert "not a run folder" in err
    code, _, err = repro(capfd, run, str(tmp_path))
    assert code == 1
    assert "one run folder" in err
    code, _, err = repro(capfd, run, "repro.steps=0")
    assert code == 1
    assert "repro.steps=0 must be at least 1" in err


@pytest.mark.slow
def test_another_version_of_the_corpus(tmp_path: Path, capfd: Output) -> None:
    run = run_of(tmp_path)
    (tmp_path / "text" / "0.txt").write_text("other words entirely " * 300)
    code, _, err = repro(capfd, run)
    assert code == 1
    assert "another version of corpus" in err


def test_what_two_provenances_say_differently() -> None:
    there = {"commit": "a", "packages": {"torch": "1", "numpy": "2"}, "tuning": None}
    here: dict[str, object] = {"commit": "a", "packages": {"torch": "2"}, "threads": 2}
    assert differences(there, here) == {"torch": ("1", "2"), "threads": (None, 2)}
