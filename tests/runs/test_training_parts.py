"""A run that goes on under other conditions: said, kept in provenance.json, marked in reports."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.evaluation.results import ProbeResult
from posbench.evaluation.statistics import Bootstrap
from posbench.machine import provenance as actual
from posbench.machine.files import read_rows
from posbench.report.comparing.probing import probe_tables
from posbench.report.reading import collect
from posbench.runs import training_parts
from posbench.runs.run_folder import RunFolder
from tests.helpers.marks import a_few
from tests.helpers.toy import train

Output = pytest.CaptureFixture[str]
STEPS = "train.steps=8 encoding=alibi"


def folder(root: Path) -> Path:
    return root / "outputs" / "default" / "alibi" / "seed1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parts")
    assert train(root, STEPS) == 0
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of eight steps, with checkpoints after six and eight."""
    return shutil.copytree(finished, tmp_path / "copy")


def cut(root: Path, last: int = 6) -> None:
    """As if killed after a step's checkpoint."""
    for saved in (folder(root) / "checkpoints").iterdir():
        if int(saved.name[5:]) > last:
            shutil.rmtree(saved)
    RunFolder(folder(root)).write_status("running")


def go_on(root: Path, *more: str) -> int:
    return train(root, STEPS, f"corpus.path={finished_text(root)}", *more)


def finished_text(root: Path) -> str:
    return str(RunFolder(folder(root)).config()["corpus"]["path"])


def of(root: Path) -> list[dict[str, Any]]:
    return training_parts.from_provenance(RunFolder(folder(root)).provenance)


def steps(found: list[dict[str, Any]]) -> list[tuple[int, int | None]]:
    return [(part["from"], part["to"]) for part in found]


def elsewhere(monkeypatch: pytest.MonkeyPatch, **told: object) -> None:
    """As if this were another machine."""
    here = actual.here

    def provenance(*given: Any) -> dict[str, object]:
        return {**here(*given), **told}

    monkeypatch.setattr("posbench.machine.provenance.here", provenance)


def test_an_undisturbed_run_has_one_part(finished: Path) -> None:
    (part,) = of(finished)
    assert (part["from"], part["to"]) == (0, 8)
    told = RunFolder(folder(finished)).provenance
    for key in ("threads", "instructions", "dtype", "processes", "device", "commit"):
        assert part.get(key) == told[key]
    assert part["torch"] == told["packages"]["torch"]


def test_a_run_that_goes_on_as_it_was_keeps_its_one_part(root: Path, capsys: Output) -> None:
    cut(root)
    capsys.readouterr()
    assert go_on(root) == 0
    assert steps(of(root)) == [(0, 8)]
    assert "goes on after" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "said"),
    a_few(
        [
            ({"instructions": "OTHER"}, "instructions OTHER ("),
            ({"threads": 3}, "threads 3 ("),
            ({"commit": "123456789abc"}, "commit 123456789abc ("),
            ({"packages": {"torch": "9.9"}}, "torch 9.9 ("),
            ({"device_name": "another processor"}, "device_name another processor ("),
            ({"variables": {"X": "1"}}, "variables {'X': '1'} ("),
        ],
        2,
    ),
)
def test_a_run_that_goes_on_elsewhere_says_so_and_keeps_both_parts(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, changed: Any, said: str
) -> None:
    cut(root)
    elsewhere(monkeypatch, **changed)
    capsys.readouterr()
    assert go_on(root) == 0
    found = of(root)
    assert steps(found) == [(0, 6), (6, 8)]
    lines = capsys.readouterr().out.split("alibi seed 1  ")
    (line,) = [" ".join(line.split()) for line in lines if "goes on after" in line]
    assert line.startswith(f"goes on after step 6 with {said}")
    assert line.count("before") == 1
    key = said.split()[0]
    assert found[0][key] != found[1][key]
    assert RunFolder(folder(root)).provenance["threads"] == found[0]["threads"]  # as begun


@pytest.mark.slow
def test_other_threads_are_a_part(root: Path) -> None:
    """Really other ones, not only told so; then an evaluation that was cut off, with one more."""
    threads = of(root)[0]["threads"]
    cut(root)
    assert go_on(root, f"runtime.threads={threads + 1}") == 0
    assert [part["threads"] for part in of(root)] == [threads, threads + 1]
    RunFolder(folder(root)).write_status("running")
    assert go_on(root, f"runtime.threads={threads}") == 0
    assert steps(of(root)) == [(0, 6), (6, 8), (8, 8)]
    words = training_parts.described(of(root))
    assert words == (
        f"steps 1 to 6: threads {threads}; steps 7 to 8: threads {threads + 1}; "
        f"evaluation: threads {threads}"
    )


def test_parts_beyond_the_checkpoint_are_gone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both checkpoints of the second part are lost: training goes on from the first's."""
    told = RunFolder(folder(root)).provenance
    first = training_parts.from_provenance(told)[0] | {"to": 7}
    second = {**first, "from": 7, "to": 8, "instructions": "OTHER"}
    told |= {"parts": [first, second]}
    (folder(root) / "provenance.json").write_text(json.dumps(told))
    cut(root)
    assert go_on(root) == 0
    assert steps(of(root)) == [(0, 8)]


def test_an_older_folder_has_one_part_of_what_it_tells(root: Path) -> None:
    told = RunFolder(folder(root)).provenance
    del told["parts"], told["instructions"]
    (folder(root) / "provenance.json").write_text(json.dumps(told | {"threads": 7}))
    cut(root)
    assert go_on(root) == 0
    first, second = of(root)
    assert (first["threads"], first["from"], first["to"]) == (7, 0, 6)
    assert "instructions" not in first
    assert "instructions" in second


@pytest.mark.slow
def test_the_dtype_of_auto_can_be_asked_for_on_another_machine(root: Path, capfd: Output) -> None:
    """Which is what the line that refuses another one says to do."""
    text = (folder(root) / "config.yaml").read_text()
    (folder(root) / "config.yaml").write_text(
        text.replace(f"  dtype: {RunFolder(folder(root)).typed().runtime.dtype}", "  dtype: auto")
    )
    was = of(root)[0]["dtype"]
    other = "float32" if was == "bfloat16" else "bfloat16"
    cut(root)
    assert go_on(root, f"runtime.dtype={other}") == 1
    assert f"runtime.dtype ({was} there, {other} asked)" in capfd.readouterr().err
    assert go_on(root, f"runtime.dtype={was}") == 0
    assert steps(of(root)) == [(0, 8)]


@pytest.mark.parametrize(
    "damage", [3, "x", [3], [{"from": -1}], [{"from": "0"}], {"from": 0}, [{"from": 0, "to": "a"}]]
)
def test_parts_that_are_none_get_one_line(damage: object) -> None:
    with pytest.raises(ValueError, match="not those of a training"):
        training_parts.from_provenance({"parts": damage})


def test_parts_that_are_none_are_named_with_their_file(root: Path, capfd: Output) -> None:
    told = RunFolder(folder(root)).provenance | {"parts": 3}
    (folder(root) / "provenance.json").write_text(json.dumps(told))
    RunFolder(folder(root)).write_status("running")
    commands = (["repro", str(folder(root))], ["report", f"runs=[{root}]", f"folder={root}"])
    for command in (None, *commands):
        assert (go_on(root) if command is None else cli.run(command)) == 1
        said = capfd.readouterr().err
        assert str(folder(root)) in said
        assert "not those of a training" in said
        assert "Traceback" not in said


def in_parts(root: Path) -> str:
    """Turn the run into one of two parts; what is said of them."""
    told = RunFolder(folder(root)).provenance
    first = {**training_parts.from_provenance(told)[0], "to": 6}
    second = {**first, "from": 6, "to": 8, "threads": 96, "commit": "123456789abc"}
    (folder(root) / "provenance.json").write_text(json.dumps(told | {"parts": [first, second]}))
    return (
        f"steps 1 to 6: threads {first['threads']}, commit {first['commit']}; "
        "steps 7 to 8: threads 96, commit 123456789abc"
    )


def test_a_report_marks_the_row_and_says_why(root: Path, capsys: Output) -> None:
    """In every format; the other encoding's row is not marked."""
    assert train(root, "encoding=rope", f"corpus.path={finished_text(root)} train.steps=8") == 0
    said = in_parts(root)
    capsys.readouterr()
    words = [f"runs=[{root}/outputs]", f"folder={root}", "report.draws=100"]
    words.append("report.formats=[terminal,markdown,latex,html,csv]")
    assert cli.run(["report", *words, "report.baseline=alibi"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    note = f"alibi*: seed 1 is of several parts, so an undisturbed run may differ: {said}"
    assert note in shown
    texts = {kind: (root / f"report.{kind}").read_text() for kind in ("md", "tex", "html", "csv")}
    assert r"| alibi\* |" in texts["md"]
    assert "| rope |" in texts["md"]
    assert (
        rf"- alibi\*: seed 1 is of several parts, so an undisturbed run may differ: {said}"
        in (texts["md"])
    )
    assert "alibi{*} &" in texts["tex"]
    assert "alibi{*}: seed 1 is of several parts" in texts["tex"]
    assert ">alibi*<" in texts["html"]
    assert f"<li>{note}</li>" in texts["html"]
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert {row["row"] for row in rows} == {"alibi", "rope"}  # names, to be joined by
    assert [(r["row"], r["reason"]) for r in rows if r["quantity"] == "parts"] == [("alibi", said)]
    for text in texts.values():
        assert "123456789abc" in text


def test_a_probe_of_a_run_in_parts_is_marked(root: Path) -> None:
    in_parts(root)
    (run,) = collect.runs([folder(root)])
    probed = ProbeResult("copy", 16, 1, 2, 16, 1, "beef", lifts=1, by_document=[[0, 1, 1, 2]])
    run = dataclasses.replace(run, probes=[probed])
    for table in probe_tables([run], Bootstrap(draws=100)):
        (row,) = table.rows
        assert row.name == "alibi*"
        assert any(note.startswith("alibi*: seed 1 is of several parts") for note in table.notes)


def test_a_replay_says_that_the_run_is_of_parts(root: Path, capfd: Output) -> None:
    assert cli.run(["repro", str(folder(root)), "repro.steps=8"]) == 0
    assert "parts" not in capfd.readouterr().out
    said = in_parts(root)
    rows = read_rows(folder(root) / "metrics.jsonl")
    rows[6]["loss"] *= 1 + 1e-6
    (folder(root) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.run(["repro", str(folder(root)), "repro.steps=6"]) == 0
    assert said in capfd.readouterr().out
    assert cli.run(["repro", str(folder(root)), "repro.steps=8"]) == 1
    assert "the run itself went on elsewhere after step 6" in capfd.readouterr().err
