"""A part of the check: cases that are tried one by one, in processes of their own.

A process writes to a JSONL file what it plans, when a case begins and what came of it. So
whatever ends it, what was found before is there, and the next process goes on behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from posbench.machine.files import append_row, read_rows

Row = dict[str, Any]

BROKEN = 3  # exit code of a process whose CUDA context is lost: the next one starts afresh
LINES = 4  # of an error's message that are told
TRACEBACK = 4000  # characters


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where, how large, and where files of the parts' own may go."""

    device: str
    rehearse: bool
    folder: str


@dataclasses.dataclass(frozen=True)
class Case:
    """What is tried; run returns what is to be known of it, with "ok": False where that is bad.

    Cases of one family share what is compiled, and so a process. extra: only if there is time.
    """

    name: str
    run: Callable[[], Row]
    family: str = ""
    extra: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """Limits are seconds, of all cases and of each.

    makes: "module" whose cases(settings) they are, or "module:function", imported by the process
    alone; seen makes one line of all rows. shares: how many processes share the cases.
    """

    name: str
    makes: str
    seen: Callable[[list[Row]], str]
    limit: float
    case_limit: float
    shares: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


Plan = list[list[Part]]  # groups, one after the other; the parts of one group run at once


def plan_of(module: str, settings: Settings) -> Plan:
    """Made by <module>.plan(settings)."""
    made: Plan = importlib.import_module(module).plan(settings)
    return made


def attempt(name: str, run: Callable[[], Row | None]) -> Row:
    """What run returns, or how it failed: here, and nowhere else, any exception is recorded."""
    started = time.perf_counter()
    found: Row = {"ok": True}
    try:
        found |= run() or {}
    except Exception as error:
        traceback.print_exc()
        found = {"ok": False, "error": told(error), "traceback": traceback.format_exc()}
        found["traceback"] = found["traceback"][-TRACEBACK:]
        found["cuda"] = "CUDA error" in str(error)
    seconds = round(time.perf_counter() - started, 3)
    row: Row = plain({"name": name, "seconds": seconds} | found | {"name": name})
    return row


def told(error: Exception) -> str:
    """Its kind and the first lines of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " | ".join([f"{type(error).__name__}:", *lines[:LINES]]).replace(": |", ":")


def plain(value: Any) -> Any:
    """As JSON can have it: numbers that are none become words."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def mine(cases: list[Case], share: int, shares: int) -> list[Case]:
    """A process's cases: families are dealt out in the order in which they first appear."""
    families = list(dict.fromkeys(case.family or case.name for case in cases))
    taken = set(families[share::shares])
    return [case for case in cases if (case.family or case.name) in taken]


def _cases(part: Part, settings: Settings) -> list[Case]:
    module, _, function = part.makes.partition(":")
    made: list[Case] = getattr(importlib.import_module(module), function or "cases")(settings)
    return made


def work(part: Part, share: int, settings: Settings, path: Path) -> int:
    """Try what has not been tried; the exit code."""
    tried = {row["begin"] for row in read_rows(path) if "begin" in row}
    cases: list[Case] = []
    prepared = attempt(
        "preparing",
        lambda: cases.extend(_cases(part, settings)),
    )
    if not prepared["ok"]:
        append_row(path, prepared)
        return 1
    cases = mine(cases, share, part.shares)
    append_row(path, {"planned": {case.name: case.extra for case in cases}})
    for case in cases:
        if case.name in tried:
            continue
        append_row(path, {"begin": case.name, "at": time.time()})
        append_row(path, row := attempt(case.name, case.run))
        print(row["name"], "ok" if row["ok"] else row.get("error", "failed"), flush=True)
        if row.get("cuda"):
            return BROKEN
    append_row(path, {"finished": True})
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("plan", "part", "share", "path", "settings"):
        parser.add_argument(name)
    asked = parser.parse_args()
    settings = Settings(**json.loads(asked.settings))
    parts = [part for group in plan_of(asked.plan, settings) for part in group]
    part = next(part for part in parts if part.name == asked.part)
    sys.exit(work(part, int(asked.share), settings, Path(asked.path)))


if __name__ == "__main__":
    main()
