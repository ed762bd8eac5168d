"""scripts/gpu_check.py: what fails is recorded and the others go on; a rehearsal without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posbench.machine import files
from scripts import gpu_check
from scripts.gpu import common, flex, plan, seen, speed, steps, watch
from scripts.gpu.part import Case, Settings, attempt, mine
from tests.helpers import inductor
from tests.helpers.places import ROOT

FAULTS = ["--plan", "tests.helpers.gpu_faults", "--device", "cpu"]

Output = pytest.CaptureFixture[str]


def check(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = gpu_check.main(["--out", str(folder), *words])
    return code, written(folder)


def written(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "gpu_check.json").read_text(), parse_constant=pytest.fail)
    assert isinstance(found, dict)
    return found


def test_what_fails_is_recorded_and_the_others_go_on(tmp_path: Path, capsys: Output) -> None:
    code, found = check(tmp_path, *FAULTS)
    parts = found["parts"]
    assert code == 1
    assert found["finished"] is True
    assert found["ok"] is False
    states = {name: part["state"] for name, part in parts.items()}
    assert states == {
        "first": "ok",
        "absent": "failed",
        "faulty": "failed",
        "slow": "failed",
        "cut": "failed",
        "last": "ok",
    }
    assert "has no attribute 'absent'" in parts["absent"]["rows"][0]["error"]
    errors = {row["name"]: row.get("error") for row in parts["faulty"]["rows"]}
    assert errors == {
        "raises": "ValueError: this went wrong | in two lines",
        "judged": "off by 3",
        "dies": "its process died of SIGABRT",
        "loses_cuda": "RuntimeError: CUDA error: an illegal memory access was encountered",
        "good": None,
    }
    assert "gpu_faults.py" in parts["faulty"]["rows"][0]["traceback"]
    assert [(row["name"], row["ok"]) for row in parts["slow"]["rows"]] == [
        ("hangs", False),
        ("good", True),
    ]
    assert parts["cut"]["not_reached"] == ["never", "extra"]
    assert parts["cut"]["reason"] == "1 of 2 failed, 1 not reached in time"
    printed = capsys.readouterr().out
    assert "raises: ValueError: this went wrong" in printed
    assert "2 ok" in printed
    assert "this went wrong" in (tmp_path / "gpu_check.log").read_text()


def test_families_have_a_process_each(tmp_path: Path) -> None:
    code, found = check(tmp_path, *FAULTS, "--only", "last")
    pids = {row["name"]: row["pid"] for row in found["parts"]["last"]["rows"]}
    assert code == 0
    assert pids["a0"] == pids["a1"] != pids["b0"] == pids["b1"]


def test_past_the_budget_parts_are_skipped_and_say_so(tmp_path: Path) -> None:
    code, found = check(tmp_path, *FAULTS, "--budget", "0", "--only", "first", "last")
    assert code == 1
    why = "the budget of 0 s was used up"
    states = {name: (part["state"], part["reason"]) for name, part in found["parts"].items()}
    assert states == {"first": ("skipped", why), "last": ("skipped", why)}


def test_the_file_is_whole_after_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[dict[str, Any]] = []
    write = files.write_json

    def writing(path: Path, value: object) -> None:
        write(path, value)
        kept.append(written(tmp_path))

    monkeypatch.setattr(gpu_check, "write_json", writing)
    check(tmp_path, *FAULTS, "--only", "first", "last")
    assert [[part["state"] for part in each["parts"].values()] for each in kept] == [
        ["ok", "skipped"],
        ["ok", "ok"],
        ["ok", "ok"],
    ]
    assert [each["finished"] for each in kept] == [False, False, True]


def test_an_interruption_ends_the_processes_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = watch.start

    def starting(*words: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words))
        return started[-1]

    def interrupt(self: watch.Share, now: float) -> None:
        if any("begin" in row for row in files.read_rows(self.path)):
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "start", starting)
    monkeypatch.setattr(watch.Share, "look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, *FAULTS, "--only", "first", "slow")
    assert [process.wait() is not None for process in started] == [True]
    assert written(tmp_path)["finished"] is False


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nothing: no such part \(facts, flex"):
        check(tmp_path, "--only", "nothing")


def test_a_line_that_cannot_be_made_is_no_failure_of_the_check(tmp_path: Path) -> None:
    """seen gets the rows that are ok, and of `absent` there is none."""
    _, found = check(tmp_path, *FAULTS, "--only", "absent")
    assert found["parts"]["absent"]["seen"].startswith("IndexError")


def test_numbers_that_json_has_not_become_words() -> None:
    row = attempt("it", lambda: {"a": float("nan"), "b": [float("inf"), 1.5], "c": {2: None}})
    assert (row["a"], row["b"], row["c"]) == ("nan", ["inf", 1.5], {"2": None})


def test_the_limits_of_the_groups_are_8_minutes() -> None:
    groups = plan.plan(Settings("cuda", False, ""))
    assert sum(max(part.limit for part in group) for group in groups) == gpu_check.BUDGET


@pytest.mark.slow
def test_every_shipped_encoding_is_compared_three_times() -> None:
    settings = Settings("cpu", False, "")
    names = [case.name for case in flex.cases(settings) if not case.extra]
    for encoding in common.ENCODINGS:
        for what in ("129 float32", "200 bfloat16", "evaluated"):
            assert names.count(f"{encoding} {what}") == 1
    lengths = [case.name for case in speed.cases(settings) if not case.extra]
    assert len(lengths) == 3 * len(common.TIMED)
    assert {name for name, *_ in steps.wanted(settings)} <= set(common.ENCODINGS)


@pytest.mark.slow
def test_a_kernel_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from posbench.attention import KERNELS

    settings = Settings("cpu", True, "")
    right = KERNELS["flex"]
    first = next(case for case in flex.cases(settings) if case.name == "t5 129 float32")
    assert first.run()["ok"] is True
    monkeypatch.setitem(KERNELS, "flex", lambda *a, **k: right(*a, **k) * 1.001)
    row = first.run()
    assert row["ok"] is False
    assert "flex layer 5: " in row["error"]
    assert row["compared"]["fused layer 5"]["ok"] is True


def test_shares_are_dealt_by_family() -> None:
    cases = [Case(name, dict, name[0]) for name in ("a1", "b1", "c1", "a2", "b2")]
    assert [[case.name for case in mine(cases, n, 2)] for n in range(2)] == [
        ["a1", "c1", "a2"],
        ["b1", "b2"],
    ]


@pytest.mark.slow
def test_a_rehearsal_of_the_real_parts(tmp_path: Path) -> None:
    """Through the shell script, as on a machine with a GPU."""
    parts = "facts recompiles tests steps gpt125m".split()
    if not inductor.why_not():
        parts.append("graphs")
    asked = ["--device", "cpu", "--rehearse", "--only", *parts]
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    environment |= {"BRING": str(tmp_path / "nothing"), "OMP_NUM_THREADS": "1"}
    script = [str(ROOT / "scripts" / "gpu_check.sh"), *asked]
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    found = written(tmp_path)
    assert done.returncode == 0, done.stdout
    states = {name: part["state"] for name, part in found["parts"].items()}
    assert states == dict.fromkeys(parts, "ok")
    assert found["rehearsal"] is True
    (row,) = found["parts"]["gpt125m"]["rows"]
    assert row["share_of_matmul"] > 0
    assert found["parts"]["tests"]["rows"][0]["counts"]["skipped"] > 0
    assert "t5: " in seen.recompiles(found["parts"]["recompiles"]["rows"])
    assert (tmp_path / "gpu_check.txt").read_text() == done.stdout
