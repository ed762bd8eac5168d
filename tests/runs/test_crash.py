"""A run that is killed, or finds the disk full, at any of its operations on files, and repeated.

It comes to the end of an undisturbed one, and nothing half-written is taken for whole.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from posbench.machine.files import read_rows
from posbench.runs.run_folder import RunFolder
from tests.helpers import crash_child
from tests.helpers.crash_child import FULL, KILL, TORN, Ended, Fault, Limits
from tests.helpers.marks import a_few, slow
from tests.helpers.toy import arguments, flat, write_text

RUN = Path("outputs/default/x/seed1")
# Every part of the state: segment memory, random numbers, accumulated gradients, probes.
SETTINGS = (
    "encoding=transformer_xl run.name=x model.dropout=0.1 train.accumulate=2 "
    "train.checkpoint_every=1 eval.lengths=[16,24] runtime.dtype=float32 "
    "eval.probes=[copy] eval.probe_distances=[16] eval.probe_trials=2"
)
OPERATIONS = 80  # of such a run, about


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("corpus") / "text")


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """An undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    ended = run(root, text)
    assert ended.code == 0, ended.said
    return root, ended


def run(
    root: Path, text: Path, fault: Fault | None = None, *limits: Limits, more: str = ""
) -> Ended:
    words = [f"corpus=files corpus.path={text}", SETTINGS, more]
    return crash_child.train(flat(arguments(root, *words)), root, fault, *limits)


def end(root: Path) -> dict[str, Any]:
    """All that a run comes to, but for times and places."""
    folder = root / RUN
    metrics, results, probes = (
        read_rows(folder / f"{name}.jsonl") for name in ("metrics", "results", "probes")
    )
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    exact = (".safetensors", ".npz", ".bin")
    return {
        "rows": [[row[key] for key in ("step", "loss", "grad_norm", "lr")] for row in metrics],
        "results": [[row[key] for key in ("protocol", "length", "nll")] for row in results],
        "probes": [[row[key] for key in ("probe", "distance", "hits")] for row in probes],
        "files": {str(path.relative_to(root)) for path in files},
        "bytes": {str(p.relative_to(root)): p.read_bytes() for p in files if p.suffix in exact},
        "status": RunFolder(folder).status,
    }


def assert_same_end(root: Path, whole: Path) -> None:
    here, there = end(root), end(whole)
    for key, value in there.items():
        assert here[key] == value, key


def room(generator: random.Random) -> int:
    """Bytes: nothing, part of a line, of a small file, of a large one."""
    return generator.choice((0, 1, 50, 3_000, 20_000))


def test_an_undisturbed_run_is_what_the_others_are_compared_with(
    whole: tuple[Path, Ended],
) -> None:
    root, ended = whole
    found = end(root)
    assert len(ended.operations) > 0.8 * OPERATIONS
    assert [step for step, *_ in found["rows"]] == [1, 2, 3, 4]
    assert len(found["results"]) == 2
    assert len(found["probes"]) == 1
    assert sum(name.endswith("safetensors") for name in found["bytes"]) == 4
    assert sum(name.endswith("bin") for name in found["bytes"]) == 3
    assert found["status"]["state"] == "done"


@pytest.mark.parametrize("seed", a_few(range(4), 1))
def test_killed_five_times_a_run_comes_to_the_same_end(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended], seed: int
) -> None:
    """Twenty kills at random operations, the cache's and checkpoints' too, half of them torn."""
    generator = random.Random(seed)
    killed = 0
    for number in range(5):
        at = generator.randrange(25) if number else generator.randrange(OPERATIONS)
        fault = Fault((KILL, TORN)[number % 2], at=at, room=room(generator))
        killed += run(tmp_path, text, fault).code < 0
    assert killed > 1
    ended = run(tmp_path, text)
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path, whole[0])


@pytest.mark.long
@pytest.mark.parametrize("kind", [KILL, TORN, FULL])
def test_at_every_operation(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended], kind: str
) -> None:
    generator = random.Random(kind)
    struck = 0
    for at in range(len(whole[1].operations)):
        root = tmp_path / str(at)
        ended = run(root, text, Fault(kind, at=at, room=room(generator)))
        struck += ended.code != 0
        if kind == FULL and ended.code:
            assert ended.code == 1, (at, ended.said)
            assert ended.complaint.count("\n") == 0, (at, ended.said)
            assert ended.complaint, (at, ended.said)
        ended = run(root, text)
        assert ended.code == 0, (at, ended.said)
        assert_same_end(root, whole[0])
        shutil.rmtree(root)
    assert struck > 0.5 * len(whole[1].operations)


@pytest.mark.long
def test_killed_at_twenty_moments(tmp_path: Path, text: Path, whole: tuple[Path, Ended]) -> None:
    """By the clock, so that it is anywhere, not at an operation; repeated until it is done."""
    started = time.monotonic()
    run(tmp_path / "timed", text)
    took = time.monotonic() - started
    generator = random.Random(0)
    killed = 0
    while killed < 20:
        root = tmp_path / str(killed)
        while True:
            seconds = generator.uniform(0.1, 1.3) * took
            ended = run(root, text, None, Limits(seconds=seconds))
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGALRM, ended.said
            killed += 1
        assert_same_end(root, whole[0])


@pytest.mark.parametrize(
    ("file", "free"),
    [
        *slow(("train.bin", 100)),
        pytest.param("meta.json", 0, marks=pytest.mark.long),
        pytest.param("config.yaml", 40, marks=pytest.mark.long),
        *slow(("status.json", 5)),
        ("metrics.jsonl", 30),
        *slow(("step-000002", 2_000)),
        pytest.param("step-000003", 0, marks=pytest.mark.long),
        *slow(("npz", 200)),
        ("open .*results.jsonl", 30),
        pytest.param("open .*probes.jsonl", 1, marks=pytest.mark.long),
        pytest.param("summary.json", 7, marks=pytest.mark.long),
    ],
)
def test_a_full_disk_is_one_line_and_then_the_run_goes_on(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended], file: str, free: int
) -> None:
    """Cut off within this very file; later ones find no more room."""
    ended = run(tmp_path, text, Fault(FULL, on=file, room=free))
    assert ended.code == 1
    assert ended.complaint.count("\n") == 0
    place = {"train.bin": "cache", "meta.json": "cache", "config.yaml": "seed1"}.get(
        file, file.split("*")[-1]
    )
    assert place in ended.complaint
    assert "File too large" in ended.complaint
    assert ".tmp" not in ended.complaint
    assert RunFolder(tmp_path / RUN).status.get("state") != "done"
    ended = run(tmp_path, text)
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path, whole[0])


@pytest.mark.slow
def test_a_small_disk(tmp_path: Path, text: Path, whole: tuple[Path, Ended]) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    try:
        ended = run(tmp_path, text)
        assert ended.code == 1
        assert "No space left on device; make room" in ended.complaint
        assert ended.complaint.count("\n") == 0
        subprocess.run(["mount", "-o", "remount,size=8m", str(tmp_path)], check=True)
        ended = run(tmp_path, text)
        assert ended.code == 0, ended.said
        assert_same_end(tmp_path, whole[0])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("place", a_few(["outputs", "cache", "outputs/default/x"], 1))
def test_a_folder_that_may_only_be_read(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended], place: str
) -> None:
    closed = tmp_path / place
    closed.mkdir(parents=True)
    closed.chmod(0o555)
    ended = run(tmp_path, text, None, Limits(modes=True))
    assert ended.code == 1
    assert ended.complaint.count("\n") == 0
    assert str(closed) in ended.complaint
    assert "Permission denied" in ended.complaint
    assert not list(closed.iterdir())
    closed.chmod(0o755)
    ended = run(tmp_path, text, None, Limits(modes=True))
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path, whole[0])


@pytest.mark.slow
def test_a_run_that_may_no_longer_be_written(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended]
) -> None:
    root = shutil.copytree(whole[0], tmp_path / "copy")
    folder = root / RUN
    RunFolder(folder).write_status("running")
    (folder / "results.jsonl").unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folder.chmod(0o555)
    ended = run(root, text, None, Limits(modes=True))
    assert ended.code == 1
    assert f"{folder}" in ended.complaint
    assert "Permission denied" in ended.complaint
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folder.chmod(0o755)
    assert run(root, text, None, Limits(modes=True)).code == 0
    assert_same_end(root, whole[0])


WIDE = "model.width=16 model.feed_forward=262144 model.layers=1 model.dropout=0"


@pytest.mark.parametrize(
    ("more", "expected"),
    a_few(
        [
            ("model.width=4096 model.feed_forward=65536", "the model, width 4096, 2 layers"),
            (
                f"{WIDE} train.batch=256 train.accumulate=1",
                "a training step of train.batch=256 x train.length=16; try a smaller train.batch",
            ),
            (
                f"{WIDE} train.steps=1 eval.batch_tokens=8000 eval.lengths=[16,344] "
                "eval.blocks=16",
                "evaluation with eval.batch_tokens=8000",
            ),
        ],
        1,
    ),
)
def test_memory_that_runs_out_is_one_line(
    tmp_path: Path, text: Path, more: str, expected: str
) -> None:
    ended = run(tmp_path, text, None, Limits(memory=700 * 2**20), more=more)
    assert ended.code == 1, ended.said
    assert ended.complaint.startswith("out of memory: ")
    assert expected in ended.complaint
    assert ended.complaint.count("\n") == 0
    assert RunFolder(tmp_path / RUN).status.get("state") != "done"


@pytest.mark.slow
def test_overwriting_a_run_leaves_it_whole_or_gone(
    tmp_path: Path, text: Path, whole: tuple[Path, Ended]
) -> None:
    root = shutil.copytree(whole[0], tmp_path / "copy")
    for on in ("model.safetensors", "results.jsonl"):
        ended = run(root, text, Fault(KILL, on=on), more="run.overwrite=true")
        assert ended.code < 0
    ended = run(root, text)
    assert ended.code == 0, ended.said
    assert_same_end(root, whole[0])


def test_what_a_child_cannot_write_is_cut_off_in_the_midst(tmp_path: Path, text: Path) -> None:
    """The fault is what it says: part of a row is in the file when the process dies."""
    ended = run(tmp_path, text, Fault(TORN, on="metrics.jsonl", room=30))
    assert ended.code < 0
    assert (tmp_path / RUN / "metrics.jsonl").stat().st_size == 30
    assert read_rows(tmp_path / RUN / "metrics.jsonl") == []
