"""The tokenized corpus on disk.

A cache entry is a folder named after what determines it: the tokens of each split, document
after document, each BOS first; an index of the documents; the tokenizer; and a meta.json with
the sha256 of all of these and remarks about the source. V is the size of the vocabulary.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from filelock import FileLock
from numpy.typing import NDArray

from posbench.corpus.sources import SPLITS, Document, Source
from posbench.corpus.sources.base import copies
from posbench.corpus.tokenizer import Tokenizer
from posbench.errors import UserError
from posbench.machine import paths
from posbench.machine.files import sync

FORMAT = 2  # of a cache entry; part of its key
CHUNK = 4_000_000  # characters tokenized at a time

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class Corpus:
    """The tokenized documents of one source under one tokenizer."""

    name: str
    hash: str  # of tokens, document names and tokenizer; not of where they lie
    tokenizer: Tokenizer
    tokens: dict[str, Tokens]  # split -> all documents, end to end
    names: dict[str, list[str]]  # split -> names of the documents
    ends: dict[str, NDArray[np.int64]]  # split -> end of each document in `tokens`
    has_words: bool = False  # whether spaces part words, so that a perplexity of words makes sense
    remarks: dict[str, int] = field(default_factory=dict)  # what was left out or is there twice

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.vocabulary

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        """Bytes of text each token stands for [V]; 0 for BOS."""
        return self.tokenizer.byte_lengths()

    def documents(self, split: str) -> list[Tokens]:
        """The tokens of each document, BOS first: read-only views of the file on disk."""
        starts = [0, *self.ends[split][:-1]]
        return [self.tokens[split][a:b] for a, b in zip(starts, self.ends[split], strict=True)]

    def words(self, split: str) -> list[NDArray[np.int64]] | None:
        """How many words begin in each token of each document; None where there are no words.

        A word is what `str.split` makes one: a run without white space of Unicode.
        """
        if not self.has_words:
            return None
        return [self.tokenizer.words(document) for document in self.documents(split)]


def cache_root() -> Path:
    """POSBENCH_CACHE, or the user's cache folder. Raises UserError where there is neither."""
    if chosen := os.environ.get("POSBENCH_CACHE"):
        return Path(paths.expanded("POSBENCH_CACHE", chosen))
    found = Path()
    with contextlib.suppress(RuntimeError):  # newer versions'; older ones name a folder called ~
        found = platformdirs.user_cache_path("posbench")
    if not found.is_absolute():
        raise UserError(
            "this user has no home folder for a cache: set POSBENCH_CACHE to a folder that can be "
            "written"
        )
    return found


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    cache: Path | None = None,
    say: Callable[[str], None] = lambda what: None,
    mask: bool = False,
) -> Corpus:
    """The corpus of a source, from the cache or made and kept there.

    A tokenizer that is not trained is trained on the training split; Corpus.tokenizer is it.
    `say` is told what takes long. mask: with MASK in the vocabulary. Raises UserError for a source
    without text or that changes meanwhile, and a cache that cannot be written.
    """
    root = cache or cache_root()
    entry = root / "corpora" / _key(source, tokenizer, mask)
    found = _open(entry, source, type(tokenizer))  # without the lock: it may be read-only
    if found is not None:
        return found
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            found = _open(entry, source, type(tokenizer))  # another process was first
            if found is None:
                _make(entry, source, tokenizer, say, mask)
                found = _open(entry, source, type(tokenizer))
    except OSError as error:
        raise UserError(
            f"cache {error.filename or root}: {error.strerror or error}; "
            f"set POSBENCH_CACHE to a folder that can be written"
        ) from error
    assert found is not None, f"{entry} was written and cannot be read"
    return found


def _key(source: Source, tokenizer: Tokenizer, mask: bool) -> str:
    special = ["mask"] if mask else []
    return _digest([source.identity(), tokenizer.definition(), FORMAT, *special])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _make(
    entry: Path, source: Source, tokenizer: Tokenizer, say: Callable[[str], None], mask: bool
) -> None:
    """Write an entry under another name, then rename it. The caller holds the lock."""
    part = entry.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir()
    try:
        _write(part, source, tokenizer, say, mask)
        if _key(source, tokenizer, mask) != entry.name:
            raise UserError(f"corpus {source.name}: it changed while it was read; start again")
        shutil.rmtree(entry, ignore_errors=True)
        os.rename(part, entry)
        sync(entry.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(
    folder: Path, source: Source, tokenizer: Tokenizer, say: Callable[[str], None], mask: bool
) -> None:
    documents = source.load()
    left_out = dict(getattr(source, "left_out", {}))
    remarks = {kind: n for kind, n in (left_out | copies(documents)).items() if n}
    for split in SPLITS:
        if not documents[split]:
            raise UserError(f"corpus {source.name}: there is no text in its {split} split")
    size = {split: sum(len(document.text) for document in documents[split]) for split in SPLITS}
    if not tokenizer.trained:
        say(f"the tokenizer is trained on {size['train']:,} characters")
        tokenizer = tokenizer.train(document.text for document in documents["train"])
    if mask:
        tokenizer = tokenizer.with_mask()
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary <= 2**16 else np.uint32)
    say(f"{sum(size.values()):,} characters become tokens")
    tokenizer.save(folder / "tokenizer.json")
    index = {
        split: _write_split(folder, split, documents[split], tokenizer, dtype) for split in SPLITS
    }
    (folder / "documents.json").write_text(json.dumps(index), encoding="utf-8")
    files = {path.name: _file_digest(path) for path in sorted(folder.iterdir())}
    meta = {"format": FORMAT, "dtype": dtype.name, "files": files, "remarks": remarks}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        sync(path)


def _write_split(
    folder: Path, split: str, documents: list[Document], tokenizer: Tokenizer, dtype: Any
) -> dict[str, Any]:
    """Write a split's tokens; the names and ends of its documents."""
    lengths: list[int] = []
    with open(folder / f"{split}.bin", "wb") as file:
        for chunk in _chunks(documents):
            for ids in tokenizer.encode_batch([document.text for document in chunk]):
                file.write(np.array([tokenizer.bos, *ids], dtype=dtype).tobytes())
                lengths.append(1 + len(ids))
    return {"names": [d.name for d in documents], "ends": np.cumsum(lengths).tolist()}


def _chunks(documents: list[Document]) -> Iterator[list[Document]]:
    """The documents in order, in lists of about CHUNK characters."""
    chunk: list[Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    yield chunk


def _open(entry: Path, source: Source, kind: type[Tokenizer]) -> Corpus | None:
    """Read and check an entry; None if it is not there or not what was written."""
    has_words = source.words  # whatever is wrong with a source is no damage of the entry
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
        for file, expected in meta["files"].items():
            if _file_digest(entry / file) != expected:
                return None
        index = json.loads((entry / "documents.json").read_text(encoding="utf-8"))
        return Corpus(
            name=source.name,
            hash=_digest(meta["files"]),
            tokenizer=kind.load(entry / "tokenizer.json"),
            tokens={s: _tokens(entry / f"{s}.bin", meta["dtype"]) for s in SPLITS},
            names={s: index[s]["names"] for s in SPLITS},
            ends={s: np.array(index[s]["ends"], dtype=np.int64) for s in SPLITS},
            has_words=has_words,
            remarks=dict(meta["remarks"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _tokens(path: Path, dtype: str) -> Tokens:
    return np.asarray(np.memmap(path, dtype, "r"))  # a plain view: memmap slices are slow


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
