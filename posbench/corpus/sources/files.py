"""A user's own text: a file, a folder or a glob of text files and JSON lines."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from posbench.corpus.sources.base import Document, sha256_of, split
from posbench.corpus.sources.plain import control, plain
from posbench.errors import UserError
from posbench.machine import memory, paths

HELD = 3  # bytes of memory a byte of text: the file, its text, and that as documents
SHOWN = 20  # keys of a row without text


class Files:
    """One document a text file, or a row of a .jsonl file; names are relative to `path`.

    Of a folder every file in it, at any depth, that is not hidden; links to folders are not
    followed. UTF-8 only. `left_out` counts what is no document.
    """

    def __init__(self, path: str, field: str, name: str, words: bool = False) -> None:
        self.path = path
        self.field = field  # of a row of a .jsonl file, with the text
        self.words = words
        self.name = name
        self.left_out: Counter[str] = Counter()

    def identity(self) -> dict[str, Any]:
        """Names and contents, so a folder that moves keeps its place in the cache."""
        contents = {name: sha256_of([_read(path)]) for name, path in self._files().items()}
        passed = dict(+self.left_out)  # of the folder
        return {"kind": "files", "field": self.field, "files": contents, "left_out": passed}

    def load(self) -> dict[str, list[Document]]:
        documents: list[Document] = []
        for name, path in self._files().items():
            rows = self._rows(path) if path.suffix.lower() == ".jsonl" else {"": _decode(path)}
            found = [Document(name + row, text) for row, text in rows.items() if text.strip()]
            self.left_out["documents without text left out"] += len(rows) - len(found)
            documents += found
        if not documents:
            raise UserError(f"corpus.path={self.path}: no text in it")
        return split(documents)

    def _files(self) -> dict[str, Path]:
        """Name -> path, in the order of the names; `left_out` begins anew."""
        self.left_out.clear()
        root = Path(paths.expanded("corpus.path", self.path))
        if root.is_dir():
            found = self._below(root)
        elif root.exists():
            found = {root.name: root}
        else:
            found = _by_common_folder(paths.matching("corpus.path", self.path))
        files = {n: found[n] for n in sorted(found) if found[n].is_file()}
        if "**" not in self.path:  # which names every folder on its way
            folders = sum(path.is_dir() for path in found.values())
            self.left_out["folders that a glob names left out"] = folders
        if files:
            size = sum(path.stat().st_size for path in files.values())
            memory.require(f"corpus.path={self.path}: the text", HELD * size)
            return files
        if root.is_dir():
            raise UserError(f"corpus.path={self.path}: no files in this folder")
        raise UserError(f"corpus.path={self.path}: no such file or folder, and no glob match")

    def _below(self, root: Path) -> dict[str, Path]:
        """Name -> path of what is in a folder, but for what is hidden. Raises UserError."""
        found: dict[str, Path] = {}
        for folder, folders, names in os.walk(root, onerror=_unreadable):
            for name in [*folders, *names]:
                path = Path(folder, name)
                if name.startswith("."):
                    self.left_out["hidden files and folders left out"] += 1
                elif os.path.isdir(path):
                    self.left_out["links to folders not followed"] += path.is_symlink()
                elif os.path.isfile(path):
                    found[path.relative_to(root).as_posix()] = path
                else:
                    self.left_out["dead links, pipes and the like left out"] += 1
            folders[:] = [name for name in folders if not name.startswith(".")]
        return found

    def _rows(self, path: Path) -> dict[str, str]:
        """ ":<line>" -> text, of each row that is not blank; null is no text."""
        lines = enumerate(re.split("\r\n?|\n", _decode(path)), start=1)
        return {f":{n}": self._row(f"{path}:{n}", line) for n, line in lines if line.strip()}

    def _row(self, place: str, line: str) -> str:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).replace(" line 1 column", " column")
            raise UserError(f"{place}: not JSON ({reason})") from error
        text = row.get(self.field, 0) if isinstance(row, dict) else 0
        if text is None:
            return ""
        if not isinstance(text, str):
            known = [repr(key) for key in row][:SHOWN] if isinstance(row, dict) else None
            has = type(row).__name__ if known is None else ", ".join(known)
            raise UserError(
                f"{place}: no text in field {self.field!r} (there is: {has}); set corpus.field"
            )
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{place}: half of a surrogate pair, which is no Unicode text")
        if (byte := control(text.encode())) is not None:
            raise UserError(
                f"{place}: no plain text in field {self.field!r}: control characters, like binary "
                f"data, at byte {byte}; leave the row out"
            )
        return text


def _by_common_folder(found: list[Path]) -> dict[str, Path]:
    """Name below the deepest folder that all paths share -> path."""
    common = os.path.commonpath([path.parent for path in found]) if found else ""
    return {path.relative_to(common).as_posix(): path for path in found}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _decode(path: Path) -> str:
    return plain(_read(path), str(path))
