"""Paths as users type them: ~ for a home folder, a glob unless such a file exists."""

from __future__ import annotations

import glob
import os
import shlex
from pathlib import Path

from posbench.errors import UserError

LONGEST = 255  # bytes of one name on a disk
LONGEST_NAME = 200  # of one that others are made of: .NAME.yaml.4194304.tmp, NAME-matrix.png
LONGEST_PATH = 3500  # of a run folder; Linux has 4,095 for a file, and the files in it have names


def expanded(key: str, text: str) -> str:
    """A path with ~ or ~user expanded. Raises UserError, which names the key, for what is no path.

    To be called once on what the user typed: a Path made of "./~x" is "~x", and is that folder.
    """
    if not text.strip():
        raise UserError(f"{key}={text!r} names no folder or file; . is the working folder")
    path = os.path.expanduser(text)
    who = text.split("/")[0]
    homeless = not os.path.isabs(path) or (who == "~" and os.environ.get("HOME") == "")
    if who.startswith("~") and homeless and not os.path.exists(text):
        raise UserError(
            f"{key}={text}: there is no such home folder here as {who}; write ./{text} for a "
            "folder of that name"
        )
    require_short(key, path, LONGEST)
    return path


def require_short(key: str, path: str, longest: int) -> None:
    """Raise UserError, which names the key, if a name in a path is too long for a disk."""
    for part in path.split("/"):
        if (size := len(os.fsencode(part))) > longest:
            raise UserError(
                f"{key}: a name of {size} bytes, {shortened(part)}; at most {longest} are allowed"
            )


def shortened(text: str, most: int = 40) -> str:
    """The beginning of a text, quoted, for a message."""
    return repr(text if len(text) <= most else f"{text[:most]}...")


def matching(key: str, pattern: str) -> list[Path]:
    """The paths that a path or a glob names; a part that exists literally is not a pattern.

    Raises UserError as `expanded` does.
    """
    path = Path(expanded(key, pattern))
    found = [Path(path.anchor)]
    for part in path.parts[1 if path.anchor else 0 :]:
        found = [each for base in found for each in _below(base, part)]
    return list(dict.fromkeys(found))


def _below(base: Path, part: str) -> list[Path]:
    if os.path.lexists(base / part):
        return [base / part]
    names = glob.glob(part, root_dir=base, recursive=True)
    return [*([base] if part == "**" else []), *(base / name for name in names)]


def shell_word(path: Path) -> str:
    """A path quoted as an argument, to paste into a shell."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith(("-", "~")) else text)
