"""A run folder from a stranger: nothing in it is run, resolved, unpickled or written through."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from posbench import cli
from tests.helpers.marks import a_few
from tests.helpers.toy import train
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]
Tamper = Callable[[Path], object]

WITNESS = "posbench_witness"  # in the environment, once anything is executed
CODE = f"__import__('os').environ.setdefault('{WITNESS}', 'executed')"


class Evil:
    """Its pickle runs code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (CODE,)


def test_the_witness_would_tell() -> None:
    pickle.loads(pickle.dumps(Evil()))
    assert WITNESS in os.environ
    del os.environ[WITNESS]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stranger")
    assert train(root, "encoding=shaw") == 0
    return root / "outputs" / "default" / "shaw" / "seed1"


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil; the working folder is beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/secret-of-mine")
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def replaced(old: str, new: str) -> Tamper:
    def tamper(run: Path) -> None:
        text = (run / "config.yaml").read_text()
        assert old in text
        (run / "config.yaml").write_text(text.replace(old, new))

    return tamper


def added(text: str) -> Tamper:
    return lambda run: (run / "config.yaml").open("a").write(text)


def target(group: str, name: str) -> Tamper:
    classes = {
        "encoding": "posbench.encodings.shaw.Shaw",
        "corpus": "posbench.corpus.sources.Files",
        "tokenizer": "posbench.corpus.tokenizer.Bytes",
    }
    return replaced(f"_target_: {classes[group]}", f"_target_: {name}")


def script(run: Path) -> None:
    """A module beside the folder, as a stranger's archive may bring one."""
    (run.parent / "innocent.py").write_text(CODE)
    target("encoding", "innocent.Encoding")(run)


def weights(content: bytes) -> Tamper:
    def tamper(run: Path) -> None:
        for path in run.glob("checkpoints/*/model.safetensors"):
            path.write_bytes(content)

    return tamper


def header(shape: list[int]) -> bytes:
    """A file of safetensors that claims a tensor of this shape."""
    said = {"tokens.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}
    text = json.dumps(said).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


def pickled() -> bytes:
    saved = io.BytesIO()
    torch.save({"tokens.weight": Evil()}, saved)
    return saved.getvalue()


BOMB = "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12))

REFUSED_BY_EVAL: dict[str, tuple[Tamper, str]] = {
    **{
        f"{group} {name}": (target(group, name), f"{group}._target_")
        for group in ("encoding", "corpus", "tokenizer")
        for name in ("os.system", "this.s")
    },
    "a module in the working folder": (script, "innocent.Encoding"),
    "a part of a mix": (
        replaced("  values: true", "  values: true\n  parts: {a: {_target_: os.system}}"),
        "encoding.parts.a._target_",
    ),
    "a source as encoding": (target("encoding", "posbench.corpus.sources.Sotu"), "not a subclass"),
    "an encoding as tokenizer": (target("tokenizer", "posbench.encodings.nope.NoPE"), "tokenizer"),
    "an object by tag": (added("x: !!python/object/apply:os.system [true]\n"), "not valid YAML"),
    "a file by tag": (added("x: !include /etc/passwd\n"), "not valid YAML"),
    "a bomb of references": (added(f"b0: &b0 [x]\n{BOMB}"), "reference"),
    "a merge of references": (added("<<: *x\n"), "config.yaml"),
    "deep nesting": (added("x: " + "[" * 5000 + "]" * 5000), "config.yaml"),
    "many bytes": (added("# " + "x" * 2**20), "1,048,576 bytes"),
    "no UTF-8": (lambda run: (run / "config.yaml").write_bytes(b"\xff\xfe"), "not valid YAML"),
    "bytes as a value": (added("x: !!binary aGVsbG8=\n"), "not a run's configuration"),
    "a huge width": (replaced("width: 16", "width: 1000000000"), "of memory"),
    "a huge table": (replaced("k: 16", "k: 100000000000"), "memory"),
    "a number beyond all": (replaced("width: 16", f"width: {10**30}"), "64 bits"),
    "a text for a number": (replaced("width: 16", "width: wide"), "model.width"),
    "a resolver for a number": (
        replaced("width: 16", "width: ${oc.decode:16}"),
        "model.width",
    ),
    "a resolver for an optimizer group": (
        replaced("  values: true", "  values: true\n  optim: {lr_multiplier: '${oc.decode:1}'}"),
        "encoding.optim.lr_multiplier",
    ),
    "a missing value": (replaced("width: 16", "width: ???"), "model.width"),
    "another width": (replaced("width: 16", "width: 32"), "not a checkpoint of this model"),
    "an unknown argument": (replaced("k: 16", "k: 16\n  evil: 1"), "encoding.evil"),
    "weights of 2^60 numbers": (weights(header([2**30, 2**30])), "damaged"),
    "weights of a negative shape": (weights(header([-1])), "damaged"),
    "a header of 2^63 bytes": (weights(b"\xff" * 7 + b"\x7f"), "damaged"),
    "a pickle for weights": (weights(pickle.dumps(Evil())), "damaged"),
    "torch.save for weights": (weights(pickled()), "damaged"),
    "no weights": (weights(b""), "damaged"),
    "status of another kind": (lambda run: (run / "status.json").write_text("[1]"), "status.json"),
    "status deeply nested": (
        lambda run: (run / "status.json").write_text("[" * 100_000),
        "status.json",
    ),
}


def refused(capfd: Output, *words: str) -> str:
    capfd.readouterr()
    assert cli.run(list(words)) == 1
    assert WITNESS not in os.environ
    assert not [name for name in ("this", "innocent", "antigravity") if name in sys.modules]
    return one_line(capfd)


@pytest.mark.parametrize(
    "what", ["encoding os.system", "a module in the working folder", "a part of a mix"]
)
def test_repro_refuses_it_too(run: Path, capfd: Output, what: str) -> None:
    tamper, expected = REFUSED_BY_EVAL[what]
    tamper(run)
    assert expected in refused(capfd, "repro", f"run={run}", "runtime.threads=1")


@pytest.mark.parametrize("what", a_few([*REFUSED_BY_EVAL], 9))
def test_eval_refuses_a_tampered_folder(run: Path, capfd: Output, what: str) -> None:
    tamper, expected = REFUSED_BY_EVAL[what]
    tamper(run)
    before = (run / "results.jsonl").read_bytes()
    said = refused(capfd, "eval", f"run={run}", "runtime.threads=1")
    assert expected in said
    assert "secret-of-mine" not in said
    assert (run / "results.jsonl").read_bytes() == before


def test_what_looks_like_a_resolver_is_text(run: Path, capfd: Output) -> None:
    replaced("name: files", "name: ${oc.env:HOME}")(run)
    capfd.readouterr()
    assert cli.run(["eval", f"run={run}", "runtime.threads=1"]) == 0
    done = capfd.readouterr()
    assert "secret-of-mine" not in done.out + done.err
    assert "secret-of-mine" not in "".join(p.read_text() for p in run.glob("*.json*"))


def test_a_root_elsewhere_is_not_written_to(run: Path, tmp_path: Path) -> None:
    text = (run / "config.yaml").read_text().splitlines()
    said = [f"  root: {tmp_path}/elsewhere" if "  root:" in line else line for line in text]
    said = ["  name: ../../up" if line == "  name: shaw" else line for line in said]
    (run / "config.yaml").write_text("\n".join(said))
    here = set(tmp_path.rglob("*"))
    assert cli.run(["eval", f"run={run}", "runtime.threads=1"]) == 0
    assert set(tmp_path.rglob("*")) == here
    assert cli.run(["report", f"runs=[{run}]", "folder=made", "report.figures=[svg]"]) == 0
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - here} == {
        "made"
    }


@pytest.mark.parametrize("name", ["results.jsonl", "losses", "wandb", "losses/x.npz"])
def test_nothing_is_written_through_a_link(
    run: Path, tmp_path: Path, capfd: Output, name: str
) -> None:
    mine = tmp_path / "mine"
    if (run / name).exists():
        shutil.move(run / name, mine)
    (run / name).symlink_to(mine)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("mine*/*")}
    assert "a link" in refused(capfd, "eval", f"run={run}", "runtime.threads=1")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("mine*/*")} == before


def losses(content: bytes) -> Tamper:
    def tamper(run: Path) -> None:
        for path in run.glob("losses/*.npz"):
            path.write_bytes(content)

    return tamper


def arrays(compressed: bool = False, **named: object) -> bytes:
    file = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(file, **{name: np.array(value) for name, value in named.items()})  # type: ignore[arg-type]
    return file.getvalue()


def claimed(shape: str) -> bytes:
    """An archive of arrays whose first claims this shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "losses.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        )
    return file.getvalue()


def row(**changes: object) -> Tamper:
    def tamper(run: Path) -> None:
        first = json.loads((run / "results.jsonl").read_text().splitlines()[0])
        (run / "results.jsonl").write_text(json.dumps(first | changes) + "\n")

    return tamper


def lines(text: str) -> Tamper:
    return lambda run: (run / "results.jsonl").write_text(text)


REFUSED_BY_REPORT: dict[str, Tamper] = {
    "a pickle among the arrays": losses(arrays(losses=[Evil()], windows=[Evil()])),
    "a pickle for an archive": losses(pickle.dumps(Evil())),
    "a bomb": losses(arrays(compressed=True, losses=np.zeros(10**6), windows=[])),
    "an array of 2^60 numbers": losses(claimed("(1073741824, 1073741824)")),
    "an array of 2^38 numbers": losses(claimed("(274877906944,)")),
    "an array of code": losses(claimed(CODE)),
    "too few numbers": losses(arrays(losses=[1.0], windows=[[0, 0, 16, 8, 0]])),
    "no windows": losses(arrays(losses=[1.0] * 32)),
    "text for numbers": losses(arrays(losses=["a"] * 32, windows=["b"])),
    "a row of no object": lines("[1]\n"),
    "a row of NUL": lines("\0\n"),
    "a row deeply nested": lines("[" * 100_000 + "\n"),
    "a row with a long number": lines("9" * 5000 + "\n"),
    "a row without keys": lines("{}\n"),
    "a list for a name": row(protocol=["a"]),
    "no name": row(protocol=" "),
    "a length that is text": row(length="16"),
    "a loss that is no number": row(nll=float("nan")),
    "a loss beyond all": row(nll=float("inf")),
    "a loss that is true": row(nll=True),
    "a negative count": row(tokens=-1),
    "a count beyond 64 bits": row(tokens=10**30),
    "a length that is text in the configuration": replaced("  length: 16", "  length: many"),
    "a list for a group": replaced("encoding:\n", "encoding: []\nold:\n"),
    "metrics of another kind": lambda run: (run / "summary.json").write_text("3"),
}


@pytest.mark.parametrize("what", a_few([*REFUSED_BY_REPORT], 6))
def test_report_refuses_a_tampered_folder(run: Path, capfd: Output, what: str) -> None:
    REFUSED_BY_REPORT[what](run)
    said = refused(capfd, "report", f"runs=[{run}]", "folder=made", "report.figures=[]")
    assert str(run) in said


def test_a_pipe_among_the_files_holds_nothing_up(run: Path, capfd: Output) -> None:
    for name in ("results.jsonl", "probes.jsonl", "summary.json"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    assert cli.run(["report", f"runs=[{run}]", "folder=made"]) == 0
    assert "no file" in refused(capfd, "eval", f"run={run}", "runtime.threads=1")
