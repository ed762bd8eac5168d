"""What a source of documents is, and how documents without splits of their own are split."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SPLITS = ("train", "validation", "test")
FEW = 20  # different documents; fewer are cut instead of dealt out
PART = 1_000_000  # characters of a document looked at together


@dataclass(frozen=True)
class Document:
    """A text that no window of tokens crosses the end of."""

    name: str
    text: str


class Source(Protocol):
    """Where documents come from. `load` is only called if `identity` is not in the cache.

    It may have `left_out` after `load`: how much of what it found is no document, by kind.
    """

    name: str
    words: bool  # whether spaces part words

    def identity(self) -> dict[str, Any]:
        """All that determines the text, as JSON. Raises UserError if it is not to be had."""

    def load(self) -> dict[str, list[Document]]:
        """The documents of each of SPLITS. Raises UserError if they are not to be had."""


def split(documents: list[Document]) -> dict[str, list[Document]]:
    """Deal whole documents out by sha256 of the name, modulo 10: 8 validation, 9 test.

    Documents of the same words go together, by the least of their names. With fewer than 20
    different ones, or if that leaves a split empty, every document is cut into 80/10/10 percent of
    its characters instead.
    """
    dealt: dict[str, list[Document]] = {name: [] for name in SPLITS}
    words = [same_words(document) for document in documents]
    names: dict[str, str] = {}
    for document, key in zip(documents, words, strict=True):
        names[key] = min(document.name, names.get(key, document.name))
    for document, key in zip(documents, words, strict=True):
        digest = sha256_of([names[key].encode("utf-8", "surrogateescape")])
        dealt[SPLITS[max(int(digest, 16) % 10 - 7, 0)]].append(document)
    return dealt if len(names) >= FEW and all(dealt.values()) else _cut(documents)


def same_words(document: Document) -> str:
    """Equal for documents that differ in nothing but white space, line ends included."""
    parts = range(0, len(document.text), PART)
    joined = ("".join(document.text[start : start + PART].split()) for start in parts)
    return sha256_of(part.encode() for part in joined)


def copies(documents: dict[str, list[Document]]) -> dict[str, int]:
    """By kind, how many documents are there twice, and how many test documents were trained on."""
    seen: dict[str, set[str]] = defaultdict(set)
    again, known = set(), 0
    for name in SPLITS:
        for document in documents[name]:
            if document.text.isspace():
                continue
            key = same_words(document)
            if key in seen[name]:
                again.add(document.name)  # once, if it is cut
            seen[name].add(key)
            known += name == "test" and key in seen["train"]
    counted = {
        "copies of a document in the same split": len(again),
        "test documents that are training documents too": known,
    }
    return {kind: count for kind, count in counted.items() if count}


def _cut(documents: list[Document]) -> dict[str, list[Document]]:
    cut: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in documents:
        ends = [len(document.text) * tenths // 10 for tenths in (0, 8, 9, 10)]
        for name, start, end in zip(SPLITS, ends, ends[1:], strict=False):
            if end > start:
                cut[name].append(Document(document.name, document.text[start:end]))
    return cut


def sha256_of(chunks: Iterable[bytes]) -> str:
    """sha256 of the chunks, one after the other."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def fingerprint(files: dict[str, Path]) -> dict[str, str]:
    """Name -> sha256 of the file's bytes."""
    return {name: sha256_of([path.read_bytes()]) for name, path in files.items()}
