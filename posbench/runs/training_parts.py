"""The parts of a training that resumed on another machine or under other settings.

provenance.json has them under "parts", in order: {"from": 0, "to": 800, "threads": 1, ...}, each
from its first step's predecessor to its last step; `to` is null while a part goes on. A run that
goes on under the same conditions goes on with the same numbers, and keeps its one part. A part
without a step is an evaluation that went on elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posbench.config import checks

# Any of these can change the last digits of a sum, and with them what follows.
KEPT = (
    *("threads", "instructions", "variables", "dtype", "processes", "commit", "torch"),
    *("device", "device_name"),
)
STEPS = {"from": int, "to": int | None}

Part = dict[str, Any]


def conditions(provenance: Mapping[str, Any]) -> Part:
    """The entries of a provenance that a part records."""
    told = {"torch": (provenance.get("packages") or {}).get("torch"), **provenance}
    return {key: told[key] for key in KEPT if told.get(key) is not None}


def from_provenance(provenance: Mapping[str, Any]) -> list[Part]:
    """The parts that a provenance records; of an older run folder, which has none, a single one.

    Raises ValueError if they are damaged.
    """
    found = provenance.get("parts") or [{"from": 0, "to": None, **conditions(provenance)}]
    try:
        for part in found:
            checks.require_types({"from": None, "to": None, **part}, STEPS)
    except (ValueError, TypeError) as error:
        raise ValueError(f"parts: not those of a training ({error})") from error
    return list(found)


def resumed(before: Sequence[Part], step: int, now: Mapping[str, Any]) -> list[Part]:
    """The parts after training resumes after a step under the conditions of a provenance.

    Parts beyond the step are dropped: their checkpoints are gone.
    """
    kept = [dict(part) for part in before if part["from"] < step]
    here = {"from": step, "to": None, **conditions(now)}
    if not kept:
        return [here]
    same = not changes(kept[-1], here)
    kept[-1]["to"] = None if same else step
    return kept if same else [*kept, here]


def changes(before: Part, now: Part) -> list[str]:
    """ "threads 2 (1 before)", for each condition that both parts tell and that differs."""
    return [
        f"{key} {now[key]} ({before[key]} before)"
        for key in KEPT
        if key in before and key in now and before[key] != now[key]
    ]


def described(parts: Sequence[Part]) -> str:
    """The parts in words, with what differs among them; empty for a single part.

    "steps 1 to 400: threads 1; steps 401 to 800: threads 2"
    """
    if len(parts) < 2:
        return ""
    differing = [key for key in KEPT if any(p.get(key) != parts[0].get(key) for p in parts)]
    return "; ".join(f"{_steps(p)}: {_listed(p, differing)}" for p in parts)


def _steps(part: Part) -> str:
    first, last = part["from"] + 1, part.get("to")
    if last is None:
        return f"steps from {first}"
    return f"steps {first} to {last}" if first <= last else "evaluation"


def _listed(part: Part, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {part.get(key, 'unknown')}" for key in keys)
