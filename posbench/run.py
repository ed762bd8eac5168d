"""One run, from a configuration to rows in its folder."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from posbench import build, evaluate, results, runtime, tracking
from posbench.config import Config, EvalConfig
from posbench.corpus import Corpus
from posbench.errors import UserError
from posbench.files import read_rows, replacing, write_json
from posbench.model import Transformer
from posbench.progress import Display, display
from posbench.results import Result
from posbench.run_folder import RunFolder
from posbench.segments import Segments
from posbench.trainer import Trainer, fit

Found = Callable[[Result], None]


def run(config: Config, console: Console) -> RunFolder:
    """Train and evaluate, or what of it is still to be done. Raises UserError."""
    check(config)
    device = runtime.device(config.runtime)
    dtype = runtime.training_dtype(config.runtime, device)
    runtime.set_threads(config.runtime)
    folder = RunFolder.of(config)
    folder.open(config, runtime.provenance(device, dtype))
    if folder.finished:
        console.print(f"{folder.path} is finished; run.overwrite=true trains it again")
        return folder
    name = f"{config.run.name} seed {config.seed}"
    with folder.recording(), display(console, name, config.train.steps) as shown:
        _run(config, folder, shown, device, dtype)
    return folder


def check(config: Config) -> None:
    """Raise UserError for values that no run could use."""
    train, optim = config.train, config.optim
    for name in ("length", "batch", "accumulate", "steps", "checkpoint_every"):
        if getattr(train, name) < 1:
            raise UserError(f"train.{name}={getattr(train, name)} must be at least 1")
    if optim.lr <= 0:
        raise UserError(f"optim.lr={optim.lr} must be positive")
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise UserError(f"optim.betas={optim.betas} must be two numbers in [0, 1)")
    if optim.clip <= 0:
        raise UserError(f"optim.clip={optim.clip} must be positive")
    if not 0 <= optim.warmup <= train.steps:
        raise UserError(f"optim.warmup={optim.warmup} must lie in 0 .. train.steps={train.steps}")
    if config.tracking.every < 1:
        raise UserError(f"tracking.every={config.tracking.every} must be at least 1")
    if config.seed < 0:
        raise UserError(f"seed={config.seed} must not be negative")
    for part in (config.run.name, config.run.experiment):
        if not part or Path(part).is_absolute() or ".." in Path(part).parts:
            raise UserError(f"run.name, run.experiment: {part!r} must be a path below run.root")


def _run(
    config: Config, folder: RunFolder, shown: Display, device: torch.device, dtype: torch.dtype
) -> None:
    started = time.perf_counter()
    shown.say("corpus")
    corpus = build.corpus(config)
    evaluate.check(config.eval, corpus.documents("test"))
    model = build.model(config, corpus.vocabulary).to(device)
    stream = Segments(
        corpus.documents("train"), config.train.length, config.train.batch, config.seed
    )
    autocast = None if dtype is torch.float32 else dtype
    trainer = Trainer(model, stream, config, device, autocast)
    tracker = tracking.start(
        config.tracking,
        folder=folder.path,
        name=f"{config.run.name}-seed{config.seed}",
        group=config.run.experiment,
        settings=dataclasses.asdict(config),
        resume_id=tracking.saved_id(folder.path),
    )
    code = 1
    try:
        torch.manual_seed(config.seed)
        runtime.reset_peak_memory(device)
        shown.say("training")

        def watch(row: dict[str, float]) -> None:
            shown.step(row)
            tracker.log(row, int(row["step"]))

        fit(trainer, folder.path, watch)
        peak = runtime.peak_memory(device)

        def found(result: Result) -> None:
            shown.say(f"scored {result.protocol} {result.length}")

        shown.say("evaluating")
        evaluate_into(folder.path, model, corpus, config.eval, device, found)
        summary = summarise(config, folder.path, corpus, model, peak)
        summary["seconds"] = time.perf_counter() - started
        write_json(folder.path / "summary.json", summary)
        tracker.summary(_row(folder.path))
        code = 0
    finally:
        tracker.finish(code)


def evaluate_into(
    folder: Path,
    model: Transformer,
    corpus: Corpus,
    config: EvalConfig,
    device: torch.device,
    found: Found,
) -> list[Result]:
    """Score every protocol and length; each result goes into the folder as soon as it is there."""
    (folder / "losses").mkdir(exist_ok=True)
    rows = []
    for result, losses in evaluate.evaluate(
        model, corpus.documents("test"), corpus.byte_lengths, config, device
    ):
        if losses is not None:
            name = f"{result.protocol}-{result.length}-{result.targets}.npy"
            with replacing(folder / "losses" / name) as temporary, temporary.open("wb") as file:
                np.save(file, losses.astype(np.float32), allow_pickle=False)
        results.append(folder, result)
        found(result)
        rows.append(result)
    return rows


def summarise(
    config: Config, folder: Path, corpus: Corpus, model: Transformer, peak: int
) -> dict[str, object]:
    """What the run cost and what its numbers rest on."""
    positional = sum(p.numel() for p in model.encoding.parameters())
    speeds = [row["tokens_per_second"] for row in read_rows(folder / "metrics.jsonl")]
    train = config.train
    return {
        "corpus": corpus.name,
        "corpus_hash": corpus.hash,
        "vocabulary": corpus.vocabulary,
        "parameters": sum(p.numel() for p in model.parameters()),
        "positional_parameters": positional,
        "attention": model.kernel,
        "tokens_trained": train.steps * train.batch * train.length * train.accumulate,
        "train_tokens_per_second": statistics.median(speeds),
        "train_peak_memory": peak,
    }


def _row(folder: Path) -> dict[str, float]:
    """The run's line of the table, for the tracker."""
    return {
        f"{result.protocol}/perplexity/{result.length}": result.perplexity
        for result in results.read(folder)
        if result.perplexity is not None
    }
