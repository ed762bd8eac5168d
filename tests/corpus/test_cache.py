"""The cache is whole or remade, and the stream is a pure function of the step."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posbench.corpus.cache as module
from posbench.corpus.cache import Corpus, prepare
from posbench.corpus.segments import Segments
from posbench.corpus.sources import SPLITS, Document, Sotu
from posbench.corpus.tokenizer import BPE, Bytes
from posbench.errors import UserError
from tests.helpers.places import ROOT


class Texts:
    """A source in memory that counts how often it is read."""

    name = "texts"
    words = False

    def __init__(self, **texts: list[str]) -> None:
        self.texts = {
            "train": ["aa ab aa é " * 30, "b"],
            "validation": ["zq " * 50],
            "test": ["c"],
        }
        self.texts |= texts
        self.loads = 0

    def identity(self) -> dict[str, Any]:
        return {"kind": "texts", "texts": self.texts}

    def load(self) -> dict[str, list[Document]]:
        self.loads += 1
        return {s: [Document(f"{s}{n}", t) for n, t in enumerate(self.texts[s])] for s in SPLITS}


def decoded(corpus: Corpus) -> dict[str, list[str]]:
    return {s: [corpus.tokenizer.decode(d) for d in corpus.documents(s)] for s in SPLITS}


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "corpora").iterdir() if path.suffix != ".lock"]


# what is prepared


@pytest.mark.parametrize("tokenizer", [Bytes(), BPE(270)], ids=["bytes", "bpe"])
def test_documents_come_back_behind_bos(tokenizer: Any, tmp_path: Path) -> None:
    source = Texts()
    corpus = prepare(source, tokenizer, tmp_path)
    assert decoded(corpus) == source.texts
    for split in SPLITS:
        documents = corpus.documents(split)
        for document in documents:
            assert document.dtype == np.uint16
            assert document[0] == corpus.tokenizer.bos
            assert not (document[1:] == corpus.tokenizer.bos).any()
        assert len(corpus.tokens[split]) == sum(map(len, documents))
        scored = corpus.byte_lengths[np.concatenate(documents)].sum()
        assert scored == len("".join(source.texts[split]).encode())
    assert corpus.names["train"] == ["train0", "train1"]
    assert corpus.vocabulary == corpus.tokenizer.vocabulary


def test_bpe_sees_the_training_split_only(tmp_path: Path) -> None:
    one = prepare(Texts(), BPE(280), tmp_path)
    other = prepare(Texts(validation=["qz!" * 500], test=["zqzq" * 500]), BPE(280), tmp_path)
    assert one.tokenizer.hash == other.tokenizer.hash
    assert one.hash != other.hash
    assert b"zq" not in one.tokenizer.pieces()
    changed = prepare(Texts(train=["zq " * 500]), BPE(280), tmp_path)
    assert b"zq" in changed.tokenizer.pieces()


def test_large_vocabulary_is_stored_in_32_bits(tmp_path: Path) -> None:
    class Wide(Bytes):
        vocabulary = 2**16 + 1

    corpus = prepare(Texts(), Wide(), tmp_path)
    assert corpus.documents("test")[0].tolist() == [2**16, ord("c")]


def test_empty_split_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text in its test split"):
        prepare(Texts(test=[]), Bytes(), tmp_path)
    assert entries(tmp_path) == []


# the cache


def test_second_time_reads_nothing(tmp_path: Path) -> None:
    source = Texts()
    first, second = (prepare(source, BPE(270), tmp_path) for _ in range(2))
    assert source.loads == 1
    assert (first.hash, decoded(first)) == (second.hash, decoded(second))
    assert first.tokenizer.hash == second.tokenizer.hash


def test_any_change_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = [Bytes(), BPE(270), BPE(271), BPE(270).train(["xy"]), BPE(270).train(["yx"])]
    sources = [Texts(), Texts(test=["d"]), Texts(train=["b" * 400])]
    for source, tokenizer in itertools.product(sources, tokenizers):
        prepare(source, tokenizer, tmp_path)
    assert len(entries(tmp_path)) == 15
    monkeypatch.setattr(module, "FORMAT", -1)
    prepare(sources[0], Bytes(), tmp_path)
    assert len(entries(tmp_path)) == 16


def test_a_trained_tokenizer_is_kept(tmp_path: Path) -> None:
    trained = BPE(270).train(["xyxyxy"])
    assert prepare(Texts(), trained, tmp_path).tokenizer.hash == trained.hash


@pytest.mark.parametrize(
    "file", ["meta.json", "documents.json", "tokenizer.json", "train.bin", "test.bin"]
)
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_damage_is_noticed_and_mended(tmp_path: Path, file: str, damage: str) -> None:
    source = Texts()
    before = prepare(source, BPE(270), tmp_path)
    expected = before.hash, decoded(before)
    path = entries(tmp_path)[0] / file
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "gone":
        path.unlink()
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"cut": data[:middle], "empty": b"", "flip": flipped}[damage])
    after = prepare(source, BPE(270), tmp_path)
    assert (after.hash, decoded(after)) == expected
    assert source.loads == 2
    assert path.read_bytes() == data


def test_killed_or_failed_process_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Texts()
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(source, Bytes(), tmp_path)
    assert entries(tmp_path) == []
    left = Path(str(next((tmp_path / "corpora").glob("*.lock"))).replace(".lock", ".part"))
    left.mkdir()
    (left / "train.bin").write_bytes(b"half")
    assert decoded(prepare(source, Bytes(), tmp_path)) == source.texts
    assert not left.exists()


def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", full)
    with pytest.raises(UserError, match=r"No space left on device.*POSBENCH_CACHE"):
        prepare(Texts(), Bytes(), tmp_path)
    assert entries(tmp_path) == []


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="POSBENCH_CACHE") as caught:
        prepare(Texts(), Bytes())
    assert "\n" not in str(caught.value)


def test_environment_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "here"))
    prepare(Texts(), Bytes())
    assert len(entries(tmp_path / "here")) == 1


RACER = """
import sys, time
from pathlib import Path
from posbench.corpus.cache import prepare
from posbench.corpus.tokenizer import BPE
from tests.corpus.test_cache import Texts
from tests.helpers.places import ROOT

class Slow(Texts):
    def load(self):
        with open(sys.argv[1] + "/loads", "a") as file:
            file.write("x")
        time.sleep(0.5)
        return super().load()

Path(sys.argv[1], sys.argv[2]).touch()
while not all(Path(sys.argv[1], name).exists() for name in "ab"):
    time.sleep(0.005)
corpus = prepare(Slow(), BPE(270), Path(sys.argv[1]))
print(corpus.hash, len(corpus.tokens["train"]))
"""


def test_two_processes_at_once_make_one_entry(tmp_path: Path) -> None:
    root = ROOT
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), name], cwd=root, stdout=subprocess.PIPE
        )
        for name in "ab"
    ]
    outputs = [racer.communicate(timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert outputs[0] == outputs[1] != b""
    assert (tmp_path / "loads").read_text() == "x"
    assert len(entries(tmp_path)) == 1
    meta = json.loads((entries(tmp_path)[0] / "meta.json").read_text())
    assert set(meta["files"]) == {p.name for p in entries(tmp_path)[0].iterdir()} - {"meta.json"}


# sotu


@pytest.fixture(scope="session")
def sotu(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare(Sotu(), BPE(1024), tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_sotu_under_bpe(sotu: Corpus) -> None:
    assert [len(sotu.documents(split)) for split in SPLITS] == [190, 23, 24]
    scored = {s: int(sotu.byte_lengths[np.asarray(sotu.tokens[s])].sum()) for s in SPLITS}
    assert scored == {"train": 9686331, "validation": 933725, "test": 1327243}
    assert sotu.vocabulary == 1024
    assert len(sotu.tokens["train"]) < 9686331 / 2.5
    tokens = sotu.documents("test")[5]
    assert sotu.tokenizer.decode(tokens) == Sotu().load()["test"][5].text


def tagged(*sizes: int) -> list[Any]:
    """Documents whose tokens say where they are: document * 1000 + position."""
    return [np.arange(size, dtype=np.uint16) + 1000 * n for n, size in enumerate(sizes)]


SIZES = (41, 3, 11, 100, 10, 25, 11, 77)  # of 10 tokens: 4, 0, 1, 9, 0, 2, 1, 7 segments
EPOCH = 24 // 3


def stream(seed: int = 0, sizes: tuple[int, ...] = SIZES, batch: int = 3) -> Segments:
    return Segments(tagged(*sizes), length=10, batch=batch, seed=seed)


def test_windows_are_consecutive_tokens_of_one_document() -> None:
    segments = stream()
    for step in range(100):
        batch = segments.batch(step)
        assert batch.inputs.shape == batch.targets.shape == (3, 10)
        assert batch.inputs.dtype == batch.targets.dtype == np.int64
        assert batch.fresh.dtype == np.bool_
        np.testing.assert_array_equal(batch.targets, batch.inputs + 1)
        np.testing.assert_array_equal(np.diff(batch.inputs, axis=1), 1)
        assert (batch.inputs // 1000 == batch.targets[:, -1:] // 1000).all()
        for token in batch.targets[:, -1]:
            assert token % 1000 < SIZES[token // 1000]


def test_first_epoch_has_each_segment_once() -> None:
    segments = stream()
    firsts = Counter(int(f) for k in range(EPOCH) for f in segments.batch(k).inputs[:, 0])
    expected = [1000 * n + 10 * k for n, size in enumerate(SIZES) for k in range((size - 1) // 10)]
    assert firsts == Counter(expected)


def test_later_epochs_shift_and_repeat_nothing() -> None:
    segments = stream()
    steps = iter(range(10_000))
    offsets = set()
    for _ in range(30):
        first = next(steps)
        seen = [segments.batch(first)]
        while not (following := segments.batch(first + len(seen))).fresh.all():
            seen.append(following)
        for _ in seen[1:]:
            next(steps)
        tokens = np.concatenate([batch.inputs.ravel() for batch in seen])
        assert len(set(tokens.tolist())) == len(tokens)
        offsets |= {int(t) % 10 for t in tokens[::10]}
    assert offsets == set(range(10))


def test_fresh_where_a_segment_does_not_continue_its_lane() -> None:
    segments = stream()
    previous = None
    for step in range(200):
        batch = segments.batch(step)
        if previous is None:
            assert batch.fresh.all()
        else:
            continues = previous.targets[:, -1] == batch.inputs[:, 0]
            first = segments._locate(step)[1] == 0
            np.testing.assert_array_equal(batch.fresh, ~continues | first)
        previous = batch
    assert [k for k in range(2 * EPOCH) if segments._locate(k)[1] == 0][:2] == [0, EPOCH]


def test_lanes_read_their_own_stretch_of_the_epoch() -> None:
    one = stream(batch=1)
    order = [int(one.batch(k).inputs[0, 0]) for k in range(24)]
    three = stream(batch=3)
    for k in range(EPOCH):
        assert three.batch(k).inputs[:, 0].tolist() == [order[b * EPOCH + k] for b in range(3)]


def test_a_step_needs_no_history() -> None:
    forward = stream()
    batches = [forward.batch(step) for step in range(60)]
    for step in (59, 0, 31, 30, 8):
        for again in (forward.batch(step), stream().batch(step)):
            np.testing.assert_array_equal(again.inputs, batches[step].inputs)
            np.testing.assert_array_equal(again.fresh, batches[step].fresh)


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def order(segments: Segments, epoch: int) -> list[int]:
        return segments._epoch(epoch).documents.tolist()

    np.random.seed(1)
    first = order(stream(), 0)
    np.random.seed(2)
    assert order(stream(), 0) == first
    assert order(stream(), 1) != first
    assert order(stream(seed=1), 0) != first


def test_more_lanes_than_a_shifted_epoch_has_segments() -> None:
    segments = stream(sizes=(41,), batch=4)  # any offset would leave three
    for step in range(20):
        assert segments.batch(step).inputs[:, 0].tolist() == [0, 10, 20, 30]


def test_document_of_just_one_segment() -> None:
    segments = stream(sizes=(11,), batch=1)
    assert all(segments.batch(k).inputs[0].tolist() == list(range(10)) for k in range(20))


def test_too_little_text() -> None:
    with pytest.raises(UserError, match=r"train\.length=10 needs .* 11 tokens; .* of 2 has 10"):
        stream(sizes=(10, 3))
    with pytest.raises(UserError, match=r"train\.batch=9 .*train\.length=10 .* have 8"):
        stream(sizes=(41, 41), batch=9)
    with pytest.raises(UserError, match=r"the longest of 0 has 0"):
        stream(sizes=())


def test_cache_folders_are_readable_by_others(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        prepare(Texts(), Bytes(), tmp_path)
    finally:
        os.umask(mask)
    assert entries(tmp_path)[0].stat().st_mode & 0o777 == 0o755
