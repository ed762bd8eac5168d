"""docs/your_encoding.md does what it says: its files are written, its commands run, in order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import Reader
from tests.helpers.places import ROOT

PAGE = (ROOT / "docs" / "your_encoding.md").read_text(encoding="utf-8")
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


def test_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two files within a second
    reader, seen = Reader(tmp_path, monkeypatch, capfd), ""
    checks = 0
    for kind, text in steps():
        if kind == "run":
            code, seen = reader.run(text)
            checks += text.startswith("posbench check")
            fails = text.startswith("posbench check") and checks == 1
            assert code == (1 if fails else 0), seen
            report = tmp_path / "outputs" / "report.md"
            seen += report.read_text(encoding="utf-8") if report.exists() else ""
        elif kind == "text":
            for line in text.splitlines():
                for part in line.split("…"):  # what stands for the numbers
                    assert " ".join(part.split()) in " ".join(seen.split())
        else:
            reader.write(kind, text)
    runs = {path.parent.parent.name for path in tmp_path.glob("outputs/demo/*/seed1/summary.json")}
    assert runs == {"ripple", "alibi", "rope", "ripple-8", "ripple-32"}
