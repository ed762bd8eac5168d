"""Why something could not be measured, as one line for a table's note."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from posbench.errors import is_out_of_memory

OUT_OF_MEMORY = "out of memory"
FAILED = "failed"  # every reason but OUT_OF_MEMORY begins with it


class Failed(Exception):
    """Something could not be measured; the message says why."""


@contextmanager
def told() -> Iterator[None]:
    """Turn any exception inside into Failed; unless RAM ran out, print the traceback too."""
    try:
        yield
    except Failed:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            traceback.print_exc()
        raise Failed(reason(error)) from error


def reason(error: Exception) -> str:
    """One line on what an exception says."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    return f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def died(code: int) -> str:
    """Why a process ended with an exit code (negative: a signal) without a report of its own."""
    if code == -signal.SIGKILL:
        return f"{OUT_OF_MEMORY} (its process was killed)"
    if code < 0:
        return f"{FAILED}: its process died of {signal.Signals(-code).name}"
    return f"{FAILED}: its process ended with exit code {code}"
