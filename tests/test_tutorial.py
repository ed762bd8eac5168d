"""docs/your_encoding.md does what it says: its files are written, its commands run, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toy import arguments, flat

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "your_encoding.md").read_text()
FILE = re.compile(r"^`([\w/]+\.(?:py|yaml))`", re.M)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def steps() -> Iterator[tuple[str, str]]:
    """("name of a file", content), ("run", command line) and ("text", what was seen)."""
    for block in BLOCK.finditer(PAGE):
        kind, text = block.groups()
        if kind in ("python", "yaml"):
            *_, name = FILE.findall(PAGE[: block.start()])
            yield name, text
        elif kind == "console":
            for line in text.splitlines():
                yield "run", line.removeprefix("$ ")
        else:
            yield "text", text


class Reader:
    """A folder, and a shell in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """A line of the page, its training shortened."""
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environment[name] = os.pathsep.join([value, str(ROOT)])
            return subprocess.CompletedProcess(line, 0, "", "")
        words = shlex.split(line)
        program, command = words[0], words[1:2]
        if program == "posbench" and command == ["train"]:
            toy = flat(arguments(self.folder, "model.heads=4"))
            words += [word for word in toy if not word.startswith("run.root=")]
        launched = {"posbench": ["-m", "posbench"], "python": []}[program]
        return subprocess.run(
            [sys.executable, *launched, *words[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    reader, seen = Reader(tmp_path), ""
    checks = 0
    for kind, text in steps():
        if kind == "run":
            done = reader.run(text)
            checks += text.startswith("posbench check")
            fails = text.startswith("posbench check") and checks == 1
            assert done.returncode == (1 if fails else 0), done.stdout + done.stderr
            seen = done.stdout + done.stderr
            report = tmp_path / "outputs" / "report.md"
            seen += report.read_text() if report.exists() else ""
        elif kind == "text":
            for line in text.splitlines():
                for part in line.split("…"):  # what stands for the numbers
                    assert " ".join(part.split()) in " ".join(seen.split())
        else:
            path = tmp_path / kind
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    runs = {path.parent.parent.name for path in tmp_path.glob("outputs/demo/*/seed1/summary.json")}
    assert runs == {"ripple", "alibi", "rope", "ripple-8", "ripple-32"}
