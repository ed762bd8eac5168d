"""Habits from other Hydra applications: each works, or one line says what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from posbench import cli
from posbench.hydra_app.overrides import readable
from posbench.runs.run_folder import RunFolder
from tests.helpers.marks import a_few
from tests.helpers.toy import arguments, flat
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]

STEPS = "train: {steps: 1}\n"
NOPE = "_target_: posbench.encodings.nope.NoPE\n"
GLOBAL = "# @package _global_\n"
FILES = {
    "experiment/mine": STEPS,
    "experiment/late": f"# mine\n{GLOBAL}{STEPS}",
    "experiment/typo": f"# @package _globl_\n{STEPS}",
    "experiment/key": f"{GLOBAL}trian: {{steps: 1}}\n{STEPS}",
    "experiment/good": GLOBAL + STEPS,
    "experiment/broken": f"{GLOBAL}a: [\n",
    "experiment/list": f"{GLOBAL}- a\n",
    "experiment/swept": f"{GLOBAL}hydra: {{sweeper: {{params: {{seed: '1,2'}}}}}}\n{STEPS}",
    "experiment/moved": f"{GLOBAL}hydra: {{job: {{chdir: true}}}}\n{STEPS}",
    "scale/mine": STEPS,
    "encoding/top": GLOBAL + NOPE,
    "encoding/below": f"# @package encoding.x\n{NOPE}",
    "encoding/based": "defaults: [alibi, _self_]\n",
    "encodings/plural": NOPE,
    "root": NOPE,
    "own": f"defaults: [train, _self_]\n{STEPS}",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a run, in a folder with a folder of configuration."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = Path("my_conf") / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    Path("my_conf/encoding/yml.yml").write_text(NOPE)
    words = flat(arguments(tmp_path))
    return [word for word in words if word != "train.steps=4"] + ["--config-dir", "my_conf"]


@pytest.mark.parametrize(
    ("words", "expected"),
    a_few(
        [
            (
                "experiment=mine",
                ["my_conf/experiment/mine.yaml", "first line", "# @package _global_"],
            ),
            ("experiment=late", ["my_conf/experiment/late.yaml", "first line", "other comment"]),
            (
                "experiment=typo",
                ["my_conf/experiment/typo.yaml", "_globl_", "# @package _global_"],
            ),
            ("experiment=key", ["my_conf/experiment/key.yaml: trian", "did you mean train?"]),
            ("experiment=broken", ["my_conf/experiment/broken.yaml", "line 3"]),
            ("experiment=list", ["experiment/list", "Cannot merge"]),
            ("experiment=moved", ["hydra.job.chdir", "run.root"]),
            ("scale=mine", ["my_conf/scale/mine.yaml", "first line"]),
            ("-m experiment=mine seed=1,2", ["2 of 2 jobs", "my_conf/experiment/mine.yaml"]),
            ("-m experiment=moved", ["hydra.job.chdir", "run.root"]),
            ("encoding=top", ["my_conf/encoding/top.yaml: _target_", "`# @package _global_`"]),
            ("encoding=below", ["encoding._target_"]),
            ("encoding=yml", ["my_conf/encoding/yml.yml", "my_conf/encoding/yml.yaml"]),
            ("encoding=plural", ["my_conf/encodings/plural.yaml", "my_conf/encoding/plural.yaml"]),
            ("encoding=root", ["my_conf/root.yaml", "my_conf/encoding/root.yaml"]),
            ("encoding=null", ["encoding=null", "must be a choice"]),
            ("~encoding", ["~encoding", "must be a choice"]),
            ("~tracking", ["~tracking", "must be a choice"]),
            ("~train.length", ["train.length: must be given"]),
            ("~nosuch", ["nosuch"]),
            ("train.length=null", ["train.length: must not be null"]),
            ("run=null", ["run: must not be null"]),
            (
                "hydra.job.chdir=true hydra.run.dir=foo",
                ["hydra.run.dir, hydra.job.chdir", "run.root"],
            ),
            ("hydra.run.dir=foo", ["hydra.run.dir", "run.root"]),
            ("-m hydra.sweep.dir=foo", ["hydra.sweep.dir", "run.root"]),
            ("-m hydra.sweep.subdir=foo", ["hydra.sweep.subdir", "run.root"]),
            ("hydra.verbose=true", ["hydra.verbose", "hydra/job_logging=stdout"]),
            ("hydra.nosuch=1", ["hydra.nosuch"]),
            ("hydra.job.env_set.FOO=1", ["+hydra.job.env_set.FOO"]),
            ("hydra/sweeper=optuna -m", ["hydra/sweeper=optuna", "posbench tune"]),
            ("hydra/job_logging=colorlog", ["hydra/job_logging=colorlog", "stdout"]),
            ("hydra.searchpath=[nosuch]", ["hydra.searchpath=nosuch", "no such folder"]),
            ("--config-path my_conf", ["my_conf", "--config-dir"]),
            ("--config-name nosuch", ["nosuch", "--config-dir"]),
            ("--config-dir nosuch", ["--config-dir=nosuch", "no such folder"]),
            ("--experimental-rerun x", ["--experimental-rerun", "repeat the command"]),
            ("--resolve", ["--resolve", "--cfg"]),
            ("--run -m", ["--run", "--multirun"]),
        ],
        10,
    ),
)
def test_a_habit_that_is_not_shared_gets_one_line(
    toy: list[str], capfd: Output, words: str, expected: list[str]
) -> None:
    before = {*Path().iterdir()}
    assert cli.run(["train", *toy, *words.split()]) == 1
    said = one_line(capfd)
    for part in expected:
        assert part in said
    assert {*Path().iterdir()} == before


@pytest.mark.parametrize("command", a_few(["report", "claims", "published", "eval", "repro"], 2))
def test_no_command_works_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["hydra.job.chdir=true", "hydra.run.dir=foo", *(["x"] if command == "eval" else [])]
    assert cli.run([command, *words]) == 1
    assert "hydra.job.chdir" in one_line(capfd)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("+experiment=good", 1),
        ("experiment=null train.steps=2", 2),
        ("~experiment scale=null train.steps=2", 2),
        ("encoding=based experiment=good", 1),
        pytest.param("--config-name own", 1, marks=pytest.mark.slow),
        pytest.param("--run experiment=good", 1, marks=pytest.mark.slow),
        ("hydra/job_logging=stdout hydra.verbose=true experiment=good", 1),
        pytest.param("hydra.output_subdir=.hydra experiment=good", 1, marks=pytest.mark.slow),
        pytest.param("+hydra.job.env_set.FOO=1 experiment=good", 1, marks=pytest.mark.slow),
    ],
)
def test_a_habit_that_works(toy: list[str], tmp_path: Path, words: str, steps: int) -> None:
    assert cli.run(["train", *toy, "run.name=x", *words.split()]) == 0
    run = RunFolder(tmp_path / "outputs/default/x/seed1")
    assert run.finished
    assert run.config()["train"]["steps"] == steps
    assert Path(".hydra").exists() == ("output_subdir" in words)


def test_a_search_path_of_ones_own(toy: list[str], tmp_path: Path) -> None:
    words = [word for word in toy if word not in ("--config-dir", "my_conf")]
    words += ["experiment=good", "encoding=based", "hydra.searchpath=[my_conf]"]
    assert cli.run(["train", *words]) == 0
    assert RunFolder(tmp_path / "outputs/default/based/seed1").finished


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        pytest.param("hydra.mode=MULTIRUN seed=1,2", 2, marks=pytest.mark.slow),
        ("-m experiment=swept", 2),
        pytest.param("hydra.mode=MULTIRUN experiment=swept", 2, marks=pytest.mark.slow),
        ("experiment=swept", 1),
        pytest.param("experiment=swept seed=2", 1, marks=pytest.mark.slow),
    ],
)
def test_sweeps_that_are_no_flag(
    toy: list[str], tmp_path: Path, capfd: Output, words: str, seeds: int
) -> None:
    assert cli.run(["train", *toy, "train.steps=1", *words.split()]) == 0
    assert len(list((tmp_path / "outputs").rglob("seed?"))) == seeds
    unused = words == "experiment=swept"
    assert ("note: hydra.sweeper.params: seed" in capfd.readouterr().err) == unused


def test_a_flag_stands_anywhere(toy: list[str], capfd: Output) -> None:
    words = ["encoding=alibi", "-m", "seed=1,2", "-cd=my_conf", "experiment=good"]
    read = ["--multirun", "--config-dir=my_conf", "encoding=alibi", "seed=1,2", "experiment=good"]
    assert readable("train", words) == read
    assert cli.run(["--multirun", "train"]) == 2
    assert "the command comes before any flag" in one_line(capfd)
