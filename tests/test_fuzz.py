"""Any command line either does what it says or ends in one clear line: no traceback, no hang.

100 examples by default; with POSBENCH_FUZZ=n and -m long, n.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from posbench import cli
from tests import fuzzed
from tests.toy import WORDS, arguments, flat
from tests.toy import train as train_toy
from tests.toy import write_text

SECONDS = 60  # for one example; most take less than one
EXAMPLES = int(os.environ.get("POSBENCH_FUZZ", "2000"))
TEXT = Path(tempfile.gettempdir()) / "posbench-fuzz-text"
SMALL = "train.steps=2 eval.lengths=[16,24] eval.tokens=64 eval.probe_trials=4 eval.stride=8".split()
SMALL += "eval.segment=8 eval.probe_distances=[16]".split()

short = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
shorter = settings(short, max_examples=10)
long = settings(short, max_examples=EXAMPLES, derandomize=False, phases=[Phase.generate, Phase.shrink])


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
