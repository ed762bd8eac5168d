"""Both READMEs say the same: numbers, commands, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.pages import Reader
from tests.helpers.places import ROOT

BOTH = ("README.md", "README.zh-CN.md")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_tables_numbers_are_the_same() -> None:
    rows = [re.findall(r"^\| (\w+ \| .*\d.*) \|$", text(name), re.MULTILINE) for name in BOTH]
    assert len(rows[0]) >= 9
    assert rows[0] == rows[1]


def test_every_day_has_the_same_commands() -> None:
    blocks = [re.findall(r"^```\n(posbench  .*?)^```", text(name), re.M | re.S) for name in BOTH]
    ((english,), (chinese,)) = blocks
    commands = [
        [re.split(r"\s{2,}", line)[0] for line in b.splitlines()] for b in (english, chinese)
    ]
    assert len(commands[0]) > 10
    assert commands[0] == commands[1]


@pytest.mark.parametrize("name", BOTH)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", text(name))
    local = [a or b for a, b in links if "//" not in (a or b)]
    assert len(local) > 4
    for link in local:
        assert (ROOT / link).exists(), link


SMALLER = {  # what would take long at toy size too
    "glob(*)": "glob([t5,fire])",
    "seed=1,2,3": "seed=1,2",
    "k=4,16,64": "k=4,16",
    "encoding=alibi,t5": "encoding=alibi",
    "[128,4096]": "[16,64]",
}
MORE = {
    "tune": ["tune.trials=2"],
    # each length and mode is a few processes that start Python and torch
    "speed": "speed.lengths=[16] speed.modes=[eval] speed.rounds=2 model.width=16".split(),
}


def commands(page: str) -> list[str]:
    """Its lines for posbench, in order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.S)
    lines = [line for kind, block in blocks if not kind for line in block.splitlines()]
    lines = [line.removeprefix("PYTHONPATH=. ") for line in lines]
    return [re.split(r"\s{2,}", line)[0] for line in lines if re.match(r"posbench\b", line)]


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of the README runs at toy size, in order, after what `make demo` does."""
    page = text("README.md")
    reader = Reader(tmp_path, monkeypatch, capfd)
    reader.run("export PYTHONPATH=.")
    for kind, name in (("python", "mine.py"), ("yaml", "my_conf/encoding/mine.yaml")):
        (content,) = re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)
        reader.write(name, content)
    lines = commands(page)
    assert len(lines) > 20
    for line in ["posbench train -m experiment=demo", *lines]:
        for long, short in SMALLER.items():
            line = line.replace(long, short)
        command = line.split()[1] if " " in line else ""
        theirs = ["--config-dir", "my_conf"] if "my_conf" not in line and "mine" in line else []
        code, said = reader.run(line, *MORE.get(command, []), *theirs)
        assert code == 0, f"{line}\n{said}"
