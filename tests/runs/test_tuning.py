"""An equal budget: the same points, chosen at the training length, found again by train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from posbench import cli, config
from posbench.config import TuneCommand
from posbench.errors import UserError
from posbench.model import from_config
from posbench.runs import tuning
from posbench.runs.tuning import LR, MULTIPLIER, Record, Trial
from tests.helpers import toy
from tests.helpers.places import ROOT

SHIPPED = ROOT / "posbench" / "data" / "tuned"


def asked(*overrides: str) -> TuneCommand:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("tune", ["run.name=x", *overrides])
    return config.load(node, TuneCommand)


def tune(root: Path, *more: str) -> int:
    return cli.run(["tune", *toy.flat(toy.arguments(root, "tune.blocks=4 tune.trials=3", *more))])


def record(root: Path, name: str) -> dict[str, Any]:
    path = root / "outputs" / "default" / "tuned" / f"{name}.yaml"
    return dict(OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]


def test_every_encoding_gets_the_same_points() -> None:
    points = {name: tuning.points(asked(f"encoding={name}")) for name in ("nope", "t5", "shaw")}
    assert len({len(found) for found in points.values()}) == 1
    for found in points.values():
        assert [p[LR] for p in found] == [p[LR] for p in points["nope"]]
        assert [p[MULTIPLIER] for p in found[1:]] == [p[MULTIPLIER] for p in points["nope"][1:]]
    assert points["t5"][0] == {LR: 0.005, MULTIPLIER: 10}  # untuned
    assert {p["encoding.k"] for p in points["shaw"]} <= {4, 8, 16, 32, 64}
    assert len({p["encoding.k"] for p in points["shaw"]}) > 2


def test_the_points_lie_in_the_space_and_differ() -> None:
    found = tuning.points(asked("encoding=t5", "tune.trials=40", "tune.lr=[0.5,2]"))
    assert all(0.0025 <= point[LR] <= 0.01 for point in found)
    assert all(1 <= point[MULTIPLIER] <= 30 for point in found)
    assert len({(point[LR], point[MULTIPLIER]) for point in found}) == 40
    assert min(p[LR] for p in found) < 0.0028
    assert max(p[LR] for p in found) > 0.009


def test_a_smaller_budget_is_a_beginning_of_a_larger_one() -> None:
    assert tuning.points(asked("tune.trials=8"))[:3] == tuning.points(asked("tune.trials=3"))


def test_knobs_are_choices_or_a_range() -> None:
    found = tuning.points(
        asked("encoding=rope", "+encoding.tune={base:{low:100,high:1.0e+6}}", "tune.trials=20")
    )
    bases = [point["encoding.base"] for point in found]
    assert bases[0] == 10_000
    assert 100 <= min(bases) < 1000
    assert 10**5 < max(bases) <= 10**6


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["tune.trials=0"], "tune.trials=0"),
        (["tune.lr=[2,1]"], "tune.lr="),
        (["tune.lr=[0,1]"], "tune.lr="),
        (["tune.lr_multiplier=[1]"], "tune.lr_multiplier="),
        (["encoding=rope", "+encoding.tune={bass:[1]}"], "encoding.tune.bass"),
        (["encoding=rope", "+encoding.tune={base:[]}"], "encoding.tune.base"),
        (["encoding=rope", "+encoding.tune={base:7}"], "encoding.tune.base"),
    ],
)
def test_a_space_that_is_none_is_one_line(overrides: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        tuning.points(asked(*overrides))


def test_the_lowest_loss_is_chosen_and_divergence_never() -> None:
    trials = [Trial({LR: 1.0}, 3.5), Trial({LR: 2.0}, None), Trial({LR: 3.0}, 3.4)]
    assert Record({}, {"trials": 3}, trials, {}).chosen.values == {LR: 3.0}
    assert Record({}, {"trials": 2}, trials, {}).chosen.values == {LR: 1.0}  # within the budget
    with pytest.raises(UserError, match="diverged"):
        _ = Record({}, {"trials": 1}, [Trial({}, None)], {}).chosen


def test_tune_then_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(tmp_path, "encoding=shaw +encoding.tune={k:[2,4,8]}") == 0
    kept = record(tmp_path, "shaw")
    assert len(kept["trials"]) == 3
    best = min(kept["trials"], key=lambda trial: trial["loss"])
    assert kept["chosen"] == best["values"]
    assert kept["budget"]["trials"] == 3
    assert kept["budget"]["tokens_per_trial"] == 4 * 2 * 16
    assert not list((tmp_path / "outputs" / "default" / "tuned" / "shaw").iterdir())

    capsys.readouterr()
    assert toy.train(tmp_path, "encoding=shaw tuned=true") == 0
    assert "tuned, 3 trials" in capsys.readouterr().out
    folder = tmp_path / "outputs" / "default" / "shaw" / "seed1"
    trained = OmegaConf.load(folder / "config.yaml")
    assert trained.optim.lr == best["values"][LR]
    assert trained.encoding.optim.lr_multiplier == best["values"][MULTIPLIER]
    assert trained.encoding.k == best["values"]["encoding.k"]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["tuning"]["trials"] == 3
    assert toy.train(tmp_path, "encoding=shaw tuned=true") == 0  # finished: the same run
    assert "is finished" in capsys.readouterr().out


def test_a_second_tuning_only_does_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "encoding=alibi tune.trials=1") == 0
    first = record(tmp_path, "alibi")
    capsys.readouterr()
    assert tune(tmp_path, "encoding=alibi tune.trials=2") == 0
    assert "trial 1 of 2" not in capsys.readouterr().out
    second = record(tmp_path, "alibi")
    assert second["trials"][0] == first["trials"][0]
    assert len(second["trials"]) == second["budget"]["trials"] == 2


@pytest.mark.slow
def test_a_smaller_budget_chooses_among_as_many(tmp_path: Path) -> None:
    assert tune(tmp_path, "encoding=t5") == 0
    assert tune(tmp_path, "encoding=t5 tune.trials=1") == 0
    kept = record(tmp_path, "t5")
    assert kept["budget"]["trials"] == 1
    assert kept["chosen"] == kept["trials"][0]["values"]
    assert len(kept["trials"]) == 3
    assert toy.train(tmp_path, "encoding=t5 tuned=true") == 0
    folder = tmp_path / "outputs" / "default" / "t5" / "seed1"
    assert json.loads((folder / "provenance.json").read_text())["tuning"]["trials"] == 1


def test_an_encoding_whose_trials_all_diverge_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = "encoding=rope,alibi optim.clip=1.0e+30 tune.trials=1"
    words = toy.flat(toy.arguments(tmp_path, "tune.blocks=4", two))
    assert cli.run(["tune", "-m", *words, "optim.lr=1.0e+30"]) == 1
    told = capsys.readouterr()
    assert "all 1 trials diverged" in told.err
    assert "2 of 2 jobs failed" in told.err
    assert "Traceback" not in told.err


@pytest.mark.slow
def test_a_record_is_never_mixed_with_another_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "encoding=alibi tune.trials=1") == 0
    before = record(tmp_path, "alibi")
    for change in ("train.steps=5", "seed=7", "tune.blocks=2", "tune.lr=[0.5,1]"):
        assert tune(tmp_path, "encoding=alibi", change) == 1
        assert "another set-up" in capsys.readouterr().err
    assert record(tmp_path, "alibi") == before


@pytest.mark.slow
def test_the_choice_does_not_see_longer_lengths(tmp_path: Path) -> None:
    """The same trials and losses, whatever is evaluated beyond the training length."""
    assert tune(tmp_path / "a", "encoding=t5 eval.lengths=[16,32]") == 0
    assert tune(tmp_path / "b", "encoding=t5 eval.lengths=[16,32,64]") == 0
    losses = [record(tmp_path / side, "t5")["trials"] for side in "ab"]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("encoding=rope tuned=true", "there is no such record"),
        ("encoding=alibi tuned=true train.steps=3", "train.steps (4 there, 3 asked)"),
        ("encoding=alibi tuned=perhaps", "choose true, false or auto"),
    ],
)
def test_tuned_without_a_record_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, named: str
) -> None:
    assert tune(tmp_path, "encoding=alibi tune.trials=1") == 0
    capsys.readouterr()
    assert toy.train(tmp_path, more) == 1
    said = capsys.readouterr().err
    assert named in " ".join(said.split())
    assert "Traceback" not in said


def test_auto_is_untuned_where_there_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy.train(tmp_path, "encoding=rope tuned=auto") == 0
    assert "rope seed 1: untuned" in capsys.readouterr().out
    folder = tmp_path / "outputs" / "default" / "rope" / "seed1"
    assert OmegaConf.load(folder / "config.yaml").tuned == "false"
    assert json.loads((folder / "provenance.json").read_text())["tuning"] is None


@pytest.mark.parametrize("word", ["tuned=true", "tracking.wandb=online"])
def test_what_trials_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert tune(tmp_path, "encoding=alibi", word) == 1
    assert word.partition("=")[0] in capsys.readouterr().err


@pytest.mark.slow
def test_an_unfinished_record_is_not_used(tmp_path: Path) -> None:
    assert tune(tmp_path, "encoding=alibi") == 0
    path = tmp_path / "outputs" / "default" / "tuned" / "alibi.yaml"
    kept = record(tmp_path, "alibi")
    OmegaConf.save(OmegaConf.create(kept | {"trials": kept["trials"][:2]}), path)
    assert toy.train(tmp_path, "encoding=alibi tuned=true") == 1


def test_a_damaged_record_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "outputs" / "default" / "tuned" / "alibi.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("trials: 3\n")
    assert toy.train(tmp_path, "encoding=alibi tuned=true") == 1
    assert "not a record of posbench tune" in " ".join(capsys.readouterr().err.split())


def test_a_trial_that_diverges_is_noted_and_the_others_go_on(tmp_path: Path) -> None:
    """tune.lr up to 1e30 times the learning rate."""
    wild = "encoding=alibi tune.lr=[1.0e+30,1.0e+31] optim.clip=1.0e+30"
    assert tune(tmp_path, wild) == 0
    losses = [trial["loss"] for trial in record(tmp_path, "alibi")["trials"]]
    assert losses[0] is not None
    assert None in losses[1:]


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_records_are_of_the_demo_as_it_is(path: Path) -> None:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("train", [f"experiment={path.parent.name}", f"encoding={path.stem}"])
        node.run.name = path.stem
    made, used = tuning.applied(config.load(node, config.Config))
    assert used is not None
    assert made.optim.lr == used.chosen[LR]


def test_no_positional_multiplier_is_told_where_nothing_positional_learns() -> None:
    values = {LR: 0.004, MULTIPLIER: 2.34}
    for name, learns in (("rope", False), ("alibi", False), ("t5", True), ("alibi_learned", True)):
        with initialize_config_module("posbench.conf", version_base="1.3"):
            node = compose("tune", [f"encoding={name}", "run.name=x"])
        found = from_config.learns(config.load(node, TuneCommand))
        assert found == learns, name
        assert ("positional" in tuning.label(values, found)) == learns
