"""Atomic writing: to a temporary file, flushed, then renamed. Errors name the file."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from posbench.errors import UserError
from posbench.machine.confidential import redacted


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give OSErrors of writing this path: a full disk's name no file, others a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write a file under; it takes path's place if the block succeeds."""
    temporary = _temporary(path)
    with naming(path):
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill with files; it takes path's place if the block succeeds."""
    temporary = _temporary(path)
    with naming(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.iterdir():
                sync(file)
            sync(temporary)
            if path.exists():
                remove_folder(path)
            temporary.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, renamed first, so that it is never there in part."""
    leaving = _temporary(path, "old")
    path.rename(leaving)
    shutil.rmtree(leaving)


def clear_temporaries(folder: Path) -> None:
    """Remove what killed processes left in a folder and beside it. The caller holds its lock."""
    own = folder.parent.glob(_temporary_names(folder.name))
    for path in (*own, *folder.glob(_temporary_names()), *folder.glob(f"*/{_temporary_names()}")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _temporary(path: Path, *words: str) -> Path:
    """A name beside path that no other process uses."""
    return path.with_name(".".join(("", path.name, str(os.getpid()), *words, "tmp")))


def _temporary_names(name: str | None = None) -> str:
    """The glob that matches `_temporary`'s names for a name, None: for any."""
    return f".{'*' if name is None else glob.escape(name)}.*.tmp"


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8, with secrets of the environment redacted."""
    with replacing(path) as temporary:
        temporary.write_text(redacted(text), encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append a JSON line; an incomplete line that a crash left is cut off first.

    Raises UserError for a link: a run folder from anybody could have it point to any file.
    """
    require_own(path)
    with naming(path), path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end and _last_byte(file, end) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(row).encode() + b"\n")


def require_own(path: Path) -> None:
    """Raise UserError for a path to write to that is a link, a device or the like."""
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
        raise UserError(f"{path} is a link or no file, and nothing is written through it")


def require_own_below(folder: Path, read: str, others: str) -> None:
    """require_own for everything in a folder, except the entry `read`, which is only read, and
    what is below the entry `others`, which another program writes, with links of its own."""
    for path in folder.rglob("*"):
        part, *below = path.relative_to(folder).parts
        if part != read and not (part == others and below):
            require_own(path)


def _last_byte(file: BinaryIO, end: int) -> bytes:
    file.seek(end - 1)
    return file.read(1)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, without an incomplete last line that a crash left.

    Raises UserError for a damaged one.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines[:-1] if line]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read, a row is not JSON ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: cannot be read, a row is no object")
    return rows
