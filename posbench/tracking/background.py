"""A tracker in a thread of its own, so that training neither waits for it nor fails with it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from posbench.tracking.base import Nothing, Table, Tracker, Values

PATIENCE = 5.0  # seconds for the last rows; what takes longer goes on beside the next run

log = logging.getLogger("posbench")


class Background:
    """Opens a tracker and calls it, in order, in the process's one thread for that.

    Its first error becomes a warning; after that only finish is called.
    """

    def __init__(self, title: str, opened: Callable[[], Tracker]) -> None:
        self._title = title
        self._tracker: Tracker = Nothing()
        self._failed = False
        _worker(os.getpid()).submit(self._open, opened)

    def log(self, row: Values, axis: str) -> None:
        self._later(lambda: self._tracker.log(row, axis))

    def summary(self, values: Values) -> None:
        self._later(lambda: self._tracker.summary(values))

    def publish(self, tables: Mapping[str, Table], files: Sequence[Path]) -> None:
        self._later(lambda: self._tracker.publish(tables, files))

    def keep(self, checkpoint: Path) -> None:
        self._later(lambda: self._tracker.keep(checkpoint))

    def finish(self, exit_code: int) -> None:
        done = self._later(lambda: self._tracker.finish(exit_code), always=True)
        if wait([done], timeout=PATIENCE).not_done:
            log.warning("%s is not done with this run: the end of posbench waits", self._title)

    def _open(self, opened: Callable[[], Tracker]) -> None:
        try:
            self._tracker = opened()
        except Exception as error:
            log.warning("%s is off for this run: %s", self._title, line(error))

    def _later(self, call: Callable[[], None], always: bool = False) -> Future[None]:
        return _worker(os.getpid()).submit(self._attempt, call, always)

    def _attempt(self, call: Callable[[], None], always: bool) -> None:
        if self._failed and not always:
            return
        try:
            call()
        except Exception as error:
            if not self._failed:
                log.warning("%s stopped, the run goes on: %s", self._title, line(error))
            self._failed = True


@functools.cache
def _worker(process: int) -> ThreadPoolExecutor:
    """The process's thread for trackers: one run after another. Python waits for it at exit."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")


def line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
