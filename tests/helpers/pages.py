"""A page of the documentation, followed: its files written, its commands run at toy size."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from posbench import cli
from tests.helpers.places import ROOT
from tests.helpers.toy import arguments, flat

TRAINS = ("train", "tune")


class Reader:
    """A folder, and what a reader types in it.

    posbench runs in this process: starting Python and torch takes longer than what is run.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.patch, self.capture = folder, patch, capture
        patch.chdir(folder)
        toy = flat(arguments(folder, "model.heads=4"))
        self.toy = [word for word in toy if not word.startswith("run.root=")]

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sys.modules.pop(path.stem, None)  # a module is read anew, as in a process of its own

    def run(self, line: str, *more: str) -> tuple[int, str]:
        """The exit code and the output of a line of the page; more: for posbench."""
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.patch.setenv(name, os.pathsep.join([value, str(ROOT)]))
            self.patch.syspath_prepend(self.folder / value)
            return 0, ""
        program, *words = shlex.split(line)
        if program == "python":
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr
        assert program == "posbench"
        shortened = self.toy if words[:1] and words[0] in TRAINS else []
        self.capture.readouterr()
        code = cli.run([*words, *shortened, *more])
        return code, "".join(self.capture.readouterr())
