"""Which runs can be compared, and what keeps the others apart.

Corpus, tokenizer, model, objective, training, optimizer and dtype must be the same. The encoding
and its optimizer group may differ, a masked model's decoder, and a learning rate that an equal
tuning budget chose.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posbench.config import NOT_ARGUMENTS
from posbench.errors import UserError
from posbench.objectives import DecoderSettings
from posbench.report.reading.collect import Run
from posbench.runs.run_folder import flatten, is_free

COMPARED = ("corpus", "tokenizer", "model", "objective", "train", "optim")
DECODER = ("decoder", *(field.name for field in dataclasses.fields(DecoderSettings)))
SHOWN = 4  # differences named in a reason; the others are counted


@dataclass(frozen=True)
class Group:
    """Runs that can share a table; apart: why other runs of the experiment cannot."""

    runs: list[Run]
    apart: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0].config


def comparable(runs: Sequence[Run]) -> list[Group]:
    """Partition runs into groups, in the order of each group's first run."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[json.dumps([run.experiment, _compared(run)], sort_keys=True)].append(run)
    groups = list(found.values())
    return [Group(group, _apart(group, groups)) for group in groups]


def _compared(run: Run) -> dict[str, Any]:
    """The settings that must be equal for runs to share a table."""
    settings = flatten({part: run.config.get(part, {}) for part in COMPARED})
    decoder = {f"objective.{key}" for key in DECODER}
    kept = {k: value for k, value in settings.items() if not is_free(k) and k not in decoder}
    if run.tuning is not None:  # the optimizer settings before tuning
        kept |= {k: v for k, v in run.tuning["untuned"].items() if k in kept}
    return kept | {key: run.provenance.get(key) for key in ("corpus_hash", "dtype")}


def _apart(group: list[Run], groups: list[list[Run]]) -> tuple[str, ...]:
    """For each other group of the experiment, why it is in another table."""
    here = _compared(group[0])
    reasons = []
    for other in groups:
        if other is group or other[0].experiment != group[0].experiment:
            continue
        there = _compared(other[0])
        keys = [key for key in here | there if here.get(key) != there.get(key)]
        differing = [f"{key} {there.get(key)}, here {here.get(key)}" for key in keys[:SHOWN]]
        more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        count = f"{len(other)} runs are" if len(other) > 1 else f"{other[0].name} is"
        reasons.append(f"{count} in another table: {'; '.join(differing)}{more}")
    return tuple(reasons)


def rows(group: Sequence[Run]) -> dict[str, list[Run]]:
    """Label of a row -> its runs, one a seed. Labels tell settings of one run name apart.

    Raises UserError where two folders hold the same run.
    """
    kinds: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in group:
        kinds[run.name][json.dumps(_settings(run), sort_keys=True)].append(run)
    labelled: dict[str, list[Run]] = {}
    for name, variants in kinds.items():
        flat = [flatten(_settings(runs[0])) for runs in variants.values()]
        for settings, runs in zip(flat, variants.values(), strict=True):
            _require_distinct(runs)
            differing = [k for k in settings if any(o.get(k) != settings[k] for o in flat)]
            suffix = ", ".join(
                f"{key.removeprefix('encoding.').removeprefix('objective.')}={settings[key]}"
                for key in differing
            )
            labelled[f"{name} ({suffix})" if suffix else name] = runs
    return labelled


def decoder(run: Run) -> dict[str, Any]:
    """The settings of a masked model's enhanced decoder; empty where there is none."""
    objective = run.config.get("objective", {})
    if objective.get("decoder") != "enhanced":
        return {}
    return {key: objective[key] for key in DECODER if key in objective}


def _settings(run: Run) -> dict[str, Any]:
    """The settings that define a row: encoding and decoder, and the learning rate if tuned."""
    encoding = {k: v for k, v in run.config["encoding"].items() if k != NOT_ARGUMENTS[1]}
    made = {"encoding": encoding} | ({"objective": used} if (used := decoder(run)) else {})
    if run.tuning is None:
        return made
    return {**made, "tuned": "true", "optim.lr": run.config["optim"]["lr"]}


def _require_distinct(runs: list[Run]) -> None:
    seen: dict[int, Run] = {}
    for run in runs:
        if run.seed in seen:
            raise UserError(
                f"{seen[run.seed].folder} and {run.folder} are both {run.name} seed {run.seed}; "
                "leave one out of runs=[...]"
            )
        seen[run.seed] = run
