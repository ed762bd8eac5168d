"""Names of any kind: in run folders, so in all that a report writes; of and in corpus files."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.corpus.sources import Files
from posbench.errors import UserError
from posbench.hydra_app.error_lines import print_error
from posbench.machine.files import write_json
from posbench.runs.run_folder import RunFolder
from tests.helpers.folders import write_run
from tests.helpers.marks import a_few
from tests.helpers.toy import train, write_text
from tests.test_cli import one_line

Output = pytest.CaptureFixture[str]

NAMES = {
    "tag": "<script>alert(1)</script>",
    "attribute": "\" onload='alert(1)' x=\"",
    "comment": "--><script>alert(1)</script><!--",
    "template": "{{ 7*7 }}{% for x in y %}",
    "formula": "=cmd|' /C calc'!A0",
    "command": "@SUM(1+1)*cmd",
    "markup": "[red]red[/red][/nothing][link=http://x.invalid]",
    "escape": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "backwards": "a\u202eb\u2066c",
    "link": "![x](http://x.invalid/x.png)[y](javascript:alert(1))",
    "table": "a|b\\|c\nd\re",
    "tex": "\\input{/etc/passwd}$\\write18{ls}$%",
    "surrogate": "half \ud83d of a pair",
    "nul": "a\0b\ufffe",
    "long": "x" * 120,
}
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe]")


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def hostile(root: Path, name: str) -> None:
    """Two runs in which every text is this one."""
    changes: dict[str, Any] = {
        **dict.fromkeys(["run.experiment", "run.name", "corpus.name"], name),
        **dict.fromkeys(["corpus._target_", "encoding._target_", "tokenizer._target_"], name),
        "model.attention": name,
    }
    said = dict.fromkeys(["commit", "device", "dtype", "corpus_hash"], name)
    tuning = {"trials": 2, "budget": {name: name}, "chosen": {name: name}, "untuned": {name: name}}
    for seed, state in ((1, "done"), (2, "failed")):
        made = write_run(root, f"n{seed}", seed, lambda length: 3.5 + length / 1e4)
        config = json.loads(json.dumps(RunFolder(made).config()))
        for key, value in changes.items():
            group, last = key.split(".")
            config[group][last] = value
        config["encoding"][name] = name
        (made / "config.yaml").write_text(json.dumps(config))
        write_json(made / "status.json", {"state": state, "reason": name})
        write_json(made / "provenance.json", {**said, "tuning": tuning})
        summary = json.loads((made / "summary.json").read_text())
        write_json(made / "summary.json", summary | {"corpus": name, "tokenizer": name})
        rows = [json.loads(line) for line in (made / "results.jsonl").read_text().splitlines()]
        odd = [{**row, "extension": name} for row in rows]
        odd += [{"protocol": name, "length": 128, "reason": name, "targets": name}]
        text = "".join(json.dumps(row) + "\n" for row in [*rows, *odd])
        (made / "results.jsonl").write_text(text)


def test_no_output_of_a_report_obeys_a_name(tmp_path: Path, capfd: Output) -> None:
    for kind, name in NAMES.items():
        hostile(tmp_path / "runs" / kind, name)
    formats = "report.formats=[terminal,markdown,csv,latex,html]"
    words = [f"runs=[{tmp_path}/runs]", f"folder={tmp_path}", "report.draws=100", formats]
    assert cli.run(["report", *words]) == 0
    shown = capfd.readouterr()
    texts = {path.suffix: path.read_text() for path in tmp_path.glob("report.*")}
    assert texts.keys() == {".md", ".csv", ".tex", ".html"}
    for text in [shown.out, shown.err, *texts.values()]:
        assert not OBEYED.search(text)
    assert "[red]" in shown.out
    _check_html(texts[".html"])
    _check_csv(texts[".csv"])
    _check_markdown(texts[".md"])
    tex = [line for line in texts[".tex"].splitlines() if line[:1] != "%"]
    assert not re.search(r"\\(input|write)", "".join(tex))


@pytest.mark.parametrize("kind", ["tag", "comment", "escape", "surrogate"])
def test_no_figure_obeys_a_name(tmp_path: Path, kind: str) -> None:
    hostile(tmp_path / "runs", NAMES[kind])
    words = [f"runs=[{tmp_path}/runs]", f"folder={tmp_path}", "report.draws=100"]
    assert cli.run(["report", *words, "report.formats=[]", "report.figures=[svg]"]) == 0
    figures = list((tmp_path / "figures").glob("*.svg"))
    assert figures
    for figure in figures:
        drawn = [each.tag.rpartition("}")[2] for each in ElementTree.parse(figure).iter()]
        assert "script" not in drawn


def _check_html(page: str) -> None:
    tags = Tags(page).found
    assert [tag for tag, _ in tags].count("script") == 1
    assert not {"img", "iframe", "object", "link", "embed"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        assert not [key for key in attributes if key.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")


def _check_csv(text: str) -> None:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            if cell[:1] in ("=", "+", "-", "@"):
                float(cell)


def _check_markdown(text: str) -> None:
    assert not re.search(r"<(?!/?b>)", text)
    assert not re.search(r"(?<!\\)\]\(", text)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [len(re.findall(r"(?:[^\\|]|\\.)+(?=\|)", line)) for line in block.splitlines()]
        assert len(set(cells)) == 1, block


FILES = [
    *["-rf.txt", "--help.txt", "a\nb.txt", "a\rb.txt", "\x1b[31m.txt", "[red].txt", " .txt"],
    *["é.txt", "国.txt", "\u202e.txt", "$(id).txt", "`id`.txt", "%s.txt", "x" * 200 + ".txt"],
    *["*.txt", "?.txt", "[a].txt", "a..txt", "'.txt", '".txt', "\\.txt", "a,b=c.txt", "~"],
    *["\udcff\udcfe.txt", "CON", "${oc.env:HOME}", "con.jsonl.txt", "a" + ".txt" * 40],
]


def test_corpus_files_of_any_name(tmp_path: Path) -> None:
    text = (write_text(tmp_path / "text") / "0.txt").read_text()
    for name in FILES:
        (tmp_path / "text" / name).write_text(f"{text} {len(name)}")
    assert train(tmp_path, "encoding=alibi train.steps=1 eval.lengths=[16]") == 0
    assert len(Files(str(tmp_path / "text"), "text", "mine")._files()) == 3 + len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_an_error_tells_any_name_in_one_line(tmp_path: Path, capfd: Output, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(UserError) as caught:
        Files(str(tmp_path), "text", "mine").load()
    print_error(str(caught.value))
    said = one_line(capfd)
    assert "not UTF-8" in said
    assert not OBEYED.search(said)


def test_a_corpus_file_outside_by_a_link(tmp_path: Path) -> None:
    """What a link in a folder of text points to is text like any other; a dead one is none."""
    write_text(tmp_path / "text")
    (tmp_path / "text" / "linked.txt").symlink_to(write_text(tmp_path / "other") / "0.txt")
    (tmp_path / "text" / "dead.txt").symlink_to("/nowhere")
    (tmp_path / "text" / "round").symlink_to(tmp_path / "text")
    os.mkfifo(tmp_path / "text" / "pipe.txt")
    assert train(tmp_path, "encoding=alibi train.steps=1 eval.lengths=[16]") == 0


ROW = json.dumps({"text": "we the people of these states " * 40})


@pytest.mark.parametrize(
    ("line", "expected"),
    a_few(
        [
            ("[" * 200_000, "not JSON"),
            ('{"text":' * 50_000, "not JSON"),
            (f'{{"text": {"9" * 10_000}}}', "not JSON"),
            ('{"text": NaN}', "no text in field 'text'"),
            ('{"text": 1e999}', "no text in field 'text'"),
            ('{"text": "a", "text": [null]}', "no text in field 'text'"),
            ('{"text": "\\ud800"}', "half of a surrogate pair"),
            (ROW[:50], "not JSON"),
            ('{"text": "a\\u0000b"}', "no plain text in field 'text'"),
            (json.dumps(dict.fromkeys(map(str, range(50_000)))), "no text in field"),
            (f'{{"{"k" * 10**6}": 1}}', "no text in field"),
            ('{"\\u001b[31m": 1}', "no text in field"),
        ],
        3,
    ),
    ids=range(12),
)
def test_rows_that_are_no_text_get_one_line(
    tmp_path: Path, capfd: Output, line: str, expected: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{ROW}\n{line}\n")
    assert train(tmp_path, f"corpus=files corpus.path={tmp_path}/rows.jsonl") == 1
    said = one_line(capfd)
    assert f"rows.jsonl:2: {expected}" in said
    assert len(said) < 2100
    assert not OBEYED.search(said)


@pytest.mark.parametrize("content", ["\n" * 200_000, '{"text": "   "}\n' * 100])
def test_rows_without_text_get_one_line(tmp_path: Path, capfd: Output, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    assert train(tmp_path, f"corpus=files corpus.path={tmp_path}/rows.jsonl") == 1
    assert "no text in it" in one_line(capfd)


@pytest.mark.parametrize(
    "row",
    [
        ROW.replace("we", "we\\u0008\\u001b[31m"),
        ROW.replace("people", "\\ud83d\\ude00\\u202e"),
        ROW.replace('{"text"', '{"x": 1e999, "y": -0.0, "z": [[[]]], "text": 1, "text"'),
        f"  {ROW}\r",
    ],
    ids=range(4),
)
def test_rows_of_odd_text_are_trained_on(tmp_path: Path, row: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{row}\n" * 30)
    words = f"corpus=files corpus.path={tmp_path}/rows.jsonl train.steps=1 eval.lengths=[16]"
    assert train(tmp_path, words) == 0


def test_more_text_than_memory_is_refused_before_it_is_read(tmp_path: Path, capfd: Output) -> None:
    """A file with holes: it claims 2^43 bytes and takes none."""
    for name in ("holes.txt", "holes.jsonl"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**43)
        assert train(tmp_path, f"corpus=files corpus.path={tmp_path}/{name}") == 1
        said = one_line(capfd)
        assert "corpus.path" in said
        assert "of memory" in said
