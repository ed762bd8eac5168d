"""What compare_peers.py shows: a row for each pair, as a table on the terminal and in Markdown."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch
from rich.table import Table

from posbench.machine import provenance

LEFT = ["mode", "encoding", "peer", "setting"]
HEADERS = "mode length encoding peer setting parameters posbench/s peer/s ratio spread".split()
RATIO = HEADERS.index("ratio")


@dataclasses.dataclass(frozen=True)
class Row:
    """posbench against one peer: medians over the rounds; a ratio over 1 is posbench faster."""

    mode: str
    length: int
    encoding: str
    peer: str
    setting: str
    parameters: tuple[int, int]  # posbench's, the peer's
    tokens_per_second: tuple[float, float]
    ratio: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        return self.ratio < 1

    def cells(self) -> list[str]:
        return [
            *(self.mode, f"{self.length:,}", self.encoding, self.peer, self.setting),
            " / ".join(f"{count:,}" for count in self.parameters),
            *(f"{speed:,.0f}" for speed in self.tokens_per_second),
            f"{self.ratio:.2f}" + " slower" * self.slower,
            f"{self.low:.2f}-{self.high:.2f}",
        ]


def environment(script: str, arguments: Sequence[str]) -> dict[str, str]:
    """The command, the versions and the machine."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    packages = ("torch", "x-transformers", "transformers")
    return {
        "command": shlex.join(["python", script, *arguments]),
        "posbench": provenance.commit() or "no commit",
        **{package: metadata.version(package) for package in packages},
        "python": platform.python_version(),
        "processor": models[0] if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
    }


def table(rows: Sequence[Row]) -> Table:
    made = Table(title="tokens a second")
    for header in HEADERS:
        made.add_column(header, justify="left" if header in LEFT else "right")
    for row in rows:
        made.add_row(*row.cells(), style="reverse red" if row.slower else "")
    return made


def markdown(rows: Sequence[Row], facts: dict[str, str], notes: Sequence[str]) -> str:
    lines = [HEADERS, ["---" if header in LEFT else "---:" for header in HEADERS]]
    for row in rows:
        cells = row.cells()
        if row.slower:
            cells[RATIO] = f"**{cells[RATIO]}**"
        lines.append(cells)
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "command")
    listed = "\n".join(f"- {note}" for note in notes)
    return f"`{facts['command']}`: {machine}.\n\n{shown}\n\n{listed}\n"
