"""Other programs, run by a case: told to stop before the case itself is ended."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence

from scripts.gpu.watch import ROOT

KEPT = 12_000  # characters of what they print


class Ended(Exception):
    """It failed, or was stopped; the message has the end of what it printed."""


def run(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Its exit code, None where it was stopped, and what it printed."""
    with tempfile.TemporaryFile() as file:  # of a pipe, those it started could keep an end open
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        file.seek(0)
        printed = file.read().decode(errors="replace")
    print(printed[-KEPT:], flush=True)
    return code, printed


def checked(command: Sequence[str], seconds: float) -> str:
    """What it printed. Raises Ended."""
    code, printed = run(command, seconds)
    if code == 0:
        return printed
    why = f"was stopped after {seconds:.0f} s" if code is None else f"ended with exit code {code}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()][-3:]
    raise Ended("\n".join([f"{' '.join(command[1:5])} {why}", *lines]))
