"""A plan for scripts/gpu_check.py whose parts go wrong in every way but one."""

from __future__ import annotations

import os
import time

from scripts.gpu.part import Case, Part, Plan, Row, Settings


def plan(settings: Settings) -> Plan:
    def part(name: str, limit: float = 60, case_limit: float = 60, shares: int = 1) -> Part:
        return Part(name, f"tests.helpers.gpu_faults:{name}", seen, limit, case_limit, shares)

    return [
        [part("first")],
        [part("absent"), part("faulty"), part("slow", 60, 0.5), part("cut", 2)],
        [part("last", shares=2)],
    ]


def first(settings: Settings) -> list[Case]:
    return [Case("good", good)]


def faulty(settings: Settings) -> list[Case]:
    """The process that dies, or loses the device, has another that goes on."""
    runs = [raises, judged, dies, loses_cuda, good]
    return [Case(run.__name__, run) for run in runs]


def slow(settings: Settings) -> list[Case]:
    return [Case("hangs", hangs), Case("good", good)]


def cut(settings: Settings) -> list[Case]:
    return [
        Case("good", good),
        Case("hangs", hangs),
        Case("never", good),
        Case("extra", good, "", True),
    ]


def last(settings: Settings) -> list[Case]:
    """Two families, and so one for each process."""
    return [Case(f"{kind}{n}", pid, kind) for n in range(2) for kind in "ab"]


def seen(rows: list[Row]) -> str:
    return f"{len(rows)} good, first {rows[0]['name']}"


def good() -> Row:
    return {"number": float("nan")}


def raises() -> Row:
    raise ValueError("this went wrong\nin two lines")


def loses_cuda() -> Row:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def dies() -> Row:
    os.abort()


def hangs() -> Row:
    time.sleep(600)
    return {}


def judged() -> Row:
    return {"ok": False, "error": "off by 3"}


def pid() -> Row:
    return {"pid": os.getpid()}
