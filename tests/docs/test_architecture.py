"""docs/architecture.md tells of what is there, and make lint holds the order that it draws."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.places import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLANTED = {
    "posbench/machine/files.py": "from posbench.config import Config",  # a room above
    "posbench/evaluation/score.py": "from posbench.training import loop",  # the room beside
    "posbench/runs/run.py": "import hydra",
    "posbench/runs/tuning.py": "from posbench.hydra_app import launcher",
    "posbench/report/reading/groups.py": "from posbench.report.writing import wording",
    "posbench/attention/skew.py": "from posbench.attention import fused",  # a circle
}


def contracts() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {each["id"]: each for each in settings["tool"]["importlinter"]["contracts"]}


def rooms(layers: list[str]) -> list[set[str]]:
    return [{name.strip() for name in layer.split("|")} for layer in layers]


def test_the_drawing_is_the_order_that_lint_holds() -> None:
    (drawing,) = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    drawn = [
        set(re.findall(r"\b(\w+)(?:/|\.py)(?=[\s:])", f"{line} ")) for line in drawing.splitlines()
    ]
    named = [line for line in drawn if line]
    asked = rooms(contracts()["rooms"]["layers"])[1:]  # without __main__
    inside = rooms(contracts()["report"]["layers"])
    place = next(n for n, layer in enumerate(asked) if layer == {"report"})
    asked[place] = {"report", *inside[0]}
    assert named == [*asked[: place + 1], *inside[1:], *asked[place + 1 :]]


def test_every_room_has_a_line_of_its_own() -> None:
    packages = {path.parent.name for path in (ROOT / "posbench").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "posbench").glob("*.py")}
    layers = set[str]().union(*rooms(contracts()["rooms"]["layers"]))
    assert layers == packages | modules - {"__init__"}
    assert len(modules) <= 8


def test_the_files_that_it_names_are_there() -> None:
    names = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in code.split()}
    paths = {name for name in names if re.fullmatch(r"[\w./]+(\.py|\.yaml|\.md|/)", name)}
    assert len(paths) > 40
    places = [ROOT, ROOT / "posbench", ROOT / "posbench" / "report" / "writing"]
    places += [ROOT / "posbench" / "report" / "comparing", ROOT / "tests" / "report"]
    places += [ROOT / "posbench" / "evaluation", ROOT / "posbench" / "attention"]
    places += [ROOT / "tests" / "evaluation"]
    missing = [p for p in paths if "NAME" not in p and not any((at / p).exists() for at in places)]
    assert missing == []


@pytest.mark.parametrize("file", PLANTED)
def test_an_import_against_the_order_fails_lint(tmp_path: Path, file: str) -> None:
    shutil.copytree(
        ROOT / "posbench", tmp_path / "posbench", ignore=shutil.ignore_patterns("*.pyc")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint(tmp_path) == 0
    with (tmp_path / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{PLANTED[file]}\n")
    assert lint(tmp_path) == 1


def lint(folder: Path) -> int:
    """What `make lint` runs for the order of the rooms; its exit code."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    return subprocess.run([*command, "--no-cache"], cwd=folder, capture_output=True).returncode
