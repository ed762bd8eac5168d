"""What a source of documents is, and how documents without splits of their own are split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SPLITS = ("train", "validation", "test")
FEW = 20  # documents; fewer are cut instead of dealt out


@dataclass(frozen=True)
class Document:
    """A text that no window of tokens crosses the end of."""

    name: str
    text: str


class Source(Protocol):
    """Where documents come from. `load` is only called if `identity` is not in the cache."""

    name: str
    words: bool  # whether spaces part words

    def identity(self) -> dict[str, Any]:
        """All that determines the text, as JSON. Raises UserError if it is not to be had."""

    def load(self) -> dict[str, list[Document]]:
        """The documents of each of SPLITS. Raises UserError if they are not to be had."""


def split(documents: list[Document]) -> dict[str, list[Document]]:
    """Deal whole documents out by sha256 of the name, modulo 10: 8 validation, 9 test.

    With fewer than 20 documents, or if that leaves a split empty, every document is cut into
    80/10/10 percent of its characters instead.
    """
    dealt: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in documents:
        digest = sha256_of([document.name.encode("utf-8", "surrogateescape")])
        dealt[SPLITS[max(int(digest, 16) % 10 - 7, 0)]].append(document)
    return dealt if len(documents) >= FEW and all(dealt.values()) else _cut(documents)


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
