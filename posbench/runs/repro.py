"""posbench repro: replay the first steps of a run from its folder and compare the numbers.

Nothing is written into the folder. The corpus must be the run's own; device, dtype and threads
are the run's where not asked otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from posbench import config as schemas
from posbench.config import Config, MachineChanges, ReproCommand, RuntimeConfig
from posbench.corpus.cache import Corpus
from posbench.corpus.from_config import build_corpus
from posbench.errors import UserError
from posbench.evaluation import results
from posbench.evaluation.score import evaluate
from posbench.machine import provenance, runtime
from posbench.machine.files import read_rows
from posbench.runs import training_parts
from posbench.runs.checks import check
from posbench.runs.run import make_trainer
from posbench.runs.run_folder import RunFolder, flatten
from posbench.terminal.progress import display
from posbench.training import checkpoint
from posbench.training.loop import step_needs
from posbench.training.trainer import NotFinite, Trainer

QUANTITIES = {"loss": "loss", "grad_norm": "gradient norm"}  # of a row of metrics.jsonl

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A number of the run, and the number of the replay."""

    quantity: str
    step: int
    there: float
    here: float

    @property
    def relative(self) -> float:
        """The difference over the run's number; 0 only where they are equal to the last bit."""
        if self.there == self.here:
            return 0.0
        return abs(self.here - self.there) / abs(self.there) if self.there else math.inf


@dataclasses.dataclass(frozen=True)
class Replay:
    """The outcome of a replay."""

    folder: Path
    steps: int  # replayed
    of: int  # of the whole run
    pairs: list[Pair]  # by quantity, then step
    machine: dict[str, tuple[object, object]]  # what differs: name -> (the run's, here)
    parts: str = ""  # in words, of a run that went on elsewhere
    first_part: int | None = None  # its last step

    @property
    def same(self) -> bool:
        return all(pair.relative == 0 for pair in self.pairs)

    def by_quantity(self) -> dict[str, list[Pair]]:
        grouped: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            grouped.setdefault(pair.quantity, []).append(pair)
        return grouped


def replay(asked: ReproCommand, console: Console) -> Replay:
    """Raises UserError for a folder without logged rows, and if the corpus has changed."""
    folder = RunFolder(Path(asked.run))
    config = folder.typed()
    config.tracking.to, config.tracking.wandb = "wandb", "disabled"  # nothing is tracked
    check(config)
    rows = _logged(folder, asked.repro.steps)
    steps = rows[-1]["step"]
    config.runtime = _machine(folder, config, asked.runtime)
    device = runtime.device(config.runtime.device)
    dtype = runtime.training_dtype(config.runtime.dtype, device)
    runtime.keep_freed_memory()
    runtime.set_threads(config.runtime.threads)
    with display(console, f"{config.run.name} seed {config.seed}", steps) as shown:
        shown.phase("corpus")
        corpus = build_corpus(config)
        if corpus.hash != folder.provenance.get("corpus_hash"):
            raise UserError(
                f"{folder.path}: was trained on another version of corpus {corpus.name}"
            )
        trainer = make_trainer(config, corpus, device, dtype)
        shown.phase("replaying")
        here: dict[int, Row] = {}
        for row in _steps(trainer, steps, folder):
            here[row["step"]] = row
            shown.step(row)
        pairs = [
            Pair(name, row["step"], row[key], here[row["step"]][key])
            for key, name in QUANTITIES.items()
            for row in rows
        ]
        if asked.repro.score:
            shown.phase("scoring")
            pairs.append(_score(trainer, folder, corpus))
    here_now = provenance.here(device, dtype)
    if "processes" in folder.provenance:
        here_now["processes"] = 1
    machine = differences(folder.provenance, here_now)
    first, *_ = folder.parts
    told = training_parts.described(folder.parts)
    return Replay(folder.path, steps, config.train.steps, pairs, machine, told, first["to"])


def differences(
    there: dict[str, Any], here: dict[str, object]
) -> dict[str, tuple[object, object]]:
    """Name -> (there, here) for each entry in which two provenances differ; None: missing."""
    told, now = flatten(there), flatten(here)
    variables = sorted(key for key in {*told, *now} if key.startswith("variables."))
    for said, found in ((there, told), (here, now)):
        if "variables" in said:  # all that were set
            found |= {key: found.get(key, "not set") for key in variables}
    names = {key: key.removeprefix("packages.").removeprefix("variables.") for key in now}
    return {n: (told.get(k), now[k]) for k, n in names.items() if told.get(k) != now[k]}


def _logged(folder: RunFolder, steps: int) -> list[Row]:
    """The run's rows up to a step, and at least its first two rows."""
    if steps < 1:
        raise UserError(f"repro.steps={steps} must be at least 1")
    path = folder.path / "metrics.jsonl"
    try:
        rows = [
            {"step": int(row["step"])} | {key: float(row[key]) for key in QUANTITIES}
            for row in read_rows(path)
        ]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{path}: not the rows of a training run ({error})") from error
    if not rows:
        raise UserError(f"{folder.path}: has not logged a step yet, so there is none to compare")
    if [row["step"] for row in rows] != sorted({row["step"] for row in rows}):
        raise UserError(f"{path}: its steps are not in order, each once")
    return [row for place, row in enumerate(rows) if place < 2 or row["step"] <= steps]


def _machine(folder: RunFolder, config: Config, asked: MachineChanges) -> RuntimeConfig:
    """Device, dtype and threads as asked for, else the run's; a CPU if its GPU is missing."""
    had = {key: folder.provenance.get(key) for key in ("device", "dtype", "threads")}
    if had["device"] == "cuda" and not torch.cuda.is_available():
        had["device"] = "cpu"
    settings = dataclasses.asdict(config.runtime)
    for values in (had, dataclasses.asdict(asked)):
        settings |= {key: value for key, value in values.items() if value is not None}
    return schemas.plain(settings, RuntimeConfig)


def _steps(trainer: Trainer, steps: int, folder: RunFolder) -> Iterator[Row]:
    """Train from step 0 as `fit` does, with a row for every step."""
    train = trainer.config.train
    tokens = train.batch * train.length * train.accumulate
    torch.manual_seed(trainer.config.seed)
    trainer.model.train()
    for _ in range(steps):
        started = time.perf_counter()
        try:
            with runtime.memory_for(*step_needs(train)):
                loss, norm = trainer.optimize()
        except NotFinite as error:
            raise UserError(f"{folder.path}: the run went on, but here {error}") from error
        rate = tokens / (time.perf_counter() - started)
        yield {"step": trainer.step, "loss": loss, "grad_norm": norm, "tokens_per_second": rate}


def _score(trainer: Trainer, folder: RunFolder, corpus: Corpus) -> Pair:
    """The summed loss of the first length that has one, under the run's last weights."""
    weights = checkpoint.latest(folder.path)
    if weights is None or not folder.finished:
        raise UserError(f"{folder.path}: not finished; leave out repro.score=true")
    checkpoint.load_model(weights, trainer.model)
    told = {(r.protocol, r.length, r.extension, r.targets): r for r in results.read(folder.path)}
    for found, _, _ in evaluate(
        trainer.model,
        corpus.documents("test"),
        corpus.byte_lengths,
        trainer.config.eval,
        trainer.device,
    ):
        there = told.get((found.protocol, found.length, None, found.targets))
        if found.nll is not None and there is not None and there.nll is not None:
            name = f"summed loss of {found.protocol} at length {found.length}"
            return Pair(name, checkpoint.step_of(weights), there.nll, found.nll)
    raise UserError(f"{folder.path}: has no score to compare; leave out repro.score=true")
