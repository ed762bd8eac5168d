"""W&B mirrors a run: what is logged is found again, and nothing it does can stop a run."""

from __future__ import annotations

import builtins
import getpass
import json
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from posbench import tracking
from posbench.config import TrackingConfig
from posbench.errors import UserError

KEY = "f" * 40
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _unconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no netrc, no settings, no network, and no W&B process of another test."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    wandb.teardown()
    yield
    wandb.teardown()


def start(
    folder: Path, mode: str = "auto", name: str = "alibi", resume_id: str | None = None
) -> tracking.Tracker:
    folder.mkdir(exist_ok=True)
    return tracking.start(
        TrackingConfig(wandb=mode, project="posbench-test", every=10),
        folder=folder,
        name=name,
        group="sweep",
        settings={"seed": 3, "encoding": {"_target_": f"module.{name}", "buckets": None}},
        resume_id=resume_id,
    )


def records(folder: Path) -> list[Record]:
    """The records of the one W&B run in folder."""
    wandb.teardown()  # W&B writes from a process of its own: until that ends, not all is written
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    # W&B 0.31 has no reader in Python. The framing is LevelDB's log: blocks of 32 KiB, in them
    # pieces of a record behind crc (4 bytes), length (2) and kind (1: whole, 4: last piece).
    found, piece, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):
            found.append(Record.FromString(piece))
            piece = b""
    return found


def rows(folder: Path) -> list[dict[str, float]]:
    items = [r.history.item for r in records(folder) if r.HasField("history")]
    named = [{i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in r} for r in items]
    return [{k: v for k, v in row.items() if k in ("_step", "loss", "tokens")} for row in named]


def opened(folder: Path) -> Record:
    return next(r for r in records(folder) if r.HasField("run"))


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
    tracker.log({"loss": 2.5, "tokens": 128}, step=1)
    tracker.finish(0)
    assert rows(tmp_path / "run") == [{"_step": 1, "loss": 2.5, "tokens": 128}]
    assert len(warnings(caplog)) == (mode == "online")
    assert capfd.readouterr() == ("", "")


def test_rows_and_summary_are_found_in_the_file(tmp_path):
    tracker = start(tmp_path / "run")
    written = [{"loss": 5.0 / (n + 1), "tokens": n * 4096} for n in range(800)]  # some 32 KiB
    for step, row in enumerate(written):
        tracker.log(row, step=step * 10)
    tracker.summary({"perplexity/256": 23.5})
    tracker.finish(0)
    assert rows(tmp_path / "run") == [{"_step": n * 10, **row} for n, row in enumerate(written)]
    updates = [u for r in records(tmp_path / "run") for u in r.summary.update]
    assert ("perplexity/256", "23.5") in [
        (u.key or u.nested_key[0], u.value_json) for u in updates
    ]


def test_two_runs_in_one_process_are_two_runs(tmp_path):
    for name in ("alibi", "rope"):
        tracker = start(tmp_path / name, name=name)
        tracker.log({"loss": float(len(name))}, step=1)
        if name == "rope":
            tracker.finish(0)  # the first is never finished: its job died
    for name in ("alibi", "rope"):
        run = opened(tmp_path / name).run
        config = {u.key: json.loads(u.value_json) for u in run.config.update}
        assert (run.display_name, run.run_group, run.project) == (name, "sweep", "posbench-test")
        assert run.run_id == tracking.saved_id(tmp_path / name)
        assert config["encoding"] == {"_target_": f"module.{name}", "buckets": None}
        assert config["seed"] == 3
        assert not run.host
    assert rows(tmp_path / "rope") == [{"_step": 1, "loss": 4.0}]
    assert tracking.saved_id(tmp_path / "alibi") != tracking.saved_id(tmp_path / "rope")


def test_a_resumed_run_keeps_its_id_and_a_new_one_does_not(tmp_path):
    assert tracking.saved_id(tmp_path) is None
    ids: list[str] = []
    for resume in (False, True, False):
        resume_id = tracking.saved_id(tmp_path) if resume else None
        start(tmp_path, resume_id=resume_id).finish(0)
        ids.append(tracking.saved_id(tmp_path) or "")
    assert ids[0] == ids[1] != ids[2]
    folders = [path.name.split("-")[3] for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(folders) == sorted(ids)


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_recorded(code, tmp_path):
    start(tmp_path / "run").finish(code)
    (end,) = [r.exit for r in records(tmp_path / "run") if r.HasField("exit")]
    assert end.exit_code == code


@pytest.mark.parametrize("where", ["environment", "netrc"])
def test_a_dead_network_makes_a_run_offline(where, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(tracking.SETTINGS, "init_timeout", 1.0)
    if where == "netrc":
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1:9 login user password {KEY}\n")
    else:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = start(tmp_path / "run")
    tracker.log({"loss": 1.0}, step=1)
    tracker.finish(0)
    assert len(warnings(caplog)) == 1
    assert "offline" in warnings(caplog)[0]
    assert rows(tmp_path / "run") == [{"_step": 1, "loss": 1.0}]
    assert opened(tmp_path / "run").run.run_id == tracking.saved_id(tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_auto_does_what_wandb_mode_says(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    start(tmp_path / "run").finish(0)
    assert opened(tmp_path / "run")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert isinstance(start(tmp_path / "other"), tracking.Nothing)
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
    tracker.log({"loss": 1.0}, step=1)
    tracker.summary({"loss": 1.0})
    tracker.finish(0)
    assert isinstance(tracker, tracking.Nothing)
    assert warnings(caplog) == ["W&B is off for this run: disc full"]


def test_a_wandb_that_cannot_be_imported_is_one_warning(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb", None)
        assert isinstance(start(tmp_path / "run"), tracking.Nothing)
    assert len(warnings(caplog)) == 1


def test_a_log_that_fails_is_one_warning_and_the_last_call(caplog):
    calls: list[object] = []

    class Run:
        def log(self, row: dict[str, float], step: int) -> None:
            calls.append(step)
            raise RuntimeError("gone")

        def finish(self, exit_code: int) -> None:
            calls.append("finish")
            raise RuntimeError("gone too")

    tracker = tracking.WandB(Run())  # type: ignore[arg-type]
    tracker.log({"loss": 1.0}, step=1)
    tracker.log({"loss": 1.0}, step=2)
    tracker.summary({"loss": 1.0})
    tracker.finish(1)
    assert calls == [1, "finish"]
    assert warnings(caplog) == ["W&B stopped, the run goes on: gone"]


def test_the_next_run_outlives_the_death_of_wandb(tmp_path, caplog):
    tracker = start(tmp_path / "first")
    os.kill(wandb.setup()._connection._proc._process.pid, signal.SIGKILL)
    time.sleep(0.2)
    tracker.log({"loss": 1.0}, step=1)
    tracker.finish(1)
    assert len(warnings(caplog)) == 1
    tracker = start(tmp_path / "second")
    tracker.log({"loss": 1.0}, step=1)
    tracker.finish(0)
    assert len(warnings(caplog)) == 1
    assert rows(tmp_path / "second") == [{"_step": 1, "loss": 1.0}]


def test_the_process_is_left_as_it_was(tmp_path):
    before = random.getstate(), sys.exit, sys.excepthook
    start(tmp_path / "run").finish(0)
    assert (random.getstate(), sys.exit, sys.excepthook) == before
    (run,) = (tmp_path / "run" / "wandb").iterdir()
    assert not [path for path in (run / "files").rglob("*") if path.is_file()]


def test_disabled_imports_and_writes_nothing(tmp_path):
    code = f"""
import os, pathlib, sys
from posbench import tracking
from posbench.config import TrackingConfig
for mode in ("disabled", "auto"):
    tracker = tracking.start(TrackingConfig(mode, "p", 1), folder=pathlib.Path({str(tmp_path)!r}),
                             name="n", group="g", settings={{}}, resume_id=None)
    tracker.log({{"loss": 1.0}}, step=1)
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
    assert warnings(caplog) == []
    media = list((tmp_path / "run" / "wandb").rglob("media/*/*.*"))
    saved = [json.loads(path.read_text()) for path in media if path.suffix == ".json"]
    assert {"columns": ["encoding", "128"], "data": [["alibi", 36.5], ["learned", None]]} in [
        {key: value for key, value in each.items() if key in ("columns", "data")} for each in saved
    ]
    assert any("made by posbench" in path.read_text() for path in media if path.suffix == ".html")
