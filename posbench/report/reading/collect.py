"""Run folders on disk, read into Run records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posbench.config import checks
from posbench.errors import UserError
from posbench.evaluation import results
from posbench.evaluation.results import ProbeResult, Result, Row
from posbench.machine import paths
from posbench.runs import training_parts
from posbench.runs.run_folder import RunFolder
from posbench.runs.tuning import label
from posbench.terminal.streams import printable

COUNTS = (
    *("vocabulary", "parameters", "positional_parameters", "objective_parameters"),
    "tokens_trained",
)
RATES = ("train_tokens_per_second", "train_peak_memory")
SUMMARY = {"corpus": str} | dict.fromkeys(COUNTS, int) | dict.fromkeys(RATES, float)
TOLD = ("commit", "device", "dtype", "corpus_hash")
PROVENANCE = {"tuning": dict | None, "corpus_remarks": dict[str, int]} | dict.fromkeys(
    TOLD, str | None
)
TUNING = {"trials": int, "budget": dict, "chosen": dict, "untuned": dict}


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    folder: Path
    config: dict[str, Any]
    status: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]
    results: list[Result]
    probes: list[ProbeResult] = field(default_factory=list)

    @property
    def experiment(self) -> str:
        return str(self.config["run"]["experiment"])

    @property
    def name(self) -> str:
        return str(self.config["run"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def lr_multiplier(self) -> float:
        """Learning-rate multiplier of positional parameters; of a mix the largest; 1 if none."""
        if not self._has_positional_parameters:
            return 1.0
        return max(_multipliers(self.config["encoding"]), default=1.0)

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What posbench tune chose for the run; None: the run was not tuned."""
        return self.provenance.get("tuning")

    @property
    def tuned(self) -> str:
        """ "untuned", or "tuned, 6 trials: lr 0.006"."""
        if self.tuning is None:
            return "untuned"
        chosen = label(self.tuning["chosen"], self._has_positional_parameters)
        return f"tuned, {self.tuning['trials']} trials: {chosen}"

    @property
    def parts(self) -> str:
        """Where each part of the training ran, in words; empty where that never changed."""
        return training_parts.described(training_parts.from_provenance(self.provenance))

    @property
    def commits(self) -> set[str]:
        """The commits of posbench that the parts of the training ran with."""
        return {
            str(part.get("commit")) for part in training_parts.from_provenance(self.provenance)
        }

    @property
    def _has_positional_parameters(self) -> bool:
        """Whether there are positional parameters; True where the summary does not say."""
        return self.summary.get("positional_parameters") != 0

    @property
    def why_incomplete(self) -> str | None:
        """Why the run has no complete results, e.g. "failed: the loss is nan at step 3"."""
        state, reason = self.status.get("state", "not started"), self.status.get("reason")
        if state == "done":
            return None
        return f"{state}: {reason}" if reason else str(state)


def _multipliers(settings: dict[str, Any]) -> Iterator[float]:
    if "optim" in settings:
        yield float((settings["optim"] or {}).get("lr_multiplier", 1.0))
    for value in settings.values():
        if isinstance(value, dict):
            yield from _multipliers(value)


def folders(patterns: Iterable[str]) -> list[Path]:
    """The run folders at or below each folder or glob, sorted, each once.

    Raises UserError for a path that is none.
    """
    return run_folders_below(
        place for pattern in patterns for place in paths.matching("runs", pattern)
    )


def run_folders_below(places: Iterable[Path]) -> list[Path]:
    """The run folders at or below each place, sorted, each once."""
    found = {path.parent for place in places for path in place.rglob("provenance.json")}
    return sorted(path for path in found if (path / "config.yaml").is_file())


def runs(places: Iterable[Path]) -> list[Run]:
    """The records of run folders. Raises UserError for a folder whose files cannot be read."""
    return [_run(RunFolder(path)) for path in places]


def _run(folder: RunFolder) -> Run:
    """The record of a folder, its texts made printable: a run folder may come from anybody."""
    try:
        run = Run(
            folder=folder.path,
            config=_shown(folder.config()),
            status=_shown(folder.status),
            summary=_shown(folder.summary),
            provenance=_shown(folder.provenance),
            results=[_row(result) for result in results.read(folder.path)],
            probes=[_row(result) for result in results.read_probes(folder.path)],
        )
        _require_keys(run)
        _require_types(run)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = printable(str(error)) or type(error).__name__
        raise UserError(f"{folder.path}: cannot be read ({reason}); leave it out") from error
    return run


def _require_types(run: Run) -> None:
    """Raise ValueError for what a report cannot count or compare."""
    checks.require_types(run.summary, SUMMARY)
    checks.require_types(run.provenance, PROVENANCE)
    checks.require_types(run.status, {"state": str, "reason": str | None})
    _ = run.lr_multiplier, run.parts
    if (tuning := run.tuning) is not None:
        checks.require_types(tuning, TUNING)
        if missing := TUNING.keys() - tuning.keys():
            raise ValueError(f"tuning: {', '.join(sorted(missing))} is missing")


def _shown(value: Any) -> Any:
    """A copy of a JSON value in which every string, keys included, is printable."""
    if isinstance(value, dict):
        return {_shown(key): _shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _row(result: Row) -> Row:
    return dataclasses.replace(result, **_shown(dataclasses.asdict(result)))


def _require_keys(run: Run) -> None:
    """Raise UserError for a configuration that lacks what a report needs."""
    needed = "run.experiment run.name seed train.length eval.protocols eval.lengths encoding"
    for key in needed.split():
        place: Any = run.config
        for part in key.split("."):
            place = place.get(part) if isinstance(place, dict) else None
        if place in (None, []):
            raise UserError(f"{run.folder / 'config.yaml'}: {key} is missing; leave it out")
