"""A user's own text: a file, a folder or a glob of text files and JSON lines."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posbench import memory
from posbench.errors import UserError
from posbench.sources.base import Document, sha256_of, split

HELD = 3  # bytes of memory a byte of text: the file, its text, and that as documents
SHOWN = 20  # keys of a row without text


class Files:
    """One document a text file, or a row of a .jsonl file; names are relative to `path`.

    Of a folder every file in it, at any depth, that is not hidden. UTF-8 only.
    """

    def __init__(self, path: str, field: str, name: str, words: bool = False) -> None:
        self.path = path
        self.field = field  # of a row of a .jsonl file, with the text
        self.words = words
        self.name = name

    def identity(self) -> dict[str, Any]:
        """Names and contents, so a folder that moves keeps its place in the cache."""
        contents = {name: sha256_of([_read(path)]) for name, path in self._files().items()}
        return {"kind": "files", "field": self.field, "files": contents}

    def load(self) -> dict[str, list[Document]]:
        documents: list[Document] = []
        for name, path in self._files().items():
            rows = self._rows(path) if path.suffix.lower() == ".jsonl" else [("", _decode(path))]
            documents += [Document(name + row, text) for row, text in rows if text.strip()]
        if not documents:
            raise UserError(f"corpus.path={self.path}: no text in it")
        return split(documents)

    def _files(self) -> dict[str, Path]:
        """Name -> path, in the order of the names."""
        root = Path(os.path.expanduser(self.path))
        if root.is_dir():
            below = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
            found = {name: path for name, path in below.items() if not _hidden(name)}
        elif root.exists():
            found = {root.name: root}
        else:
            found = _by_common_folder(glob.glob(str(root), recursive=True))
        files = {n: found[n] for n in sorted(found) if found[n].is_file()}
        if files:
            size = sum(path.stat().st_size for path in files.values())
            memory.require(f"corpus.path={self.path}: the text", HELD * size)
            return files
        if root.is_dir():
            raise UserError(f"corpus.path={self.path}: no files in this folder")
        raise UserError(f"corpus.path={self.path}: no such file or folder, and no glob match")

    def _rows(self, path: Path) -> Iterator[tuple[str, str]]:
        """ ":<line>" and the text of each row that is not blank."""
        for n, line in enumerate(_decode(path).split("\n"), start=1):
            if line.strip():
                yield f":{n}", self._row(f"{path}:{n}", line)

    def _row(self, place: str, line: str) -> str:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).replace(" line 1 column", " column")
            raise UserError(f"{place}: not JSON ({reason})") from error
        text = row.get(self.field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            known = [repr(key) for key in row][:SHOWN] if isinstance(row, dict) else None
            has = type(row).__name__ if known is None else ", ".join(known)
            raise UserError(
                f"{place}: no text in field {self.field!r} (there is: {has}); set corpus.field"
            )
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{place}: half of a surrogate pair, which is no Unicode text")
        return text


def _by_common_folder(paths: list[str]) -> dict[str, Path]:
    """Name below the deepest folder that all paths share -> path."""
    common = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return {Path(path).relative_to(common).as_posix(): Path(path) for path in paths}


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _decode(path: Path) -> str:
    """The text of a UTF-8 file, line ends as they are, without a byte order mark."""
    try:
        return _read(path).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text, at byte {error.start}; convert it or leave it out by a glob"
        ) from error
