"""Everything worth knowing of posbench on a GPU, in at most 8 minutes: scripts/gpu_check.sh

    python scripts/gpu_check.py [--out FOLDER] [--budget 480] [--only facts flex]
        [--device cpu --rehearse]

Each part (scripts/gpu/plan.py) runs in processes of its own with a limit, and whatever fails is
recorded while the others go on. gpu_check.json is written anew after each part,
gpu_check.log has what they printed. The exit code is 0 if everything is ok. --rehearse: the same
in tiny sizes, for a machine without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from posbench.machine.files import read_rows, write_json
from scripts.gpu import watch
from scripts.gpu.part import Part, Plan, Row, Settings, attempt, plan_of

BUDGET = 480.0  # seconds
LEAST = 5.0  # seconds, with less left than which nothing is begun
NAMED = 6  # failures that a summary names
WIDTH = 200  # of a failure's line
LOGGED = 200_000  # characters of each process
STATES = ("skipped", "failed", "unfinished", "ok")


@dataclasses.dataclass
class Check:
    """The parts so far, and the file that they are written to."""

    out: Path
    settings: Settings
    plan: str
    budget: float
    started: float = dataclasses.field(default_factory=time.time)
    parts: dict[str, Row] = dataclasses.field(default_factory=dict)

    def group(self, parts: Sequence[Part]) -> None:
        """Run what there is time for; the file is written whatever happens."""
        begun = time.time()
        deadline = self.started + self.budget
        if begun + LEAST > deadline:
            why = f"the budget of {self.budget:.0f} s was used up"
            self.parts |= {part.name: skipped(why) for part in parts}
            self.write()
            return
        print(f"{begun - self.started:4.0f} s  {', '.join(part.name for part in parts)} ...")
        sys.stdout.flush()
        left = {part.name: part for part in parts}
        try:
            for part in watch.run(parts, self.settings, self.plan, deadline):
                self._over(left.pop(part.name), time.time() - begun)
        finally:
            for part in left.values():  # interrupted
                self._over(part, time.time() - begun)

    def _over(self, part: Part, seconds: float) -> None:
        found = outcome(part, Path(self.settings.folder))
        self.parts[part.name] = found | {"seconds": round(seconds, 1)}
        self._log(part)
        self.write()

    def write(self, finished: bool = False) -> None:
        content = {
            "started": datetime.datetime.fromtimestamp(self.started).isoformat("T", "seconds"),
            "seconds": round(time.time() - self.started, 1),
            "budget": self.budget,
            "device": self.settings.device,
            "rehearsal": self.settings.rehearse,
            "finished": finished,
            "ok": self.ok,
            "parts": self.parts,
        }
        write_json(self.out / "gpu_check.json", content)

    @property
    def ok(self) -> bool:
        return all(part["state"] == "ok" for part in self.parts.values())

    def _log(self, part: Part) -> None:
        with (self.out / "gpu_check.log").open("a", encoding="utf-8") as log:
            for path in sorted(Path(self.settings.folder).glob(f"{part.name}.*.log")):
                log.write(f"=== {path.stem}\n{path.read_text(errors='replace')[-LOGGED:]}\n")


def skipped(why: str) -> Row:
    return {"state": "skipped", "reason": why, "seconds": 0, "seen": "", "rows": []}


def outcome(part: Part, folder: Path) -> Row:
    """All rows of a part, and what they come to."""
    paths = sorted(folder.glob(f"{part.name}.*.jsonl"))
    written = [row for path in paths for row in read_rows(path)]
    rows = [row for row in written if "name" in row]
    planned: dict[str, bool] = {}
    for row in written:
        planned |= row.get("planned", {})
    tried = {row["name"] for row in rows}
    missed = [name for name in planned if name not in tried]
    failed = [row["name"] for row in rows if not row["ok"]]
    needed = [name for name in missed if not planned[name]]
    told = attempt("seen", lambda: {"seen": part.seen([row for row in rows if row["ok"]])})
    state = "failed" if failed or not rows else "unfinished" if needed else "ok"
    return {
        "state": state,
        "reason": reason(rows, failed, needed),
        "limit": part.limit,
        "seen": told.get("seen") or told.get("error", ""),
        "failed": failed,
        "not_reached": missed,
        "rows": rows,
    }


def reason(rows: list[Row], failed: list[str], needed: list[str]) -> str | None:
    """Why a part is not ok, in a line."""
    if not rows:
        return "nothing was tried: its processes had no time to begin"
    said = []
    if failed:
        said.append(f"{len(failed)} of {len(rows)} failed")
    if needed:
        said.append(f"{len(needed)} not reached in time")
    return ", ".join(said) or None


def summary(check: Check) -> str:
    """A line a part, its failures, and the tables below."""
    lines = []
    for name, part in check.parts.items():
        told = "; ".join(filter(None, (part["reason"], part["seen"])))
        lines.append(f"{name:<11} {part['state']:<10} {part['seconds']:>6.0f} s  {told}")
        bad = [row for row in part["rows"] if not row["ok"]][:NAMED]
        lines += [f"    {row['name']}: {row.get('error', 'failed')}"[:WIDTH] for row in bad]
    states = [part["state"] for part in check.parts.values()]
    counts = {state: states.count(state) for state in STATES}
    lines.append(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    return "\n".join(lines)


def only(plan: Plan, names: Sequence[str] | None) -> Plan:
    """The named parts. Raises SystemExit for a name that no part has."""
    known = [part.name for group in plan for part in group]
    if unknown := set(names or ()) - set(known):
        sys.exit(f"error: {', '.join(sorted(unknown))}: no such part ({', '.join(known)})")
    kept = [[p for p in group if names is None or p.name in names] for group in plan]
    return [group for group in kept if group]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu_check"))
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds")
    parser.add_argument("--only", nargs="+", help="names of parts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes")
    parser.add_argument("--plan", default="scripts.gpu.plan", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "gpu_check.log").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
        settings = Settings(asked.device, asked.rehearse, folder)
        plan = only(plan_of(asked.plan, settings), asked.only)
        check = Check(asked.out.resolve(), settings, asked.plan, asked.budget)
        check.parts = {part.name: skipped("not begun") for group in plan for part in group}
        for group in plan:
            check.group(group)
        check.write(finished=True)
    print(summary(check))
    print(f"written: {check.out / 'gpu_check.json'}")
    return 0 if check.ok else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was found is written
    sys.exit(main())
