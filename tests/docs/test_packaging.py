"""The wheel: built from a copy of the sources, and used where the sources are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.helpers.places import ROOT

SOURCES = ("posbench", "conf", "tests", "scripts", "pyproject.toml", "README.md", "LICENSE")
TOY_RUN = (
    "encoding=alibi corpus=files corpus.path=corpus tokenizer=bytes tracking.wandb=disabled "
    "model.width=32 model.heads=2 model.layers=1 model.feed_forward=64 "
    "train.length=16 train.batch=2 train.steps=2 optim.warmup=1 "
    "eval.lengths=[16,32] eval.targets=16 eval.blocks=2 runtime.device=cpu"
).split()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools takes what an earlier build left in build/ for sources."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "sources"
    copy.mkdir()
    for path in (ROOT / name for name in SOURCES):
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, copy / path.name, ignore=ignored)
        elif path.exists():
            shutil.copy(path, copy)
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(copy)]
    run([sys.executable, *build], cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of a virtual environment: the wheel, and the dependencies of this interpreter.

    A line of a .pth file adds a folder, but runs no .pth file in that folder: an editable
    posbench of this interpreter stays unseen.
    """
    root = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(root)], cwd=root)
    pip = ["-m", "pip", "--python", str(root / "bin" / "python"), "--disable-pip-version-check"]
    run([sys.executable, *pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], cwd=root)
    (site_packages,) = root.glob("lib/python*/site-packages")
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(folders)) + "\n")
    return root / "bin"


def run(command: list[str], cwd: Path) -> str:
    """Its standard output; a failure shows all it printed."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WANDB"))}
    variables["XDG_CACHE_HOME"] = str(cwd / ".cache")
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def sources(folder: str, pattern: str) -> set[str]:
    """Files under a folder of the repository, as a wheel names them."""
    inside = "posbench/conf" if folder == "conf" else folder
    return {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_the_package_the_configuration_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {name.split("/", 1)[1] for name in set(archive.namelist()) - names}
    code, yaml = sources("posbench", "*"), sources("conf", "*.yaml")
    assert {"posbench/py.typed", "posbench/cli.py"} <= code
    assert {"posbench/conf/train.yaml", "posbench/conf/encoding/alibi.yaml"} <= yaml
    assert names == code | yaml | {"posbench/conf/__init__.py"}
    assert {"licenses/LICENSE", "entry_points.txt"} <= metadata


def test_what_is_imported_is_the_wheel(environment: Path, tmp_path: Path) -> None:
    code = "import posbench, posbench.conf as c; print(posbench.__file__); print(c.__file__)"
    found = run([str(environment / "python"), "-c", code], cwd=tmp_path).split()
    assert all(Path(file).is_relative_to(environment.parent) for file in found), found


def test_a_run_from_the_wheel_leaves_its_results(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number in range(60):
        words = " ".join(f"word{number * k % 97}" for k in range(200))
        (tmp_path / "corpus" / f"{number:02}.txt").write_text(words)
    run([str(environment / "posbench"), "train", *TOY_RUN], cwd=tmp_path)
    (results,) = tmp_path.glob("outputs/**/results.jsonl")
    assert results.read_text().strip()
