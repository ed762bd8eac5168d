"""Streams, variables, accounts and programs of the machine: no traceback, and no other result."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import posbench
from posbench import cli, tracking
from posbench.config import TrackingConfig
from posbench.corpus import cache as corpus
from posbench.errors import UserError, one_line
from posbench.hydra_app.error_lines import is_users
from posbench.machine import environment, provenance, runtime, torchrun
from posbench.machine.distributed import joined
from posbench.runs import repro
from posbench.terminal import streams
from posbench.tracking import wandb as tracker
from tests.helpers.folders import write_run
from tests.helpers.toy import arguments, flat
from tests.test_cli import one_line as said_once

Output = pytest.CaptureFixture[str]

SOURCES = [*Path(posbench.__file__).parent.rglob("*.py")]


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """What a test changes of it, in the code under test too, ends with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def shown(text: str, encoding: str) -> str:
    """What a stream of an encoding makes of a text."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        streams.substitute()
        print(text, end="", flush=True)
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("text", "ascii_text"),
    [
        ("1.5× ≈ p→p ≥ ±0.1 …", "1.5x ~ p->p >= +-0.1 ."),
        ("3·10⁻⁶ 2¹² x₁₂", "3.10^-6 2^12 x_12"),
        ("θ Ω", "theta Omega"),
        ("█▁", "#_"),
        ("é国\udcff", "\\xe9\\u56fd\\udcff"),
    ],
)
def test_what_a_stream_cannot_hold_has_a_substitute(text: str, ascii_text: str) -> None:
    assert shown(text, "ascii") == ascii_text
    assert shown(text.replace("\udcff", ""), "utf-8") == text.replace("\udcff", "")
    assert shown("é → \udcff", "latin-1") == "é -> \\udcff"


def test_every_symbol_of_the_source_has_a_readable_substitute() -> None:
    """What posbench itself prints in English needs no escapes."""
    symbols = {c for path in SOURCES for c in path.read_text(encoding="utf-8") if ord(c) > 127}
    signs = {c for c in symbols if not c.isalpha()}
    assert {c for c in signs if "\\" in shown(c, "ascii")} == set()


def test_every_text_file_names_its_encoding() -> None:
    """Else it is the locale's."""
    found = []
    for path in SOURCES:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
            binary = any(isinstance(each, str) and "b" in each for each in texts)
            named = any(keyword.arg == "encoding" for keyword in call.keywords)
            named |= "utf-8" in texts or getattr(call.func, "id", "") == "write_text"
            is_system = isinstance(call.func, ast.Attribute) and name == "open"
            is_system &= ast.unparse(call.func).startswith("os.")
            if name in ("open", "read_text", "write_text") and not (binary or named or is_system):
                found.append(f"{path}:{call.lineno}")
    assert found == []


# A whole command in a whole hostile environment: the core of it, in one process each.
HOSTILE = dict(
    word.split("=")
    for word in (
        "PYTHONIOENCODING=ascii PYTHONUTF8=0 LC_ALL=C PYTHONWARNINGS=error MPLBACKEND=nonsense "
        "SOURCE_DATE_EPOCH=nonsense COLUMNS=nonsense OMP_NUM_THREADS=nonsense RANK=7 LOCAL_RANK=x "
        "RAYON_NUM_THREADS=nonsense CUDA_VISIBLE_DEVICES=x SLURM_JOB_ID=x TERM=dumb HOME=nowhere "
        "GIT_DIR=/nowhere GIT_INDEX_FILE=/nowhere WANDB_MODE=nonsense"
    ).split()
)


def posbench_command(*words: str, shell: str = '"$@"', **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the installed command."""
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "posbench", *words]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **variables})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_run_and_its_report_in_hostile_surroundings(tmp_path: Path) -> None:
    words = flat(arguments(tmp_path, "encoding=alibi"))
    code, out, err = posbench_command("train", *words, **HOSTILE)
    assert (code, "Traceback" in err) == (0, False), err
    assert "x: ratio to" in out
    run = f"runs=[{tmp_path}/outputs]"
    words = [f"folder={tmp_path}/report", "report.formats=[markdown]", "report.figures=[svg,pdf]"]
    code, out, err = posbench_command("report", run, *words, shell='"$@" <&- >&- 2>&-', **HOSTILE)
    assert code == 0
    assert "×" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert {each.suffix for each in (tmp_path / "report" / "figures").iterdir()} == {
        ".svg",
        ".pdf",
    }


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ('"$@" | true', ""),
        ('"$@" > /dev/full', "error: standard output: No space left on device\n"),
        ('"$@" >&-', ""),
    ],
)
def test_an_output_that_nobody_takes(shell: str, expected: str) -> None:
    assert posbench_command("--help", shell=shell)[1:] == ("", expected)


def test_a_closed_stream_gives_no_number_away(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.close(1); sys.stdout = None\n"
        "from posbench.terminal import streams; streams.prepare()\n"
        f"print('lost'); file = open({str(tmp_path / 'file')!r}, 'w', encoding='utf-8')\n"
        "sys.exit(file.fileno() < 3)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert (tmp_path / "file").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x"},
        {"RANK": "0", "WORLD_SIZE": "x"},
        {"RANK": "0", "WORLD_SIZE": "-1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
    ],
    ids=str,
)
def test_torchruns_variables_left_over_are_told(variables: dict[str, str], capfd: Output) -> None:
    os.environ.update(variables)
    assert cli.run(["train"]) == 2
    assert "start with torchrun, or unset RANK" in said_once(capfd)


def test_a_rank_without_a_world_is_one_process(capfd: Output) -> None:
    os.environ.update({"RANK": "3", "LOCAL_RANK": "x"})
    assert (torchrun.processes(), torchrun.rank()) == (1, 0)
    assert cli.run(["trian"]) == 2
    assert "did you mean train?" in said_once(capfd)


def test_processes_that_do_not_come_are_told(
    monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    def nobody(_: str) -> None:
        raise RuntimeError("timed out")

    monkeypatch.setattr("posbench.machine.distributed.rendezvous", nobody)
    names = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    os.environ.update(names)
    with pytest.raises(UserError, match=r"did not all come to nowhere:1 \(timed out\)"), joined():
        pass
    assert "waiting at nowhere:1 for all 2 processes" in capfd.readouterr().err


def test_a_user_without_a_home_is_asked_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    users: dict[int, object] = {}
    monkeypatch.setattr("pwd.getpwuid", users.__getitem__)  # KeyError, as without an entry
    for name in ("POSBENCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(name, None)
    for home in (None, "", "relative"):
        if home is not None:
            os.environ["HOME"] = home
        assert environment.home() is None
    with pytest.raises(UserError, match="set POSBENCH_CACHE"):
        corpus.cache_root()


def test_the_cache_serves_libraries_where_there_is_no_home(tmp_path: Path) -> None:
    os.environ.update({"POSBENCH_CACHE": str(tmp_path), "HOME": str(tmp_path / "gone")})
    environment.prepare()
    assert os.environ["HOME"] == str(tmp_path)
    os.environ["HOME"] = str(tmp_path.parent)
    environment.prepare()
    assert os.environ["HOME"] == str(tmp_path.parent)


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "~nobody-of-this-name"])
def test_a_home_that_is_not_there_is_told(path: str) -> None:
    os.environ["POSBENCH_CACHE"] = path
    with pytest.raises(UserError, match="no such home folder"):
        corpus.cache_root()


def git(folder: Path, *words: str) -> str:
    """What Git says in folder."""
    who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, name: str) -> str:
    """Its commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", name)
    return git(folder, "rev-parse", "HEAD")[:12]


def test_the_commit_is_this_packages_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, "around it")
    own = repository(tmp_path / "own", "its own")
    git(tmp_path / "own", "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    os.environ.update({"GIT_DIR": f"{tmp_path}/.git", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "x"})
    found = {}
    for name in ("own", "tree", "broken", "installed"):
        monkeypatch.setattr(posbench, "__file__", str(tmp_path / name / "posbench" / "x.py"))
        found[name] = provenance.commit()
    assert found == {"own": own, "tree": own, "broken": None, "installed": None}
    (tmp_path / "own" / "new").touch()
    monkeypatch.setattr(posbench, "__file__", str(tmp_path / "own" / "posbench" / "x.py"))
    assert provenance.commit() == f"{own}+dirty"
    os.environ["PATH"] = str(tmp_path)
    assert provenance.commit() is None


CHANGE = [
    *("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_ALGO"),
]
DO_NOT = [
    *("OMP_NUM_THREADS", "MKLROOT", "TORCH_HOME", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR", "HOME"),
    *("NVIDIA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTORCH_VERSION"),
]


def test_variables_that_change_numbers_are_recorded() -> None:
    for name in [name for name in os.environ if environment.CHANGING.fullmatch(name)]:
        del os.environ[name]
    os.environ.update(dict.fromkeys([*CHANGE, *DO_NOT], "default"))
    told = provenance.here(torch.device("cpu"), torch.float32)
    assert told["variables"] == dict.fromkeys(sorted(CHANGE), "default")


def test_repro_names_a_variable_that_differs() -> None:
    there = {"threads": 1, "variables": {"MKL_CBWR": "COMPATIBLE", "KMP_X": "1"}}
    here: dict[str, object] = {"threads": 1, "variables": {"ATEN_X": "1", "KMP_X": "1"}}
    assert repro.differences(there, here) == {
        "ATEN_X": ("not set", "1"),
        "MKL_CBWR": ("COMPATIBLE", "not set"),
    }
    assert repro.differences({"threads": 1}, here | {"variables": {}}) == {}


@pytest.fixture
def _checked_anew() -> None:
    runtime.require_compiler.cache_clear()


@pytest.mark.usefixtures("_checked_anew")
def test_no_compiler_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    from torch._inductor import config

    words = flat(arguments(tmp_path, "encoding=alibi train.compile=true"))
    with config.patch({"cpp.cxx": (None, "/nowhere/g++")}):  # monkeypatch would delete the key
        assert cli.run(["train", *words]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: train.compile=true: no working compiler")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.usefixtures("_checked_anew")
def test_compilation_turned_off_is_told() -> None:
    off = torch._dynamo.config.patch(disable=True)  # monkeypatch would delete the key
    with off, pytest.raises(UserError, match="turns compilation off"):
        runtime.require_compiler(torch.device("cpu"))


def test_a_compiler_that_fails_is_told_and_a_defect_is_not_hidden() -> None:
    from torch._inductor.exc import CppCompileError

    with pytest.raises(UserError, match="no working compiler"), runtime.compiling():
        raise CppCompileError(["g++"], "no such header")
    with pytest.raises(UserError, match="no working compiler"), runtime.compiling():
        raise RuntimeError("Failed to find C compiler. Please specify via CC")
    with pytest.raises(IndexError), runtime.compiling():
        raise IndexError


def test_a_library_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("int('x')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    code = "import broken_library"
    with pytest.raises(ValueError, match="invalid") as caught:
        exec(compile(code, "part", "exec"), {"__name__": "posbench.part"})
    assert one_line(caught.value).startswith("broken_library cannot be imported (ValueError: ")
    assert is_users(caught.value)
    with pytest.raises(ValueError, match="invalid") as defect:
        exec(compile("int('x')", "part", "exec"), {"__name__": "posbench.part"})
    assert "imported" not in one_line(defect.value)
    assert not is_users(defect.value)


@pytest.mark.slow
def test_a_matplotlibrc_changes_no_figure(tmp_path: Path) -> None:
    """One in a user's settings is matplotlib's rcParams by the time that figures are drawn."""
    import matplotlib

    run = write_run(tmp_path / "runs", "alibi", 1, lambda length: 3.5 + length / 1e4)
    odd: Any = {"text.usetex": True, "font.size": 30, "savefig.bbox": "tight", "figure.dpi": 33}
    found = []
    none: Any = {}
    for settings in (none, odd):
        folder = tmp_path / str(len(settings))
        with matplotlib.rc_context(settings):
            words = [f"runs=[{run}]", f"folder={folder}", "report.formats=[]"]
            assert cli.run(["report", *words, "report.figures=[png,svg]"]) == 0
            words = ["encoding=alibi", "figures=true", f"folder={folder}/figures"]
            assert cli.run(["describe", *words, "describe.length=16", "describe.matrix=8"]) == 0
        found.append({each.name: each.read_bytes() for each in folder.rglob("*.*g")})
    assert len(found[0]) > 4
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "project", ["pe/rope", "a:b", "", " ", "x" * 129, "50%", "a\\b", "c#", "?"]
)
@pytest.mark.parametrize("to", ["wandb", "trackio"])
def test_a_project_that_a_tracker_refuses_is_refused_first(project: str, to: str) -> None:
    mode = "offline" if to == "wandb" else "disabled"
    with pytest.raises(UserError, match=r"tracking\.project="):
        tracking.check(TrackingConfig(1, to, mode, project))
    tracking.check(TrackingConfig(1, "wandb", "disabled", project))
    tracking.check(TrackingConfig(1, "wandb", "offline", "x" * 128))


def test_a_wrong_project_stops_a_sweep_before_its_first_job(tmp_path: Path, capfd: Output) -> None:
    asked = "encoding=alibi,rope tracking.wandb=offline tracking.project=a:b"
    assert cli.run(["train", "-m", *flat(arguments(tmp_path, asked))]) == 1
    assert "none was started: tracking.project='a:b'" in said_once(capfd)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.usefixtures("_no_wandb_account")
def test_no_variable_of_wandbs_makes_a_run_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.helpers.wandb_file import records

    os.environ.update({f"WANDB_{name}": "other" for name in tracker.NAMING})
    (tmp_path / "run").mkdir()
    started = tracking.start(
        TrackingConfig(1, "wandb", "offline", "mine"),
        folder=tmp_path / "run",
        name="n" * 200,
        group="group",
        settings={},
        resume_id=None,
        tags=("t" * 65, "", "t" * 66),
    )
    started.finish(0)
    (run,) = [each.run for each in records(tmp_path / "run") if each.HasField("run")]
    assert (run.project, run.run_id) == ("mine", tracking.saved_id(tmp_path / "run"))
    assert (run.display_name, run.run_group, run.sweep_id) == ("n" * 128, "group", "")
    assert list(run.tags) == ["t" * 64]
    (told,) = [each.message for each in caplog.records if each.name == "posbench"]
    assert "WANDB_SWEEP_ID" in told
