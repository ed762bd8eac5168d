"""posbench train dry_run=true: the jobs, how far each is, and the time and memory of the rest.

Time and memory are measured: a few steps of training, and one batch of windows of each protocol
and length. Jobs that differ in nothing but seed and place are measured once. The corpus is
tokenized and kept, if it was not; nothing else is written.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence

import torch
from rich.console import Console

from posbench.config import Config
from posbench.corpus.cache import Corpus
from posbench.corpus.from_config import build_corpus
from posbench.errors import UserError
from posbench.evaluation import protocols
from posbench.evaluation.score import score
from posbench.machine import runtime
from posbench.objectives import objective
from posbench.runs.checks import check_evaluation
from posbench.runs.run import make_trainer, validated
from posbench.runs.run_folder import RunFolder
from posbench.terminal.tables import Fitted
from posbench.training import checkpoint
from posbench.training.trainer import Trainer

STEPS = 3  # measured, after one that is not


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of an optimizer step and of the whole evaluation; the peak of memory in bytes."""

    step: float
    evaluation: float
    memory: int


def show(configs: Sequence[Config], console: Console) -> None:
    """A table of the jobs. Raises UserError, after it, if some of them cannot run."""
    rows = list[list[str]]()
    measured: dict[str, Cost] = {}
    left, refused = 0.0, 0
    with console.status("measuring") as status:
        for number, asked in enumerate(configs, start=1):
            name = f"{asked.run.name} seed {asked.seed}"
            status.update(f"measuring {name}")
            shown = ["", ""]
            try:
                config, _ = validated(asked)
                state, done = _state(config)
                if state != "done":
                    cost = _cost(config, measured)
                    seconds = (config.train.steps - done) * cost.step + cost.evaluation
                    left += seconds
                    shown = [_time(seconds), f"{cost.memory / 2**20:,.0f} MiB"]
            except UserError as error:
                state, refused = f"cannot run: {error}", refused + 1
            place = str(RunFolder.of(asked).path)
            rows.append([str(number), name, place, state, *shown])
    headers, title = "job run folder state time memory".split(), "dry run: nothing is trained"
    texts, spare = headers[1:4], headers[1:2]  # a folder tells its run
    console.print(Fitted(headers, [rows], title, spare=spare, prose=["state"], left=texts))
    console.print(f"{_time(left)} one after another, on this machine", highlight=False)
    if refused:
        raise UserError(f"{refused} of {len(configs)} jobs cannot run")


def _state(config: Config) -> tuple[str, int]:
    """The state of a run, and how many steps it has done. Raises UserError if it cannot resume."""
    folder = RunFolder.of(config)
    reason = folder.why_unfinished(config)
    if config.run.overwrite or reason == "not begun":
        return ("new" if reason == "not begun" else "begins again"), 0
    if reason is None:
        return "done", config.train.steps
    if not folder.holds(config):
        raise UserError(reason)
    newest = checkpoint.latest(folder.path)
    step = 0 if newest is None else checkpoint.step_of(newest)
    return f"{reason}; goes on from step {step} of {config.train.steps}", step


def _cost(config: Config, measured: dict[str, Cost]) -> Cost:
    """The measured cost, once for equal configurations. Raises UserError as a run would."""
    content = dataclasses.asdict(config) | {"run": None, "seed": None}
    key = json.dumps(content, sort_keys=True, default=str)
    if key not in measured:
        measured[key] = _measure(config)
    return measured[key]


def _measure(config: Config) -> Cost:
    device = runtime.device(config.runtime.device)
    dtype = runtime.training_dtype(config.runtime.dtype, device)
    runtime.keep_freed_memory()
    runtime.set_threads(config.runtime.threads)
    corpus = build_corpus(config)
    check_evaluation(config.eval, corpus, objective(config).two_sided)
    runtime.reset_peak_memory(device)
    trainer = make_trainer(config, corpus, device, dtype)
    torch.manual_seed(config.seed)
    trainer.model.train()
    seconds = []
    for _ in range(1 + STEPS):
        started = time.perf_counter()
        trainer.optimize()
        seconds.append(time.perf_counter() - started)
    evaluation = _evaluation(trainer, corpus, config)
    return Cost(statistics.median(seconds[1:]), evaluation, runtime.peak_memory(device))


def _evaluation(trainer: Trainer, corpus: Corpus, config: Config) -> float:
    """Seconds of all protocols and lengths, each from its first batch of windows."""
    total, documents = 0.0, corpus.documents("test")
    limit = trainer.model.max_length
    for name in config.eval.protocols:
        protocol = protocols.protocol(name, config.eval, trainer.objective.two_sided)
        for length in config.eval.lengths:
            if limit is not None and length > limit:
                continue
            windows = protocol.windows(documents, length)
            some = windows[: max(1, config.eval.batch_tokens // length)]
            started = time.perf_counter()
            score(trainer.model, documents, some, config.eval.batch_tokens, trainer.device)
            total += (time.perf_counter() - started) * len(windows) / len(some)
    return total


def _time(seconds: float) -> str:
    """ "2 h 05 min", "3 min 20 s", "12 s"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
