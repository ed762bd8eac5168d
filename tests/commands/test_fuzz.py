"""Any command line either does what it says or ends in one clear line: no traceback, no hang.

A few examples by default, 100 with -m slow, always the same; with -m long 2,000 others, or
POSBENCH_FUZZ of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from posbench import cli
from posbench.runs.run_folder import RunFolder
from tests.helpers import fuzzed
from tests.helpers.marks import slow
from tests.helpers.toy import arguments, flat, write_text
from tests.helpers.toy import train as train_toy

FEW = 0.1  # of the 100
SECONDS = 60  # for one example; most take less than one
EXAMPLES = int(os.environ.get("POSBENCH_FUZZ", "2000"))
SMALL = (
    "train.steps=2 eval.lengths=[16,24] eval.tokens=64 eval.probe_trials=4 eval.stride=8".split()
)
SMALL += "eval.segment=8 eval.probe_distances=[16]".split()


class Hangs(BaseException):
    """An example took longer than SECONDS."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_clear(command: str, words: list[str]) -> str:
    """Run it: what it said on stderr. Exit code 0, or one line that starts with "error:"."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited():
        code = cli.run([command, *words])
    said = err.getvalue().strip()
    assert "Traceback" not in said + out.getvalue(), said
    if code:
        assert said.startswith("error: "), said
        assert "\n" not in said, said
    else:
        assert "error:" not in said, said
    return said


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A working folder that goes with the example."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="posbench-fuzz-") as place:
        os.chdir(place)
        try:
            yield Path(place)
        finally:
            os.chdir(before)


def trains(words: list[str]) -> str:
    with folder() as place:
        fixed = [word for word in flat(arguments(place)) if word]
        write_text(place / "text", words=300)
        return assert_clear("train", [*fixed, *SMALL, *words, f"run.root={place}/outputs"])


def works(command: str, words: list[str]) -> str:
    """A command that takes a configuration and no corpus."""
    more = {"speed": "speed.lengths=[16] speed.tokens=16 speed.rounds=1 speed.seconds=0"}
    with folder() as place:
        tiny = [word for word in flat(arguments(place, "corpus=sotu")) if word]
        return assert_clear(command, [*tiny, *more.get(command, "").split(), *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    assert train_toy(root, "encoding=rope", *SMALL) == 0
    return root / "outputs" / "default" / "rope" / "seed1"


def reads(command: str, finished: Path, words: list[str]) -> str:
    """A command over a copy of a finished run."""
    with folder() as place:
        shutil.copytree(finished, place / "run")
        key = f"runs=[{place}/run]" if command == "report" else f"run={place}/run"
        tiny = ["report.draws=100"] if command == "report" else ["runtime.threads=1"]
        return assert_clear(command, [*tiny, *words, key])


def spoils(finished: Path, changes: dict[str, Any]) -> str:
    """What reads runs, over a copy in which some files hold other values."""
    with folder() as place:
        shutil.copytree(finished, place / "run")
        for name, content in changes.items():
            (place / "run" / name).write_text(json.dumps(content) + "\n")
        for command in ("report", "claims"):
            assert_clear(command, [f"runs=[{place}/run]", f"folder={place}"])
        assert_clear("repro", [f"run={place}/run", "repro.steps=1", "runtime.threads=1"])
        return assert_clear("eval", [f"run={place}/run", "runtime.threads=1"])


def files(finished: Path) -> st.SearchStrategy[dict[str, Any]]:
    """A file of the run -> what it holds instead; JSON is YAML, too."""
    known = {"config.yaml": RunFolder(finished).config()}
    for name in ("status.json", "summary.json", "provenance.json"):
        known[name] = json.loads((finished / name).read_text())
    for name in ("results.jsonl", "metrics.jsonl"):
        known[name] = json.loads((finished / name).read_text().splitlines()[0])
    return st.sampled_from(list(known)).flatmap(
        lambda name: fuzzed.spoiled(known[name]).map(lambda content: {name: content})
    )


SPOILED = 10
COMMANDS = {  # and the examples of each, of 100
    "train": (fuzzed.train(Path("text")), 40),
    "eval": (fuzzed.score(), 12),
    "report": (fuzzed.report(), 18),
    "describe": (fuzzed.describe(), 17),
    "check": (fuzzed.of_group("encoding"), 2),
    "speed": (fuzzed.speed(), 1),
}


def does(command: str, finished: Path, words: list[str]) -> str:
    if command == "train":
        return trains(words)
    if command in ("eval", "report"):
        return reads(command, finished, words)
    return works(command, words)


def examples(count: int, random: bool = False) -> settings:
    return settings(
        max_examples=count,
        derandomize=not random,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if random else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fuzz(command: str, finished: Path, how: settings) -> None:
    def once(words: list[str]) -> None:
        does(command, finished, words)

    how(given(COMMANDS[command][0])(once))()


def fuzz_files(finished: Path, how: settings) -> None:
    def once(changes: dict[str, Any]) -> None:
        spoils(finished, changes)

    how(given(files(finished))(once))()


SHARE = pytest.mark.parametrize("share", [FEW, *slow(1.0)])  # of the examples


@SHARE
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "speed"])  # it is slow
def test_a_command_line_does_as_it_says_or_says_why(
    command: str, share: float, finished: Path
) -> None:
    fuzz(command, finished, examples(math.ceil(COMMANDS[command][1] * share)))


@SHARE
def test_a_spoiled_run_folder_is_read_or_refused(share: float, finished: Path) -> None:
    fuzz_files(finished, examples(math.ceil(SPOILED * share)))


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_many_command_lines(command: str, finished: Path) -> None:
    fuzz(command, finished, examples(COMMANDS[command][1] * EXAMPLES // 100, random=True))


@pytest.mark.long
def test_many_spoiled_run_folders(finished: Path) -> None:
    fuzz_files(finished, examples(SPOILED * EXAMPLES // 100, random=True))
