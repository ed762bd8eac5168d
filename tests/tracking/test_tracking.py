"""W&B mirrors a run: what is logged is found again, and nothing it does can stop a run."""

from __future__ import annotations

import builtins
import getpass
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wandb

from posbench import tracking
from posbench.config import TrackingConfig
from posbench.errors import UserError
from posbench.tracking.background import Background, _worker
from posbench.tracking.wandb import SETTINGS, WandB
from tests.helpers.wandb_file import axes, opened, records, rows, settle, summary

KEY = "f" * 40

pytestmark = pytest.mark.usefixtures("_no_wandb_account")


def start(
    folder: Path, mode: str = "auto", name: str = "alibi", resume_id: str | None = None
) -> tracking.Tracker:
    folder.mkdir(exist_ok=True)
    return tracking.start(
        TrackingConfig(wandb=mode, project="posbench-test", every=10),
        folder=folder,
        name=name,
        group="sweep",
        tags=("ALiBi", "x" * 99),
        settings={"seed": 3, "encoding": {"_target_": f"module.{name}", "buckets": None}},
        resume_id=resume_id,
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    kept = [r for r in caplog.records if r.name == "posbench" and r.levelno >= logging.WARNING]
    assert all("\n" not in r.getMessage() for r in kept)
    return [r.getMessage() for r in kept]


class Terminal:
    """A standard input that somebody sits at, and that must not be read."""

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"stdin.{name} was touched")


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", asked)
    monkeypatch.setattr(getpass, "getpass", asked)


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("mode", ["auto", "online", "offline"])
def test_without_a_key_a_run_is_offline_and_nobody_is_asked(mode, tmp_path, caplog, capfd):
    tracker = start(tmp_path / "run", mode)
    tracker.log({"step": 10, "loss": 2.5, "tokens": 128}, "step")
    tracker.finish(0)
    assert rows(tmp_path / "run") == [{"step": 10, "loss": 2.5, "tokens": 128}]
    assert len(warnings(caplog)) == (mode == "online")
    assert capfd.readouterr() == ("", "")


def test_rows_and_summary_are_found_in_the_file(tmp_path):
    tracker = start(tmp_path / "run")
    written = [{"step": 10 * n, "loss": 5.0 / n, "tokens": n * 4096} for n in range(1, 800)]
    for row in written:  # some 32 KiB
        tracker.log(row, "step")
    tracker.log({"length": 256, "fixed_targets, yarn x8/perplexity": 23.5}, "length")
    tracker.summary({"fixed_targets, yarn x8/perplexity/256": 23.5})
    tracker.finish(0)
    run = tmp_path / "run"
    assert rows(run) == written
    assert rows(run, "length") == [{"length": 256, "fixed_targets, yarn x8/perplexity": 23.5}]
    assert summary(run)["fixed_targets, yarn x8/perplexity/256"] == 23.5
    assert "fixed_targets, yarn x8/perplexity" not in summary(run)
    assert (summary(run)["step"], summary(run)["loss"]) == (7990, 5.0 / 799)
    assert axes(run)["loss"] == axes(run)["tokens"] == "step"
    assert axes(run)["fixed_targets, yarn x8/perplexity"] == "length"


class Earlier:
    """A run of W&B's that goes on, with what its server had."""

    def __init__(self) -> None:
        self.summary = {"step": 20, "loss": 3.0, "_step": 1, "fixed_targets/perplexity/16": 9.5}
        self.logged: list[dict[str, float]] = []

    def define_metric(self, key: str, **how: object) -> None: ...

    def log(self, row: dict[str, float]) -> None:
        self.logged.append(row)


def test_a_run_that_goes_on_online_gets_what_it_lacks():
    run = Earlier()
    tracker = WandB(run)  # type: ignore[arg-type]
    for step in (10, 20, 30):
        tracker.log({"step": step, "loss": 3.0}, "step")
    tracker.log({"length": 16, "fixed_targets/perplexity": 9.5}, "length")
    tracker.log({"length": 32, "fixed_targets/perplexity": 9.5}, "length")
    assert run.logged == [
        {"step": 30, "loss": 3.0},
        {"length": 32, "fixed_targets/perplexity": 9.5},
    ]


def test_two_runs_in_one_process_are_two_runs(tmp_path):
    for name in ("alibi", "rope"):
        tracker = start(tmp_path / name, name=name)
        tracker.log({"step": 1, "loss": float(len(name))}, "step")
        if name == "rope":
            tracker.finish(0)  # the first is never finished: its job died
    for name in ("alibi", "rope"):
        run = opened(tmp_path / name).run
        config = {u.key: json.loads(u.value_json) for u in run.config.update}
        assert (run.display_name, run.run_group, run.project) == (name, "sweep", "posbench-test")
        assert list(run.tags) == ["ALiBi", "x" * 64]
        assert run.run_id == tracking.saved_id(tmp_path / name)
        assert config["encoding"] == {"_target_": f"module.{name}", "buckets": None}
        assert config["seed"] == 3
        assert not run.host
    assert rows(tmp_path / "rope") == [{"step": 1, "loss": 4.0}]
    assert tracking.saved_id(tmp_path / "alibi") != tracking.saved_id(tmp_path / "rope")


def test_a_resumed_run_keeps_its_id_and_a_new_one_does_not(tmp_path):
    assert tracking.saved_id(tmp_path) is None
    ids: list[str] = []
    for resume in (False, True, False):
        resume_id = tracking.saved_id(tmp_path) if resume else None
        start(tmp_path, resume_id=resume_id).finish(0)
        settle()
        ids.append(tracking.saved_id(tmp_path) or "")
    assert ids[0] == ids[1] != ids[2]
    folders = [path.name.split("-")[3] for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(folders) == sorted({*ids})


def test_a_file_that_was_uploaded_is_left_where_it_is(tmp_path):
    start(tmp_path).finish(0)
    settle()
    (uploaded,) = (tmp_path / "wandb").glob("offline-run-*")
    (uploaded / "run-x.wandb.synced").touch()
    start(tmp_path, resume_id=tracking.saved_id(tmp_path)).finish(0)
    settle()
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
    assert uploaded.exists()


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_recorded(code, tmp_path):
    start(tmp_path / "run").finish(code)
    (end,) = [r.exit for r in records(tmp_path / "run") if r.HasField("exit")]
    assert end.exit_code == code


@pytest.mark.parametrize("where", ["environment", "netrc"])
def test_a_dead_network_makes_a_run_offline(where, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(SETTINGS, "init_timeout", 1.0)
    if where == "netrc":
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1:9 login user password {KEY}\n")
    else:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = start(tmp_path / "run")
    tracker.log({"step": 1, "loss": 1.0}, "step")
    tracker.finish(0)
    assert len(warnings(caplog)) == 1
    assert "offline" in warnings(caplog)[0]
    assert rows(tmp_path / "run") == [{"step": 1, "loss": 1.0}]
    assert opened(tmp_path / "run").run.run_id == tracking.saved_id(tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_auto_does_what_wandb_mode_says(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    start(tmp_path / "run").finish(0)
    assert opened(tmp_path / "run")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    start(tmp_path / "other").finish(0)
    settle()
    assert not list((tmp_path / "other").iterdir())
    assert warnings(caplog) == []


def test_a_malformed_key_makes_a_run_offline(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "not a key")
    start(tmp_path / "run").finish(0)
    assert opened(tmp_path / "run")
    assert len(warnings(caplog)) == 1
    assert "not a key" not in warnings(caplog)[0]


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_start_that_fails_is_one_warning(mode, tmp_path, monkeypatch, caplog):
    def broken(**_: object) -> None:
        raise OSError("disc\nfull")

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(wandb, "init", broken)
    tracker = start(tmp_path / "run", mode)
    tracker.log({"step": 1, "loss": 1.0}, "step")
    tracker.summary({"loss": 1.0})
    tracker.finish(0)
    assert warnings(caplog) == ["W&B is off for this run: disc full"]


def test_a_wandb_that_cannot_be_imported_is_one_warning(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb", None)
        start(tmp_path / "run").finish(0)
    assert len(warnings(caplog)) == 1


class Broken:
    """A tracker that fails, and is told to finish nevertheless."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def log(self, row: tracking.Values, axis: str) -> None:
        self.calls.append(row)
        raise RuntimeError("gone")

    def finish(self, exit_code: int) -> None:
        self.calls.append("finish")
        raise RuntimeError("gone too")


def test_a_log_that_fails_is_one_warning_and_the_last_call(caplog):
    broken = Broken()
    tracker = Background("W&B", lambda: broken)  # type: ignore[arg-type, return-value]
    tracker.log({"step": 1}, "step")
    tracker.log({"step": 2}, "step")
    tracker.summary({"loss": 1.0})
    tracker.finish(1)
    assert broken.calls == [{"step": 1}, "finish"]
    assert warnings(caplog) == ["W&B stopped, the run goes on: gone"]


def test_nothing_is_waited_for_but_the_last_rows(monkeypatch, caplog):
    """However long a tracker takes: its calls come in order, after it is open."""
    go, calls = threading.Event(), []

    class Slow(tracking.Nothing):
        def log(self, row: tracking.Values, axis: str) -> None:
            calls.append(row["step"])

    def opened() -> tracking.Tracker:
        assert go.wait(60)
        return Slow()

    tracker = Background("slow", opened)
    for step in range(100):
        tracker.log({"step": step}, "step")
    assert calls == []
    monkeypatch.setattr("posbench.tracking.background.PATIENCE", 0.01)
    tracker.finish(0)
    assert calls == []
    assert warnings(caplog) == ["slow is not done with this run: the end of posbench waits"]
    go.set()
    settle()
    assert calls == list(range(100))


def test_the_next_run_outlives_the_death_of_wandb(tmp_path, caplog):
    tracker = start(tmp_path / "first")
    tracker.log({"step": 1, "loss": 1.0}, "step")
    _worker(os.getpid()).submit(lambda: None).result()
    os.kill(wandb.setup()._connection._proc._process.pid, signal.SIGKILL)
    time.sleep(0.2)
    tracker.log({"step": 2, "loss": 1.0}, "step")
    tracker.finish(1)
    assert len(warnings(caplog)) == 1
    tracker = start(tmp_path / "second")
    tracker.log({"step": 1, "loss": 1.0}, "step")
    tracker.finish(0)
    assert len(warnings(caplog)) == 1
    assert rows(tmp_path / "second") == [{"step": 1, "loss": 1.0}]


def test_the_process_is_left_as_it_was(tmp_path):
    before = random.getstate(), sys.exit, sys.excepthook
    start(tmp_path / "run").finish(0)
    settle()
    assert (random.getstate(), sys.exit, sys.excepthook) == before
    (run,) = (tmp_path / "run" / "wandb").iterdir()
    assert not [path for path in (run / "files").rglob("*") if path.is_file()]


def test_disabled_imports_and_writes_nothing(tmp_path):
    code = f"""
import os, pathlib, sys
from posbench import tracking
from posbench.config import TrackingConfig
for mode in ("disabled", "auto"):
    tracker = tracking.start(TrackingConfig(1, wandb=mode), folder=pathlib.Path({str(tmp_path)!r}),
                             name="n", group="g", settings={{}}, resume_id=None)
    tracker.log({{"step": 1, "loss": 1.0}}, "step")
    tracker.finish(0)
assert "wandb" not in sys.modules
"""
    environment = {**os.environ, "WANDB_MODE": "disabled"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert not list(tmp_path.iterdir())


def test_an_unknown_mode_is_an_error(tmp_path):
    with pytest.raises(UserError, match="maybe: choose one of auto, online, offline, disabled"):
        start(tmp_path, "maybe")


def test_a_report_is_published_with_its_tables_and_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = tmp_path / "report.html"
    page.write_text("<p>made by posbench</p>")
    tracker = start(tmp_path / "run", "offline")
    table: tracking.Table = (["encoding", "128"], [["alibi", 36.5], ["learned", None]])
    tracker.publish({"demo: perplexity": table}, [page])
    tracker.finish(0)
    settle()
    assert warnings(caplog) == []
    media = list((tmp_path / "run" / "wandb").rglob("media/*/*.*"))
    saved = [json.loads(path.read_text()) for path in media if path.suffix == ".json"]
    assert {"columns": ["encoding", "128"], "data": [["alibi", 36.5], ["learned", None]]} in [
        {key: value for key, value in each.items() if key in ("columns", "data")} for each in saved
    ]
    assert any("made by posbench" in path.read_text() for path in media if path.suffix == ".html")
