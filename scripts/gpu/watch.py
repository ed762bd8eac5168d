"""The processes of a part, watched from outside: limits, deaths, and who goes on behind them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from posbench.machine.files import append_row, read_rows
from scripts.gpu.part import BROKEN, Part, Row, Settings

ROOT = Path(__file__).parents[2]
PAUSE = 0.1  # seconds between two looks


class Share:
    """One process at a time that tries a share of a part's cases, until the deadline."""

    def __init__(
        self, part: Part, number: int, settings: Settings, plan: str, deadline: float
    ) -> None:
        self.part, self.number, self.settings, self.plan = part, number, settings, plan
        self.deadline = deadline
        base = Path(settings.folder) / f"{part.name}.{number}"
        self.path, self.log = base.with_suffix(f"{base.suffix}.jsonl"), Path(f"{base}.log")
        self.over = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        settings = json.dumps(dataclasses.asdict(self.settings))
        words = [self.plan, self.part.name, str(self.number), str(self.path), settings]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **self.part.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
        }
        with self.log.open("ab") as log:
            return start([sys.executable, "-m", "scripts.gpu.part", *words], log, environment)

    def look(self, now: float) -> None:
        """Whether it has ended, or must."""
        if self.over:
            return
        code, rows = self.process.poll(), read_rows(self.path)
        begun = under_way(rows)
        if code is not None:
            end(self.process)  # what it may have left behind
            self._ended(code, rows, begun)
        elif now > self.deadline:
            self._stop(begun, "the part's time was used up")
            self.over = True
        elif begun and now - begun["at"] > self.part.case_limit:
            self._stop(begun, f"it took longer than {self.part.case_limit:.0f} s")
            self.process = self._start()

    def _ended(self, code: int, rows: list[Row], begun: Row | None) -> None:
        finished = any("finished" in row for row in rows)
        if begun:
            self._failed(begun["begin"], died(code))
        elif code != BROKEN and not finished and not (rows and rows[-1].get("error")):
            self._failed("process", died(code))
        self.over = finished or not (begun or code == BROKEN)
        if not self.over:
            self.process = self._start()

    def _stop(self, begun: Row | None, why: str) -> None:
        end(self.process)
        self.process.wait()
        if begun:
            self._failed(begun["begin"], why, round(time.time() - begun["at"], 3))

    def _failed(self, name: str, why: str, seconds: float | None = None) -> None:
        append_row(self.path, {"name": name, "ok": False, "error": why, "seconds": seconds})

    def close(self) -> None:
        """Whatever happens here, no process stays."""
        end(self.process)


def start(
    command: Sequence[str], log: IO[bytes], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """In a process group of its own, from the repository's root."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started, at once: a process that hangs in CUDA hears nothing else."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def died(code: int) -> str:
    if code < 0:
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def under_way(rows: list[Row]) -> Row | None:
    """The row of the case that has begun and not ended."""
    last: Row | None = None
    for row in rows:
        if "begin" in row:
            last = row
        elif last is not None and row.get("name") == last["begin"]:
            last = None
    return last


def run(parts: Sequence[Part], settings: Settings, plan: str, deadline: float) -> Iterator[Part]:
    """Parts at once, each until its own limit and all until the deadline (time.time()).

    Yields each when it is over.
    """
    now = time.time()
    going: dict[str, list[Share]] = {}
    try:
        for part in parts:
            until = min(deadline, now + part.limit)
            numbers = range(part.shares)
            going[part.name] = [Share(part, n, settings, plan, until) for n in numbers]
        while going:
            time.sleep(PAUSE)
            for part in [part for part in parts if part.name in going]:
                for share in going[part.name]:
                    share.look(time.time())
                if all(share.over for share in going[part.name]):
                    del going[part.name]
                    yield part
    finally:
        for share in [share for shares in going.values() for share in shares]:
            share.close()
