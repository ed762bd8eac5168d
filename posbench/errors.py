"""The exceptions that a user is meant to read, and any error as one line of plain text."""

from __future__ import annotations

import difflib
import errno
import functools
import traceback
from collections.abc import Iterable, Sequence

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, largest file


class UserError(Exception):
    """A mistake in what was asked: one line that says what, where, and what would be right."""


class SweepFailed(UserError):
    """Some jobs of a multirun are not done; details says of each one why, and how to repeat it."""

    def __init__(self, message: str, details: Sequence[str]) -> None:
        super().__init__(message)
        self.details = details


class Parted(BaseException):
    """One process of several failed without the others knowing: no further job can start."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@functools.singledispatch
def one_line(error: BaseException) -> str:
    """An error as one line.

    config/omegaconf_errors.py registers how omegaconf's errors read, hydra_app/error_lines.py how
    Hydra's do.
    """
    if is_out_of_memory(error) and not isinstance(error, UserError):
        return f"out of memory ({' '.join(str(error).split())}); lower the sizes"
    if (library := failed_import(error)) is not None:
        said = " ".join(str(error).split())
        return (
            f"{library} cannot be imported ({type(error).__name__}: {said[:300]}); look at its "
            "environment variables, its settings file, and its installation"
        )
    if isinstance(error, OSError) and (place := error.filename or _stream(error)):
        hint = "; make room, then repeat the command" if error.errno in DISK_IS_FULL else ""
        return f"{place}: {error.strerror}{hint}"
    return " ".join(str(error).split()) or type(error).__name__


def nearest(name: str, choices: Iterable[str]) -> str:
    """ "; did you mean X?" for the closest choice, or nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. PyTorch has an error class for devices; on a CPU a message tells."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))
    )


def failed_import(error: BaseException) -> str | None:
    """The library whose import raised an error, e.g. for a variable; None: it was no import."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = _modules(error)
    ours = [n for n, module in enumerate(modules) if module.partition(".")[0] == "posbench"]
    after = ours[-1] + 1 if ours else len(frames)
    if after < len(frames) and frames[after].f_code.co_name == "<module>":
        return modules[after].partition(".")[0]
    return None


def _stream(error: BaseException) -> str | None:
    """ "standard output" where it is what rich could not write to."""
    modules = _modules(error)
    return "standard output" if modules and modules[-1].startswith("rich.") else None


def _modules(error: BaseException) -> list[str]:
    """Module names of the frames in its traceback, the innermost last."""
    frames = traceback.walk_tb(error.__traceback__)
    return [str(frame.f_globals.get("__name__")) for frame, _ in frames]
