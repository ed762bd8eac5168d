"""Text that comes in: what is not plain is refused, and what takes no part is counted and told."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from posbench.corpus import tokenizer as tokenizers
from posbench.corpus.cache import prepare
from posbench.corpus.segments import left_out
from posbench.corpus.sources import SPLITS, Document, Files
from posbench.corpus.sources.base import copies, split
from posbench.corpus.sources.plain import plain
from posbench.corpus.tokenizer import BPE, Bytes
from posbench.errors import UserError
from tests.helpers.toy import WORDS, train, write_text

TEXT = "The people of the states.\n" * 40
CHINESE = "第一条 为了加强海上交通管理。\n" * 40


def refused(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        plain(data, "x.txt")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# what is not plain text


@pytest.mark.parametrize("text", [TEXT, CHINESE, "é" + TEXT, "Народы государств. " * 9])
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
def test_wide_encodings_are_told_by_name(text: str, encoding: str) -> None:
    said = refused(text.encode(encoding))
    assert f"looks like {encoding} without a mark; convert it (iconv -f {encoding} " in said
    marked = refused(("\ufeff" + text).encode(encoding))
    assert f"at byte 0: it has the mark of {encoding[:6]}; convert it (iconv -f" in marked


@pytest.mark.parametrize(
    ("data", "byte", "look"),
    [
        (b"caf\xe9 noir", 3, "Latin-1"),
        ("一".encode()[:2], 0, "ends within a character"),
        (TEXT.encode() + "é".encode()[:1], len(TEXT), "ends within a character"),
        (TEXT.encode() + b"\0", len(TEXT), "like binary data"),
        (b"two\0" + TEXT.encode(), 3, "like binary data"),
        (b"%PDF-1.4\n\xe2\0", 9, "looks like PDF; extract its text"),
        (b"ab\x01\x02" * 50, 2, "like binary data"),
        (random.Random(0).randbytes(5000), 0, "like binary data"),
        (gzip.compress(TEXT.encode(), mtime=0), 1, "looks like gzip; unpack it"),
        (b"BZh91AY&SY\x1b\xec", 11, "looks like bzip2; unpack it"),
        (lzma.compress(TEXT.encode()), 0, "looks like xz; unpack it"),
        (b"PK\x03\x04\x14\0", 5, "looks like zip"),
        (b"%PDF-1.4\nobj", 0, "looks like PDF; extract its text"),
        (b"\x89PNG\r\n\x1a\n\0", 0, "looks like a PNG image; leave it out"),
        (b"\xff\xd8\xff\xe0", 0, "JPEG"),
        (b"PAR1\x15\0", 5, "Parquet"),
    ],
)
def test_what_is_no_text_is_told_with_its_byte(data: bytes, byte: int, look: str) -> None:
    said = refused(data)
    assert look in said
    assert "leave it out by a glob" in said
    assert f"x.txt: not UTF-8 text, at byte {byte}: it " in said


@pytest.mark.parametrize(
    "text",
    ["", TEXT, CHINESE, "a\r\nb\rc\fd\ve\tf", "\x1b[31mred\x1b[0m", TEXT + "\x1a", "ﾠ\x85\u2028😀"],
)
def test_plain_text_stays_as_it_is_but_for_the_mark(text: str) -> None:
    assert plain(text.encode(), "x") == text
    assert plain(b"\xef\xbb\xbf" + text.encode(), "x") == text


def test_the_line_names_the_file_and_rows_their_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"text": TEXT}).encode("utf-16-le"))
    with pytest.raises(UserError, match=r"a\.jsonl: .* byte 1: .* UTF-16LE"):
        Files(str(tmp_path), "text", "mine").load()
    (tmp_path / "a.jsonl").write_text('{"text": "ok"}\n{"text": "a\\u0000"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: .* field 'text': .* byte 1; leave the row"):
        Files(str(tmp_path), "text", "mine").load()


def test_rows_may_end_as_on_any_system(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"row {n} " * 9}) for n in range(25)]
    found = set()
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "a.jsonl").write_bytes(end.join(rows).encode())
        loaded = Files(str(tmp_path / "a.jsonl"), "text", "mine").load()
        found.add(tuple(document for part in SPLITS for document in loaded[part]))
    assert len(found) == 1


# copies


def test_equal_texts_are_dealt_into_one_split() -> None:
    texts = [f"{WORDS[n % 20]} text\nnumber {n}" for n in range(60)]
    once = [Document(f"{n}.txt", text) for n, text in enumerate(texts)]
    again = [Document(f"~{n}.txt", f" {d.text} \r\n") for n, d in enumerate(once)]
    alone, both = split(once), split(once + again)
    for part in SPLITS:
        assert [d for d in both[part] if d in once] == alone[part]
        assert sum(d in again for d in both[part]) == len(alone[part])
    assert copies(alone) == {}
    assert copies(both) == {"copies of a document in the same split": 60}
    assert split((once + again)[::-1])["test"] == both["test"][::-1]


def test_few_different_texts_are_cut_however_often_they_are_there() -> None:
    documents = [Document(f"{n}", f"text {n % 15} " * 20) for n in range(60)]
    cut = split(documents)
    assert [len(cut[part]) for part in SPLITS] == [60, 60, 60]
    assert copies(cut)["copies of a document in the same split"] == 45


def test_splits_of_a_data_sets_own_are_searched_for_copies() -> None:
    parts = {part: [Document(f"{part}{n}", f"{part} {n}") for n in range(3)] for part in SPLITS}
    parts["test"].append(Document("x", "train 1\n"))
    parts["test"].append(Document("blank", " "))
    parts["train"].append(Document("blank", "\n"))
    assert copies(parts) == {"test documents that are training documents too": 1}


# what takes no part


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = write_text(tmp_path / "odd", documents=30, words=90)
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \r\n\u3000")
    (folder / "rows.jsonl").write_text('{"text": null}\n{"text": ""}\n\n{"text": "a"}\n')
    (folder / ".hidden.txt").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden too")
    (folder / "dead.txt").symlink_to("/nowhere")
    (folder / "round").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    return folder


def test_what_a_folder_has_besides_documents_is_counted(odd: Path, tmp_path: Path) -> None:
    expected = {
        "hidden files and folders left out": 2,
        "links to folders not followed": 1,
        "dead links, pipes and the like left out": 2,
        "documents without text left out": 4,
    }
    source = Files(str(odd), "text", "mine")
    for _ in range(2):  # made, then from the cache
        assert prepare(source, Bytes(), tmp_path / "cache").remarks == expected
    (odd / ".more").write_text("")
    found = prepare(Files(str(odd), "text", "mine"), Bytes(), tmp_path / "cache").remarks
    assert found["hidden files and folders left out"] == 3


def test_folders_that_a_glob_names_are_counted(odd: Path, tmp_path: Path) -> None:
    (odd / "below").mkdir()
    for pattern, count in (("*", 2), ("**/*", None)):
        source = Files(str(odd / pattern), "text", "mine")
        found = prepare(source, Bytes(), tmp_path / "cache").remarks
        assert found.get("folders that a glob names left out") == count


def test_it_is_told_where_the_run_begins_in_provenance_and_in_the_table(
    odd: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (odd / "copy.txt").write_text((odd / "0.txt").read_text())
    for number in range(20):
        (odd / f"short{number}.txt").write_text(f"short {number}")
    assert train(tmp_path, f"corpus=files corpus.path={odd} run.experiment=odd") == 0
    lines = " ".join(capfd.readouterr().out.split())
    provenance = json.loads((tmp_path / "outputs/odd/rope/seed1/provenance.json").read_text())
    remarks = provenance["corpus_remarks"]
    assert remarks["documents without text left out"] == 4
    assert remarks["copies of a document in the same split"] == 1
    assert remarks["training documents under 17 tokens left out"] > 9
    assert remarks["test documents under 33 tokens not scored"] > 0
    for kind, count in remarks.items():
        assert lines.count(f"{kind}: {count}") == 2  # where it begins, and below the table


def test_nothing_is_told_where_all_takes_part(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path) == 0
    assert "corpus files:" not in capfd.readouterr().out


def test_documents_and_tails_that_fill_no_segment() -> None:
    def counted(*sizes: int) -> dict[str, int]:
        return {k: n for k, n in left_out([np.zeros(s) for s in sizes], 10).items() if n}

    assert counted(11, 21, 1001) == {}
    assert counted(10, 11, 1) == {"training documents under 11 tokens left out": 2}
    assert counted(20, 21) == {"tokens in tails of training documents left out (of 41)": 9}
    assert counted(20, 2001) == {}  # less than a hundredth


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_text(tmp_path / "text")
    source = Files(str(folder), "text", "mine")
    load = source.load

    def late() -> dict[str, list[Document]]:
        (folder / "0.txt").write_text("another text " * 200)
        return load()

    monkeypatch.setattr(source, "load", late)
    with pytest.raises(UserError, match="corpus mine: it changed while it was read"):
        prepare(source, Bytes(), tmp_path / "cache")
    assert not [*(tmp_path / "cache" / "corpora").glob("*/meta.json")]


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "text" / "shut")

    def scandir(path: str) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"text: cannot be read \(Permission denied\)"):
        Files(str(tmp_path / "text"), "text", "mine").identity()


# long runs


def run_of(kind: str, size: int) -> str:
    generator = random.Random(0)
    alphabet = {"spaces": " ", "emoji": "😀😁😂", "thai": "กขคงจ", "letters": "ACGT"}[kind]
    return "".join(generator.choice(alphabet) for _ in range(size))


@pytest.mark.parametrize("kind", ["spaces", "emoji", "thai", "letters"])
def test_no_word_is_longer_than_merges_can_bear(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and after it: what a merge costs grows with the length of the word."""
    text = "a " + run_of(kind, 5_000) + " b"
    words = tokenizers._splitter(tokenizers._has_long_run(text)).pre_tokenize_str(text)
    assert max(len(word) for word, _ in words) <= tokenizers.WORD
    asked: list[bool] = []
    made = tokenizers._splitter

    def splitter(cutting: bool) -> object:
        asked.append(cutting)
        return made(cutting)

    monkeypatch.setattr(tokenizers, "_splitter", splitter)
    bpe = BPE(270).train([text])
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.encode_batch(["a b", text]) == [bpe.encode("a b"), bpe.encode(text)]
    assert asked == [True, True, False]  # training, text, "a b"


def test_words_that_are_short_enough_stay_whole() -> None:
    texts = [TEXT, CHINESE, "ab1!" * 2000, " ".join(["x" * 1500, " " * 300, "é" * 700])]
    for text in texts:
        plain_words = tokenizers._splitter(False).pre_tokenize_str(text)
        assert tokenizers._splitter(True).pre_tokenize_str(text) == plain_words


def test_a_long_line_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without line breaks too; where there are spaces the tokens stay."""
    texts = [TEXT.replace("\n", " "), "a\u00a0b\u3000c\t" * 200, run_of("letters", 1000)]
    bpe = BPE(320).train(texts)
    whole = bpe.encode_batch(texts)
    monkeypatch.setattr(tokenizers, "LONG", 50)
    for text in texts:
        pieces = list(tokenizers._cut(text))
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= 100
    assert bpe.encode_batch(texts)[:2] == whole[:2]
    assert BPE(320).train(texts[:2]).hash == BPE(320).train(iter(texts[:2])).hash


def test_ctrl_c_ends_the_training_of_a_tokenizer() -> None:
    """Its library looks for no signals, so it must not be at work in the thread that does."""
    release, ended, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def work() -> None:
        threads.append(threading.current_thread())
        release.wait(60)
        ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tokenizers._interruptible(work)
    signal.signal(signal.SIGINT, before)
    assert threads != [threading.current_thread()]
    assert not ended.is_set()  # the interrupt did not wait for it
    release.set()
    assert ended.wait(60)


def test_what_goes_wrong_in_the_training_of_a_tokenizer_is_raised() -> None:
    def work() -> None:
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        tokenizers._interruptible(work)


def test_what_takes_long_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    source = Files(str(write_text(tmp_path / "text")), "text", "mine")
    for _ in range(2):
        prepare(source, BPE(270), tmp_path / "cache", told.append)
    assert len(told) == 2  # nothing is made twice
    assert told[0].startswith("the tokenizer is trained on ")
    assert told[1].endswith(" characters become tokens")
