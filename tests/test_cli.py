"""The command line: what it says to a mistake, and how quickly it says what it can do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from tests.helpers.marks import a_few
from tests.helpers.toy import arguments, flat, train

Output = pytest.CaptureFixture[str]


def one_line(capfd: Output) -> str:
    """The error, which must be a single line without a traceback."""
    said = capfd.readouterr().err.strip()
    assert said.startswith("error: "), said
    assert "\n" not in said, said
    return said


def test_the_command_table_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys; from posbench import cli; cli.run([]); "
        "print({'torch', 'hydra'} & {*sys.modules})"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert all(f"posbench {name}" in shown.stdout for name in cli.COMMANDS)
    assert shown.stdout.strip().endswith("set()")


def test_an_unknown_command_names_the_nearest(capfd: Output) -> None:
    assert cli.run(["trian"]) == 2
    assert "did you mean train?" in one_line(capfd)


MISTAKES: list[Any] = [
    ("eval.lengths=[[16]]", ["eval.lengths=[[16]]", "a list of plain values"]),
    ("optim.betas=[[1],2]", ["optim.betas", "a list of plain values"]),
    ("encoding=alibbi", ["encoding=alibbi", "did you mean alibi?", "transformer_xl"]),
    ("corpus=sotuu", ["corpus=sotuu", "did you mean sotu?"]),
    ("train.stpes=3", ["train.stpes", "did you mean train.steps?"]),
    ("trian.steps=3", ["trian.steps", "did you mean train.steps?"]),
    ("+train.stpes=3", ["stpes"]),
    ("train.steps=many", ["train.steps", "many"]),
    ("train.steps=0", ["train.steps=0", "at least 1"]),
    ("eval.lengths=12", ["eval.lengths"]),
    ("eval.lengths=[0]", ["eval.lengths"]),
    ("eval.lengths=[16,16]", ["eval.lengths", "twice"]),
    ("eval.targets=17", ["eval.targets=17", "eval.lengths, 16"]),
    ("eval.protocols=[fixed]", ["fixed", "fixed_targets, nonoverlapping"]),
    ("eval.lengths=[16,4000]", ["4000", "4001 tokens", "longest has"]),
    ("model.heads=3", ["model.heads=3", "model.width=16"]),
    ("model.width=6 encoding=rope", ["even head width", "model.width=6"]),
    ("model.dropout=1.5", ["model.dropout=1.5"]),
    ("model.attention=flash", ["model.attention=flash", "reference, blocked, fused"]),
    ("encoding=shaw encoding.k=-1", ["encoding", "k=-1"]),
    ("encoding=shaw encoding.kk=1", ["encoding.kk"]),
    ("encoding=shaw +encoding.kk=1", ["encoding.kk", "did you mean k?"]),
    ("encoding=deberta encoding.p2c_index=both", ["both", "paper or code"]),
    ("encoding._target_=os.system", ["os.system"]),
    ("encoding._target_=posbench.nowhere.X", ["posbench.nowhere.X"]),
    ("+encoding.optim.lr_multiplyer=2", ["lr_multiplyer", "lr_multiplier"]),
    ("optim.lr=-1", ["optim.lr=-1", "positive"]),
    ("optim.betas=[0.9]", ["optim.betas"]),
    ("optim.warmup=9", ["optim.warmup=9", "train.steps=4"]),
    ("runtime.device=tpu", ["runtime.device=tpu", "auto, cpu or cuda"]),
    ("runtime.dtype=float8", ["runtime.dtype=float8", "bfloat16"]),
    ("tracking.wandb=maybe", ["tracking.wandb=maybe", "offline"]),
    ("corpus.path=/nowhere", ["corpus.path=/nowhere", "no such file"]),
    ("train.length=4000", ["train.length=4000", "longest"]),
    ("train.batch=4000", ["train.batch=4000"]),
    ("run.name=../x", ["run.name", "../x"]),
    ("seed=-1", ["seed=-1"]),
    ("seed=one,two", ["seed"]),
    ("seed=99999999999999999999", ["seed"]),
    ("runtime.cuda_graphs=true", ["runtime.cuda_graphs=true", "train.compile=true"]),
    ("optim.lr=nan", ["optim.lr=nan"]),
    ("optim.weight_decay=-1", ["optim.weight_decay=-1"]),
    ("encoding=shaw encoding.k=abc", ["encoding.k=abc", "int"]),
    ("encoding=rope encoding.base=abc", ["encoding.base=abc", "float"]),
    ("encoding=rope encoding.base=-1", ["encoding.base=-1", "positive"]),
    ("encoding=learned encoding.max_length=8", ["8 positions", "train.length=16"]),
    ("tokenizer=bpe tokenizer.vocabulary=abc", ["tokenizer.vocabulary=abc", "int"]),
    ("encoding=fire encoding.c=abc", ["encoding.c=abc", "float"]),
    ("encoding=learned encoding.std=-1", ["std=-1"]),
    ("encoding=learned encoding.std=true", ["encoding.std=True", "float"]),
    ("encoding=transformer_xl encoding.std=-1", ["std=-1"]),
    (
        "encoding=randomized_rope encoding.positions=8",
        ["8 positions", "train.length=16"],
    ),
    ("encoding=randomized_learned encoding.positions=0", ["positions=0"]),
    ("encoding=alibi encoding.slopes=steep", ["slopes=steep", "paper, geometric or learned"]),
    ("encoding=irope encoding.pattern=rope", ["encoding.pattern=rope", "list"]),
    ("encoding=irope encoding.pattern=[]", ["encoding.pattern=[]"]),
    ("encoding=irope encoding.pattern=[1]", ["encoding.pattern=[1]"]),
    ("encoding=irope encoding.pattern=[rope,nop]", ["nop", "rope, nope"]),
    ("encoding=irope encoding.pattern=[rope]", ["nope", "model.layers=2"]),
    ("encoding=irope encoding.parts=[rope]", ["encoding.parts"]),
    ("encoding=irope encoding.parts=null", ["encoding.parts"]),
    ("encoding=irope +encoding.parts.x.base=1", ["encoding.parts", "_target_"]),
    ("encoding=irope encoding.parts.rope.bas=1", ["encoding.parts.rope.bas"]),
    ("encoding=irope encoding.parts.rope.base=-1", ["encoding.parts.rope", "base=-1"]),
    ("encoding=irope encoding.windows=[64]", ["encoding.windows"]),
    ("encoding=irope +encoding.windows.rope=0", ["encoding.windows.rope=0"]),
    ("encoding=irope +encoding.windows.rope=true", ["encoding.windows.rope=True"]),
    ("encoding=irope +encoding.windows.x=4", ["x", "encoding.parts"]),
    ("encoding=t5 encoding.optim=[1]", ["encoding.optim"]),
    ("model.attention=fused encoding=cope", ["model.attention=fused", "scores"]),
    ("model.attention=fused encoding=randomized_t5", ["model.attention=fused", "place"]),
    ("+corpus.kk=1", ["corpus.kk", "no such parameter", "path"]),
]


@pytest.mark.parametrize(("override", "expected"), a_few(MISTAKES, 24))
def test_a_mistake_gets_one_clear_line(
    tmp_path: Path, capfd: Output, override: str, expected: list[str]
) -> None:
    assert train(tmp_path, override) == 1
    said = one_line(capfd)
    for part in expected:
        assert part in said
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    a_few(
        [
            ("empty.txt", b"", "no text"),
            ("binary.txt", b"\xff\xfe\x00\x01", "not UTF-8"),
            ("broken.jsonl", b'{"text": "a"}\n{"text"\n', "broken.jsonl:2"),
            ("short.txt", b"only this", "tokens"),
        ],
        2,
    ),
)
def test_an_unusable_corpus_gets_one_clear_line(
    tmp_path: Path, capfd: Output, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert train(tmp_path, f"corpus.path={path}") == 1
    assert expected in one_line(capfd)
    assert not (tmp_path / "outputs").exists()


def test_an_outputs_folder_that_cannot_be_written_gets_one_clear_line(
    tmp_path: Path, capfd: Output
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert train(tmp_path, f"run.root={tmp_path}/file/outputs") == 1
    assert "file" in one_line(capfd)


def test_a_report_over_no_runs_gets_one_clear_line(tmp_path: Path, capfd: Output) -> None:
    assert cli.run(["report", f"runs=[{tmp_path}]"]) == 1
    assert "no run folder" in one_line(capfd)


def test_a_key_of_another_command_is_not_offered_for_itself(capfd: Output) -> None:
    assert cli.run(["report", "run=outputs"]) == 1
    assert "did you mean runs?" in one_line(capfd)


def test_a_key_that_an_encoding_lacks_does_not_offer_its_group(capfd: Output) -> None:
    assert cli.run(["train", "encoding=alibi", "encoding.slope=geometric"]) == 1
    said = one_line(capfd)
    assert "encoding.slope" in said
    assert "did you mean encoding?" not in said


def test_eval_of_no_run_gets_one_clear_line(tmp_path: Path, capfd: Output) -> None:
    assert cli.run(["eval", f"run={tmp_path}"]) == 1
    assert "not a run folder" in one_line(capfd)
    assert cli.run(["eval"]) == 1
    assert "run" in one_line(capfd)


def test_hydra_habits(tmp_path: Path, capfd: Output) -> None:
    assert cli.run(["train", *flat(arguments(tmp_path, "encoding=t5")), "--cfg", "job"]) == 0
    assert "max_distance: 128" in capfd.readouterr().out
    with pytest.raises(SystemExit) as done:
        cli.run(["train", "--help"])
    assert done.value.code in (0, None)
    assert "encoding: alibi" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    a_few(
        [
            ("posbench ", set(cli.COMMANDS)),
            ("posbench tr", {"train"}),
            ("posbench train encoding=sand", {"encoding=sandwich"}),
            ("posbench train train.st", {"train.steps="}),
            ("posbench nothing enc", set()),
        ],
        3,
    ),
)
def test_tab_completion(line: str, expected: set[str]) -> None:
    environment = os.environ | {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        [sys.executable, "-m", "posbench", "-sc", "query=bash"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert set(done.stdout.split()) == expected
