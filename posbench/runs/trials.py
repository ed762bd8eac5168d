"""posbench tune: train each trial of an encoding, score it on the validation split, record it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from rich.console import Console

from posbench import tracking
from posbench.config import Config, EvalConfig, TuneCommand
from posbench.corpus.cache import Corpus
from posbench.corpus.from_config import build_corpus
from posbench.errors import UserError
from posbench.evaluation import protocols
from posbench.evaluation.score import evaluate
from posbench.machine import provenance, runtime
from posbench.model import from_config
from posbench.objectives import objective
from posbench.runs import run, tuning
from posbench.runs.checks import check
from posbench.runs.tuning import Record, Trial, Values
from posbench.terminal.progress import display
from posbench.training.loop import Diverged, fit


def tune(config: TuneCommand, console: Console) -> Record:
    """Run the trials that are missing, and return the complete record.

    Raises UserError for a space that is none, and if a record of another configuration is there.
    """
    check(config)
    _require_no_tuned(config)
    device = runtime.device(config.runtime.device)
    dtype = runtime.training_dtype(config.runtime.dtype, device)
    runtime.keep_freed_memory()
    runtime.set_threads(config.runtime.threads)
    runtime.limit_memory(config.runtime.memory_fraction, device)
    values, learns = tuning.points(config), from_config.learns(config)
    corpus = build_corpus(
        config,
        lambda what: console.print(
            f"{config.run.name}  corpus: {what}", highlight=False, markup=False
        ),
    )
    judged = _judged(config)
    protocols.check(judged, corpus.documents("validation"), objective(config).two_sided)
    with _alone(tuning.path(config)) as place:
        origin = provenance.here(device, dtype) | {"corpus_hash": corpus.hash}
        budget = _budget(config, judged, corpus)
        fresh = Record(tuning.settings(config), budget, [], origin)
        record = _begun(config, place, fresh)
        record.budget = budget
        for number, changes in list(enumerate(values))[len(record.trials) :]:
            trial = f"{config.run.name} trial {number + 1} of {len(values)}"
            changed = tuning.changed(config, changes)
            loss = _try(changed, judged, corpus, device, place, trial, console)
            record.trials.append(Trial(changes, loss))
            tuning.write(place, record)
            said = "diverged" if loss is None else f"validation loss {loss:.4f}"
            told = f"{trial}: {tuning.label(changes, learns)}: {said}"
            console.print(told, highlight=False, markup=False)
        tuning.write(place, record)
    _ = record.chosen  # an encoding whose trials all diverged is a failure
    return record


def why_unfinished(config: TuneCommand) -> str | None:
    """Why an encoding's trials are not finished; None if they are."""
    record = tuning.read(tuning.path(config))
    if record is None:
        return "not begun"
    if differing := tuning.differences(record.settings, tuning.settings(config)):
        return f"{tuning.path(config)} is of another set-up: {', '.join(differing)}"
    if len(record.trials) < config.tune.trials:
        return f"{len(record.trials)} of {config.tune.trials} trials are done"
    if all(trial.loss is None for trial in record.trials[: config.tune.trials]):
        return f"all {config.tune.trials} trials diverged"
    return None


def _require_no_tuned(config: TuneCommand) -> None:
    """Raise UserError for tuned=true and for tracking, neither of which trials can have."""
    if config.tuned.lower() == "true":
        raise UserError("tuned=true is for posbench train; posbench tune starts from untuned")
    if tracking.wanted(config.tracking):
        tracked = f"tracking.to={config.tracking.to} tracking.wandb={config.tracking.wandb}"
        raise UserError(f"{tracked}: trials are not tracked")


def _judged(config: TuneCommand) -> EvalConfig:
    """Evaluation settings of a trial: the training length only, so that the choice cannot see what
    is measured later."""
    length = config.train.length
    return dataclasses.replace(
        config.eval,
        protocols=["fixed_targets"],
        lengths=[length],
        targets=min(config.eval.targets, length),
        blocks=config.tune.blocks,
    )


def _budget(config: TuneCommand, judged: EvalConfig, corpus: Corpus) -> Values:
    train = config.train
    return {
        "trials": config.tune.trials,
        "lr": config.tune.lr,
        "lr_multiplier": config.tune.lr_multiplier,
        "tokens_per_trial": train.steps * train.batch * train.length * train.accumulate,
        "seed": config.seed,
        "judged_by": f"validation loss at length {train.length}, {judged.blocks} blocks of "
        f"{judged.targets} targets",
        "corpus_hash": corpus.hash,
    }


def _begun(config: TuneCommand, place: Path, fresh: Record) -> Record:
    """The record to resume. Raises UserError for one of another configuration or budget."""
    there = None if config.run.overwrite else tuning.read(place)
    if there is None:
        return fresh
    differing = tuning.differences(there.settings, fresh.settings)
    differing += tuning.differences(_unchanging(there), _unchanging(fresh))
    wanted = tuning.points(config)[: len(there.trials)]
    tried = [trial.values for trial in there.trials][: len(wanted)]
    if differing or wanted != tried:
        what = ", ".join(differing) or "another space"
        raise UserError(
            f"{place} is of another set-up: {what}; choose another run.experiment, or replace "
            "it with run.overwrite=true"
        )
    return there


def _unchanging(record: Record) -> Values:
    """The settings, besides the configuration, that all trials of a record share."""
    budget = {key: value for key, value in record.budget.items() if key != "trials"}
    return budget | {"dtype": record.provenance["dtype"]}


def _try(
    config: Config,
    judged: EvalConfig,
    corpus: Corpus,
    device: torch.device,
    place: Path,
    name: str,
    console: Console,
) -> float | None:
    """The validation loss of one training run; None where it diverges. An interrupted one resumes.

    Its folder is removed when it is finished: a trial is kept as a row of the record only.
    """
    content = json.dumps(dataclasses.asdict(config), sort_keys=True, default=str)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    folder = place.with_suffix("") / digest
    folder.mkdir(parents=True, exist_ok=True)
    dtype = runtime.training_dtype(config.runtime.dtype, device)
    trainer = run.make_trainer(config, corpus, device, dtype)
    with display(console, name, config.train.steps) as shown:
        torch.manual_seed(config.seed)
        try:
            fit(trainer, folder, shown.step, lambda row: None)
            documents = corpus.documents("validation")
            found = evaluate(trainer.model, documents, corpus.byte_lengths, judged, device)
            ((result, _, _),) = found
            loss = result.nll / (result.tokens or 1) if result.nll is not None else math.nan
        except Diverged:
            loss = math.nan
    shutil.rmtree(folder)
    return loss if math.isfinite(loss) else None


@contextmanager
def _alone(place: Path) -> Iterator[Path]:
    lock = FileLock(place.with_name(f".{place.name}.lock"), timeout=0)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(f"{place}: another process is tuning this encoding") from error
    except OSError as error:
        raise UserError(f"{place}: cannot be written ({error.strerror})") from error
    try:
        yield place
    finally:
        lock.release()
