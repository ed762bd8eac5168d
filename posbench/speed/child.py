"""The process whose peak RAM is measured: JSON on stdin, a line of JSON on stdout."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

from posbench import config as schemas
from posbench.machine import runtime
from posbench.speed.failure import Failed, told
from posbench.speed.memory import watched


def main() -> None:
    with contextlib.suppress(OSError):  # Linux alone: out of RAM, kill this process first
        Path("/proc/self/oom_score_adj").write_bytes(b"1000")
    asked = json.load(sys.stdin)
    config = schemas.plain(asked["config"], schemas.SpeedCommand)
    runtime.set_threads(config.runtime.threads)
    device = runtime.device(config.runtime.device)
    try:
        with told():
            said = dataclasses.asdict(watched(config, asked["mode"], asked["length"], device))
    except Failed as failed:
        said = {"reason": str(failed)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
