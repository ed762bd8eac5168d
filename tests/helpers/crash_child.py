"""A training run in a process of its own, with something happening at one of its file operations.

An operation is an audit event of Python's: opening to write, renaming, making or removing, below
one folder. Children are forked from a process that has imported everything and computed nothing.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import resource
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch._dynamo  # what every optimizer imports  # noqa: F401

from posbench import cli
from posbench.speed import limits as peaks

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILL, TORN, FULL = "kill", "torn", "full"


@dataclass(frozen=True)
class Fault:
    """From an operation on: the process is dead, dies within a write, or finds the disk full.

    kill: SIGKILL before the operation. torn and full: no file may grow beyond `room` bytes (what
    is to be opened: `room` beyond its size). The kernel writes as much as fits; then torn has the
    process killed by SIGXFSZ, and full gives it an error.
    """

    kind: str
    at: int | None = None  # the number of the operation, from 0
    on: str | None = None  # or: a regular expression of the first one's event and path
    room: int = 0


@dataclass(frozen=True)
class Limits:
    """What the process may do."""

    memory: int | None = None  # bytes more than it has
    seconds: float | None = None  # until SIGALRM, which nobody handles, ends it where it is
    modes: bool = False  # the modes of files hold for it, also where it is root's


@dataclass
class Ended:
    """How a child ended."""

    code: int  # negative: the signal
    said: str
    operations: list[str]  # an event and a path each

    @property
    def complaint(self) -> str:
        """The lines from the first that begins with "error: " on."""
        _, found, rest = f"\n{self.said}".partition("\nerror: ")
        return rest.strip() if found else ""


class Watch:
    """The audit hook."""

    def __init__(self, root: Path, fault: Fault | None, trace: int) -> None:
        self.root, self.fault, self.trace = str(root), fault, trace
        self.count = 0
        self.struck = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = changed(event, arguments)
        if path is None or not path.startswith(self.root):
            return
        operation = f"{event} {path}"
        os.write(self.trace, f"{operation}\n".encode())
        fault, number = self.fault, self.count
        self.count += 1
        if fault is None or self.struck:
            return
        if number == fault.at or (fault.on is not None and re.search(fault.on, operation)):
            self.struck = True
            strike(fault, path)


def changed(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The path that an audit event is about to change."""
    if event == "open":
        path, _, flags = arguments
        return None if isinstance(path, int) or not flags & WRITES else absolute(path)
    if event == "os.rename":
        return absolute(arguments[1])
    if event in ("os.mkdir", "os.remove", "os.rmdir"):
        return absolute(arguments[0], arguments[-1])
    return None


def absolute(path: Any, folder: int = -1) -> str:
    """A path given beside the descriptor of its folder, -1 where there is none."""
    start = os.getcwd() if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.join(start, os.fsdecode(path))


def strike(fault: Fault, path: str) -> None:
    if fault.kind == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault.kind == TORN else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + fault.room, most))


def obey_modes() -> None:
    """Give up what lets root write anywhere (capset(2); Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the high words after
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def train(words: list[str], root: Path, fault: Fault | None = None, *limits: Limits) -> Ended:
    """Run `posbench train` on root/cache in a child; the operations are those below root."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["posbench.commands.train", __name__])
    said, saying = context.Pipe(duplex=False)
    traced, trace = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(words, root, fault, limits, saying, trace))
    process.start()
    saying.close()
    trace.close()
    text, operations = _all(said), _all(traced).splitlines()
    process.join(60)
    assert process.exitcode is not None
    return Ended(process.exitcode, text, operations)


def _all(pipe: Connection) -> str:
    with os.fdopen(os.dup(pipe.fileno()), "rb") as file:
        return file.read().decode()


def _child(
    words: list[str],
    root: Path,
    fault: Fault | None,
    limits: tuple[Limits, ...],
    said: Connection,
    trace: Connection,
) -> None:
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    for number, name in ((1, "stdout"), (2, "stderr")):  # those there were are of files
        stream = open(number, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    os.environ["POSBENCH_CACHE"] = str(root / "cache")
    peaks.SIDE["cpu"] = 64  # of products that are timed: not what is tested
    for limit in limits:
        if limit.memory is not None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + limit.memory, most))
        if limit.seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, limit.seconds)
        if limit.modes:
            obey_modes()
    sys.addaudithook(Watch(root, fault, trace.fileno()))
    sys.exit(cli.run(["train", *words]))
