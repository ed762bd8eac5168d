"""The tests that are marked gpu."""

from __future__ import annotations

import importlib.util
import re
import sys

from scripts.gpu import commands
from scripts.gpu.part import Case, Row, Settings
from scripts.gpu.watch import ROOT

SECONDS = 180.0
COUNTED = ("PASSED", "FAILED", "ERROR", "SKIPPED")


def cases(settings: Settings) -> list[Case]:
    return [Case("pytest -m gpu", lambda: pytest(settings))]


def pytest(settings: Settings) -> Row:
    """Counted line by line, so that those before a time limit count too."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    parallel = importlib.util.find_spec("xdist") is not None and not settings.rehearse
    words = ["-vv", "-m", "gpu", "-p", "no:cacheprovider", *(["-n", "2"] if parallel else [])]
    code, printed = commands.run([sys.executable, "-m", "pytest", *words, *files], SECONDS)
    found = re.findall(rf"^(?:\[gw|tests/).*\b({'|'.join(COUNTED)})\b", printed, re.MULTILINE)
    counts = {word.lower(): found.count(word) for word in COUNTED}
    failures = re.findall(r"^(?:FAILED|ERROR) (.*)$", printed, re.MULTILINE)
    row: Row = {"files": files, "code": code, "counts": counts, "failures": failures[:40]}
    row["ok"] = code == 0 and not failures
    if code is None:
        row["error"] = f"stopped after {SECONDS:.0f} s: {counts}"
    elif code:
        row["error"] = f"exit code {code}: {counts}"
    return row
