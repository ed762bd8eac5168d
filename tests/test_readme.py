"""Both READMEs say the same: numbers, commands, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
