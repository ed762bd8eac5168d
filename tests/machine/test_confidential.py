"""No secret of the environment comes into a run folder, a log or onto the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.machine import confidential
from posbench.machine.files import write_text
from posbench.runs import run
from tests.helpers.marks import a_few
from tests.helpers.toy import train
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "MY_PASSWORD": "correct horse battery",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "GOOGLE_CREDENTIALS": '{"private_key": "a-b-c-d-e-f"}',
}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def leaks(root: Path) -> list[tuple[Path, str]]:
    """Every file below root that holds a secret."""
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert files
    return [
        (path, name)
        for path, content in files.items()
        for name, value in SECRETS.items()
        if value.encode() in content or repr(value)[1:-1].encode() in content
    ]


@pytest.mark.parametrize("mode", ["disabled", pytest.param("offline", marks=pytest.mark.slow)])
def test_a_finished_run_holds_none(tmp_path: Path, capfd: Output, mode: str) -> None:
    more = "hydra.output_subdir=.hydra hydra.run.dir=${run.root}/log hydra/job_logging=default"
    assert train(tmp_path, f"encoding=alibi tracking.wandb={mode} {more}") == 0
    assert (tmp_path / "outputs" / "log" / ".hydra" / "hydra.yaml").exists()
    assert not leaks(tmp_path / "outputs")
    shown = capfd.readouterr()
    assert not [name for name, value in SECRETS.items() if value in shown.out + shown.err]


def test_a_failed_run_holds_none(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error whose message has one, as a client of some service may raise it."""

    def fail(*_: Any) -> None:
        raise OSError(f"401 for {SECRETS['HF_TOKEN']}")

    monkeypatch.setattr(run, "fit", fail)
    assert train(tmp_path, "encoding=alibi") == 1
    folder = tmp_path / "outputs" / "default" / "alibi" / "seed1"
    assert "401 for <HF_TOKEN>" in (folder / "error.txt").read_text()
    assert "401 for <HF_TOKEN>" in (folder / "status.json").read_text()
    assert not leaks(tmp_path / "outputs")
    assert "401 for <HF_TOKEN>" in one_line(capfd)


@pytest.mark.parametrize(
    ("word", "expected"),
    a_few(
        [
            ("+tracking.api_key=abc", "tracking.api_key"),
            ("+api_key=abc", "api_key"),
            ("tracking.project=${oc.env:WANDB_API_KEY}", "tracking.project holds the secret in"),
            ("run.name=x-${oc.env:HF_TOKEN}", "run.name holds the secret in HF_TOKEN"),
            (
                "encoding=alibi encoding.slopes=${oc.env:AWS_SECRET_ACCESS_KEY}",
                "AWS_SECRET_ACCESS_KEY",
            ),
        ],
        2,
    ),
)
def test_one_on_the_command_line_is_refused(
    tmp_path: Path, capfd: Output, word: str, expected: str
) -> None:
    assert train(tmp_path, word) == 1
    said = one_line(capfd)
    assert expected in said
    assert not [name for name, value in SECRETS.items() if value in said]
    assert not (tmp_path / "outputs").exists()


def test_a_report_says_its_name_instead(tmp_path: Path) -> None:
    write_text(tmp_path / "x.txt", "".join(SECRETS.values()))
    assert (tmp_path / "x.txt").read_text() == "".join(f"<{name}>" for name in SECRETS)


def test_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short word, a path to a secret, a variable of another name: they may be written."""
    for name in SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MY_KEY", "outputs")
    monkeypatch.setenv("KEY_FILE_TOKEN", "/home/me/.key-file")
    monkeypatch.setenv("KEYBOARD_LAYOUT", "qwertyuiop")
    text = "outputs /home/me/.key-file qwertyuiop"
    assert confidential.redacted(text) == text
    assert confidential.secret_in(text) is None
    assert cli.run(["published", "name=press2022"]) == 0
