"""A user's own text: a file, a folder or a glob of text files and JSON lines."""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path
from typing import Any

from posbench.errors import UserError
from posbench.sources.base import Document, sha256_of, split


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
            text = _decode(path)
            rows = self._rows(path, text) if path.suffix.lower() == ".jsonl" else {"": text}
            documents += [Document(name + row, t) for row, t in rows.items() if t.strip()]
        if not documents:
            raise UserError(f"corpus.path={self.path}: no text in it")
        return split(documents)

    def _files(self) -> dict[str, Path]:
        """Name -> path, in the order of the names."""
        root = Path(self.path).expanduser()
        if root.is_dir():
            below = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
            found = {name: path for name, path in below.items() if not _hidden(name)}
        elif root.exists():
            found = {root.name: root}
        else:
            found = _by_common_folder(glob.glob(str(root), recursive=True))
        files = {n: found[n] for n in sorted(found) if found[n].is_file()}
        if files:
            return files
        if root.is_dir():
            raise UserError(f"corpus.path={self.path}: no files in this folder")
        raise UserError(f"corpus.path={self.path}: no such file or folder, and no glob match")

    def _rows(self, path: Path, text: str) -> dict[str, str]:
        """ ":<line>" -> text of each row that is not blank."""
        lines = enumerate(text.split("\n"), start=1)
        return {f":{n}": self._row(f"{path}:{n}", line) for n, line in lines if line.strip()}

    def _row(self, place: str, line: str) -> str:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).replace(" line 1 column", " column")
            raise UserError(f"{place}: not JSON ({reason})") from error
        text = row.get(self.field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            has = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
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
