"""The numeric tests as other processors would run them: make test-cpus.

Each setting is a process of its own, as PyTorch and its libraries read these variables once. One
line for each as it ends, what failed below it, a table in the end; exit code 1 if any failed. A
test that hangs is ended and named, and the others go on. Whole outputs lie in build/test-cpus.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "test-cpus"
TESTS = (
    "tests/encodings tests/attention tests/oracles tests/model tests/training tests/conformance "
    "tests/evaluation/test_score.py tests/evaluation/test_protocols.py "
    "tests/machine/test_distributed.py"
).split()
HANGS = 300  # seconds that no test takes on a busy machine
NAMES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
PROCESSORS = {
    "own": ("", "", ""),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "sse": ("default", "SSE4_2", "SSE41"),
}
TRAINED = (("float32", 1), ("bfloat16", 2))  # dtype and threads


class Setting(NamedTuple):
    processor: str
    dtype: str  # of training
    threads: int

    @property
    def name(self) -> str:
        return f"{self.processor}-{self.dtype}-{self.threads}"

    def environment(self) -> dict[str, str]:
        """Of the tests. Variables of the user's own would change what is tested."""
        kept = {key: value for key, value in os.environ.items() if key not in NAMES}
        values = zip(NAMES, PROCESSORS[self.processor], strict=True)
        return (
            kept
            | {key: value for key, value in values if value}
            | {
                "OMP_NUM_THREADS": str(self.threads),
                "OMP_WAIT_POLICY": "PASSIVE",  # threads of several tests share the cores
                "POSBENCH_TEST_DTYPE": self.dtype,
                "POSBENCH_TEST_THREADS": str(self.threads),
            }
        )


SETTINGS = [Setting(p, *trained) for p in PROCESSORS for trained in TRAINED]


class Outcome(NamedTuple):
    name: str
    failed: list[str]  # and tests that were ended
    summary: str  # pytest's
    seconds: float


def run(setting: Setting, more: list[str]) -> Outcome:
    """Every worker is a process: one that hangs is ended, and its tests go to another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    workers = max(1, min(4, cores))  # threads of a small matrix mostly wait, and do not spin
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal", "-rfE"]
    command += ["-p", "no:cacheprovider", "--tb=short", "--show-capture=no"]
    command += ["-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true"]
    command += ["-m", "not slow and not long and not gpu", *(more or TESTS)]
    place = OUT / f"{setting.name}.txt"
    started = time.monotonic()
    with place.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            command, cwd=ROOT, env=setting.environment(), stdout=file, stderr=subprocess.STDOUT
        ).returncode
    said = place.read_text(encoding="utf-8", errors="replace")
    failed = sorted({*re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.M)})
    last = [line.strip("= ") for line in said.splitlines() if " in " in line and "passed" in line]
    if code and not failed:
        failed = [f"pytest ended with {code}: see {place.relative_to(ROOT)}"]
    return Outcome(setting.name, failed, last[-1] if last else "", time.monotonic() - started)


def main(words: list[str]) -> int:
    names = [setting.name for setting in SETTINGS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, metavar="SETTING", default=names)
    parser.add_argument(
        "tests", nargs="*", help="files or other words for pytest: of all settings"
    )
    asked = parser.parse_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for setting in [setting for setting in SETTINGS if setting.name in asked.only]:
        outcomes.append(done := run(setting, asked.tests))
        print(_line(done), *(f"  {test}" for test in done.failed), sep="\n", flush=True)
    broken = [done.name for done in outcomes if done.failed]
    print("", *map(_line, outcomes), sep="\n")
    print(f"failed: {', '.join(broken)}" if broken else f"all {len(outcomes)} settings passed")
    return 1 if broken else 0


def _line(done: Outcome) -> str:
    state = f"{len(done.failed)} failed" if done.failed else "passed"
    return f"{done.name:<18} {state:<10} {done.seconds:>5.0f} s  {done.summary}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
