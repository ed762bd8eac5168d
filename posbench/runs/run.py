"""One run, from a configuration to rows in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from posbench import tracking
from posbench.config import Config, EvalConfig
from posbench.corpus.cache import Corpus
from posbench.corpus.from_config import build_corpus
from posbench.corpus.segments import Segments, left_out
from posbench.errors import UserError
from posbench.evaluation import probes, protocols, results
from posbench.evaluation.results import Result
from posbench.evaluation.score import evaluate
from posbench.machine import distributed, provenance, runtime
from posbench.machine.distributed import ALONE, World
from posbench.machine.files import read_rows, write_json
from posbench.model import footprint, from_config
from posbench.model.transformer import Transformer
from posbench.objectives import objective
from posbench.runs import mirror, tuning
from posbench.runs.checks import check, check_evaluation
from posbench.runs.run_folder import RunFolder
from posbench.speed.share import matmul_share
from posbench.terminal.progress import Display, display
from posbench.terminal.tables import counts
from posbench.training.loop import fit
from posbench.training.optim import positional
from posbench.training.trainer import Trainer

Found = Callable[[Result], None]


@distributed.shared()
def run(config: Config, console: Console) -> RunFolder:
    """Train and evaluate in all processes; a run that began resumes, a finished one is left alone.

    Raises UserError; one about the configuration leaves no trace in the run's folder.
    """
    world = distributed.world()
    with world.together():
        asked = config.tuned.lower()
        config, tuned = validated(config)
    folder = RunFolder.of(config)
    done = world.on_first(lambda: folder.holds(config) and folder.finished)
    if done and not config.run.overwrite:
        said = f"{folder.path} is finished; run.overwrite=true trains it again"
        console.print(said, markup=False)
        return folder
    with world.together():
        device = world.device(runtime.device(config.runtime.device))
        dtype = runtime.training_dtype(config.runtime.dtype, device)
        runtime.keep_freed_memory()
        runtime.set_threads(config.runtime.threads, world.local_size)
        runtime.limit_memory(config.runtime.memory_fraction, device)
    name = f"{config.run.name} seed {config.seed}"
    if asked != "false":
        said = "untuned: posbench tune has chosen nothing for this very set-up"
        if tuned is not None:
            chosen = tuning.label(tuned.chosen, from_config.learns(config))
            said = f"tuned, {tuned.trials} trials: {chosen}"
        console.print(f"{name}: {said}", markup=False, highlight=False)
    with display(console, name, config.train.steps) as shown:
        shown.phase("corpus")
        with world.together():
            corpus = build_corpus(config, lambda what: shown.phase(f"corpus: {what}"))
            check_evaluation(config.eval, corpus, objective(config).two_sided)
            model = f"width {config.model.width}, {config.model.layers} layers"
            with runtime.memory_for(f"the model, {model}", "try a smaller one"):
                trainer = make_trainer(config, corpus, device, dtype, world)
            remarks = _remarks(corpus, config)
            if remarks:
                shown.message(f"corpus {corpus.name}: {counts(remarks)}")
            origin = provenance.here(device, dtype) | {"corpus_hash": corpus.hash}
            origin |= {"corpus_remarks": remarks, "processes": world.size}
            origin["tuning"] = None if tuned is None else dataclasses.asdict(tuned)
        opened = world.within(lambda: folder.opened(config, origin))
        with opened, world.within(folder.recording), world.noticing():
            _run(trainer, folder, corpus, shown, origin)
    return folder


def validated(config: Config) -> tuple[Config, tuning.Tuning | None]:
    """The configuration with the values that posbench tune chose for it.

    Raises UserError for every mistake that can be found before text is read or weights are made.
    """
    check(config)
    config, tuned = tuning.applied(config)
    from_config.encoding_of(config)
    positional(config)
    return config, tuned


def why_unfinished(config: Config) -> str | None:
    """Why a run is not finished; None if it is."""
    try:
        config, _ = validated(config)
        return RunFolder.of(config).why_unfinished(config)
    except UserError as error:
        return str(error)


def record_failure(config: Config, error: Exception) -> None:
    """Write a failure that came before the run began into its folder, unless it has results."""
    with contextlib.suppress(UserError):
        config, _ = tuning.applied(config)
    RunFolder.of(config).record_failure(config, error)


def make_trainer(
    config: Config,
    corpus: Corpus,
    device: torch.device,
    dtype: torch.dtype,
    world: World = ALONE,
) -> Trainer:
    """A trainer with its model, data and optimizer.

    Raises UserError for an encoding with too few positions and fewer windows than processes.
    """
    model = from_config.model(config, corpus.vocabulary).to(device)
    limit = model.max_length
    if limit is not None and config.train.length > limit:
        raise UserError(
            f"encoding ({type(model.encoding).__name__}) has {limit} positions, fewer than "
            f"train.length={config.train.length}"
        )
    train = config.train
    if train.batch < world.size:
        raise UserError(f"train.batch={train.batch} is less than the {world.size} processes")
    stream = Segments(corpus.documents("train"), train.length, train.batch, config.seed)
    autocast = None if dtype is torch.float32 else dtype
    share = dataclasses.replace(train, batch=-(-train.batch // world.size))
    footprint.require_training(model, config.model, share, device, dtype.itemsize)
    return Trainer(model, stream, config, device, autocast, world)


def _run(
    trainer: Trainer, place: RunFolder, corpus: Corpus, shown: Display, now: dict[str, object]
) -> None:
    """Train, evaluate and write. now: the provenance of this process."""
    config, world, folder = trainer.config, trainer.world, place.path
    leads = world.leads
    tracker = mirror.tracker(config, folder, corpus.name) if leads else tracking.Nothing()
    code = 1
    try:
        trainer.seed()
        shown.phase("training")
        runtime.reset_peak_memory(trainer.device)

        def begin(step: int) -> None:
            if changes := place.begin_part(step, now):
                shown.message(f"goes on after step {step} with {', '.join(changes)}")

        fit(trainer, folder, shown.step, lambda row: tracker.log(row, "step"), begin)
        world.on_first(lambda: place.end_part(trainer.step))
        shown.phase("evaluating")
        world.on_first(lambda: results.forget(folder))  # an evaluation that was cut off
        evaluate_into(
            folder,
            trainer.model,
            corpus,
            config.eval,
            trainer.device,
            lambda result: shown.phase(f"scored length {result.length}"),
            world=world,
        )

        def conclude() -> None:
            summary = summarise(trainer, folder, corpus)
            write_json(folder / "summary.json", summary)
            shown.message(_speed(trainer, summary))
            mirror.evaluation(folder, tracker)
            mirror.checkpoint(config, folder, tracker)

        world.on_first(conclude)
        code = 0
    finally:
        tracker.finish(code)


def _remarks(corpus: Corpus, config: Config) -> dict[str, int]:
    """By kind, how much of the corpus is left out or is there twice."""
    counted = corpus.remarks | left_out(corpus.documents("train"), config.train.length)
    counted |= protocols.left_out(config.eval, corpus.documents("test"))
    return {kind: count for kind, count in counted.items() if count}


def evaluate_into(
    folder: Path,
    model: Transformer,
    corpus: Corpus,
    config: EvalConfig,
    device: torch.device,
    found: Found,
    extension: str | None = None,
    world: World = ALONE,
) -> set[str]:
    """Score every protocol and length, and probe; each result is written as soon as it is there.

    All processes of world score, rank 0 writes. extension: the name of the context extension, if
    there is one. Returns the hashes of the scored tokens and of the probes' trials.
    """
    hashes = set[str]()
    what = f"evaluation with eval.batch_tokens={config.batch_tokens}"
    with runtime.memory_for(what, "try fewer, or shorter eval.lengths"):
        for result, windows, losses in evaluate(
            model,
            corpus.documents("test"),
            corpus.byte_lengths,
            config,
            device,
            corpus.words("test"),
            world,
        ):
            result = dataclasses.replace(result, extension=extension)
            with world.together():
                if world.leads:
                    results.save_losses(folder, result, windows, losses)
                    results.append(folder, result)
            found(result)
            hashes.add(result.targets or "")
    for probed in probes.probe(
        model,
        corpus.documents("test"),
        corpus.vocabulary,
        config.probes,
        config.probe_distances,
        config.probe_trials,
        config.batch_tokens,
        device,
        world,
    ):
        with world.together():
            if world.leads:
                results.append_probe(folder, dataclasses.replace(probed, extension=extension))
        hashes.add(probed.trials_hash)
    return hashes


def summarise(trainer: Trainer, folder: Path, corpus: Corpus) -> dict[str, Any]:
    """The content of summary.json: sizes, speed and memory of the run."""
    model, train = trainer.model, trainer.config.train
    rows = read_rows(folder / "metrics.jsonl")
    rate = statistics.median(row["tokens_per_second"] for row in rows)
    return {
        "corpus": corpus.name,
        "corpus_hash": corpus.hash,
        "vocabulary": corpus.vocabulary,
        "tokenizer": type(corpus.tokenizer).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "positional_parameters": sum(p.numel() for p in model.encoding.parameters()),
        "objective_parameters": 0
        if model.decoder is None
        else sum(p.numel() for p in model.decoder.parameters()),
        "attention": model.kernel,
        "tokens_trained": train.steps * train.batch * train.length * train.accumulate,
        "train_tokens_per_second": rate,
        "train_matmul_share": matmul_share(trainer, rate),
        "train_peak_memory": max(row["peak_memory"] for row in rows),
    }


def _speed(trainer: Trainer, summary: dict[str, Any]) -> str:
    dtype = str(trainer.dtype).removeprefix("torch.")
    rate, share = summary["train_tokens_per_second"], summary["train_matmul_share"]
    return f"trained at {rate:,.0f} tok/s, {share:.0%} of the rate of {dtype} matrix products"
