"""TensorBoard and trackio get the same rows as W&B, on this disk alone."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imsave

from posbench import cli, tracking
from posbench.config import TrackingConfig
from posbench.evaluation import results
from posbench.machine.files import read_rows
from tests.helpers.toy import train
from tests.helpers.wandb_file import settle

CUT = "train.steps=6 train.checkpoint_every=2"


def run_folder(root: Path) -> Path:
    return root / "outputs" / "default" / "rope" / "seed1"


def cut(run: Path, aside: Path) -> None:
    """As if killed after step 5: one checkpoint back, rows beyond it, no evaluation."""
    (run / "checkpoints" / "step-000006").rename(aside)
    (run / "results.jsonl").unlink()
    (run / "status.json").write_text('{"state": "running", "reason": null}')
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[:5]
    (run / "metrics.jsonl").write_text("".join(kept))


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing connects, listens or looks a name up; a token makes the Hub worth asking."""
    tried: list[str] = []

    def refuse(name: str) -> Callable[..., None]:
        def refused(*where: Any, **how: Any) -> None:
            tried.append(f"{name} {where}")
            raise OSError("no network here")

        return refused

    for name in ("connect", "connect_ex", "listen"):
        monkeypatch.setattr(socket.socket, name, refuse(name))
    monkeypatch.setattr(socket, "getaddrinfo", refuse("getaddrinfo"))
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    yield
    assert tried == []


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_without_the_extra_one_line_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert train(tmp_path, f"tracking={name}") == 1
    said = capfd.readouterr().err.strip()
    assert f"pip install 'posbench[{name}]'" in said
    assert "\n" not in said
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "tracking=tensorboard tracking.wandb=online",
            "tracking.wandb=online is for tracking=wandb",
        ),
        (
            "tracking=trackio +tracking.checkpoints=true",
            "tracking.checkpoints is for tracking=wandb",
        ),
        ("tracking.to=mlflow", "tracking.to=mlflow: choose one of wandb, tensorboard, trackio"),
    ],
)
def test_what_a_tracker_cannot_is_one_line(
    words: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, words) == 1
    assert expected in capfd.readouterr().err
    assert not (tmp_path / "outputs").exists()


def events(folder: Path) -> list[Any]:
    """The events of the one file in folder. TFRecord: length (8), crc (4), data, crc (4)."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += length + 16
    return found


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [
        (event.step, value.simple_value)
        for event in events(folder)
        for value in event.summary.value
        if value.tag == tag
    ]


@pytest.mark.usefixtures("_no_network")
def test_tensorboard_has_every_point_once_after_a_resume(tmp_path: Path) -> None:
    assert train(tmp_path, "tracking=tensorboard", CUT) == 0
    run = run_folder(tmp_path)
    cut(run, tmp_path / "gone")
    assert train(tmp_path, "tracking=tensorboard", CUT) == 0
    assert cli.run(["eval", f"run={run}", "eval.lengths=[48]", "runtime.threads=1"]) == 0
    settle()
    written = read_rows(run / "metrics.jsonl")
    assert len(written) == 6
    for key in ("loss", "lr", "grad_norm", "tokens_per_second"):
        found = scalars(run / "tensorboard", key)
        assert [step for step, _ in found] == [row["step"] for row in written]
        assert [value for _, value in found] == pytest.approx([row[key] for row in written])
    found = scalars(run / "tensorboard", "fixed_targets/perplexity")
    assert [length for length, _ in found] == [16, 32, 48]
    expected = [result.perplexity for result in results.read(run)]
    assert [value for _, value in found] == pytest.approx(expected)


def trackio_rows(project: str) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """The steps and rows of each run in a project's file, by the run's id."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    with sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / f"{project}.db") as connection:
        query = "SELECT run_id, step, metrics FROM metrics ORDER BY id"
        for run, step, metrics in connection.execute(query):
            found.setdefault(run, []).append((step, json.loads(metrics)))
    return found


@pytest.mark.usefixtures("_no_network")
def test_trackio_has_every_point_once_after_a_resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["tracking=trackio tracking.project=resumed", CUT]
    assert train(tmp_path, *words) == 0
    run = run_folder(tmp_path)
    cut(run, tmp_path / "gone")
    before = {row["step"]: row["loss"] for row in read_rows(run / "metrics.jsonl")}
    assert train(tmp_path, *words) == 0
    assert cli.run(["eval", f"run={run}", "eval.lengths=[48]", "runtime.threads=1"]) == 0
    settle()
    ((identity, found),) = trackio_rows("resumed").items()
    assert identity == tracking.saved_id(run)
    trained = [(step, metrics["loss"]) for step, metrics in found if "loss" in metrics]
    assert trained == [(row["step"], row["loss"]) for row in read_rows(run / "metrics.jsonl")]
    assert before.items() <= dict(trained).items()
    lengths = [metrics["length"] for _, metrics in found if "length" in metrics]
    assert lengths == [16, 32, 48]
    said = capfd.readouterr()
    assert "trackio" not in (said.out + said.err).lower()


def report(to: str, folder: Path, project: str = "reports") -> None:
    """A table and a picture, published."""
    folder.mkdir()
    imsave(folder / "curve.png", np.zeros((2, 2, 3)))
    tracker = tracking.start(
        TrackingConfig(1, to=to, project=project),
        folder=folder,
        name="report",
        group="sweep",
        settings={"level": 0.95},
        resume_id=None,
    )
    table: tracking.Table = (["encoding", "128"], [["alibi", 36.5], ["learned", None]])
    tracker.publish({"demo: perplexity": table}, [folder / "curve.png"])
    tracker.finish(0)
    settle()


def test_a_report_on_tensorboard_has_its_tables_and_pictures(tmp_path: Path) -> None:
    report("tensorboard", tmp_path / "report")
    values = {
        v.tag: v for e in events(tmp_path / "report" / "tensorboard") for v in e.summary.value
    }
    (text,) = values["demo: perplexity/text_summary"].tensor.string_val
    assert "| alibi | 36.5 |" in text.decode()
    (picture,) = (value for tag, value in values.items() if tag.startswith("curve.png"))
    assert (picture.image.height, picture.image.width) == (2, 2)


def test_a_report_in_trackio_has_its_tables_and_pictures(tmp_path: Path) -> None:
    report("trackio", tmp_path / "report")
    ((_, row),) = trackio_rows("reports")[str(tracking.saved_id(tmp_path / "report"))]
    assert row["demo: perplexity"]["_value"] == [
        {"encoding": "alibi", "128": 36.5},
        {"encoding": "learned", "128": None},
    ]
    assert row["curve.png"]["_type"] == "trackio.image"
