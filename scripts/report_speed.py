"""How long a report takes, and how much memory: python scripts/report_speed.py [RUNS]

Writes RUNS synthetic runs (30) of 10 encodings with the losses of 4,096 tokens at five lengths,
and reports them in every format with figures, in a process of its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers.folders import write_run

FORMATS = "report.formats=[terminal,markdown,csv,latex,html]"
FIGURES = "report.figures=[svg]"


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(count):
            name, seed = f"encoding{number % 10}", number // 10 + 1
            slope = number % 10 / 50
            write_run(
                root / "outputs", name, seed, lambda n, s=slope: 3.4 + s * n / 2048, spread=1
            )
        started = time.perf_counter()
        command = [sys.executable, "-m", "posbench", "report", FORMATS, FIGURES]
        subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{count} runs: {seconds:.1f} s, {peak:,.0f} MiB peak, {os.cpu_count()} cores")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
