"""posbench eval: score a finished run again, from its own folder, its context extended or not."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from posbench import config as schemas
from posbench import tracking
from posbench.config import Config
from posbench.corpus.from_config import build_corpus
from posbench.errors import UserError
from posbench.hydra_app.command import command
from posbench.machine import distributed, runtime
from posbench.machine.files import require_own_below
from posbench.model import from_config
from posbench.objectives import objective
from posbench.report.show import show_runs
from posbench.runs import mirror
from posbench.runs.checks import check_evaluation
from posbench.runs.run import evaluate_into
from posbench.runs.run_folder import RunFolder
from posbench.training import checkpoint
from posbench.training.optim import positional


@command("eval")
@distributed.shared()
def evaluate(node: DictConfig) -> None:
    """Score a run in all processes."""
    world = distributed.world()
    asked = schemas.load(node, schemas.EvalCommand)
    console = world.console()
    folder = RunFolder(Path(asked.run))
    with world.together():
        config = folder.typed()
        weights = checkpoint.latest(folder.path)
        if weights is None or not folder.finished:
            raise UserError(
                f"{folder.path}: not finished; repeat its posbench train command first"
            )
        require_own_below(folder.path, read="checkpoints", others="wandb")
        positional(config)  # nothing here trains, but the report tells it
        changes = {k: v for k, v in dataclasses.asdict(asked.eval).items() if v is not None}
        trained = copy.deepcopy(config)
        config.eval = dataclasses.replace(config.eval, **changes)
        if asked.tracking.wandb is not None:
            trained.tracking.wandb = asked.tracking.wandb
        tracking.check(trained.tracking)

        device = world.device(runtime.device(asked.runtime.device))
        runtime.keep_freed_memory()
        runtime.set_threads(asked.runtime.threads, world.local_size)
        extension = None
        if asked.extension is not None:
            config.encoding = from_config.extended(config, asked.extension)
            from_config.encoding_of(config)  # before the corpus
            config.model.attention = "auto"
            extension = _label(asked.extension)
        corpus = build_corpus(config)
        if corpus.hash != folder.summary.get("corpus_hash"):
            raise UserError(
                f"{folder.path}: was trained on another version of corpus {corpus.name}"
            )
        check_evaluation(config.eval, corpus, objective(config).two_sided)
        model = from_config.model(config, corpus.vocabulary)
        checkpoint.load_model(weights, model)
    with console.status("evaluating") as status:
        found = evaluate_into(
            folder.path,
            model.to(device),
            corpus,
            config.eval,
            device,
            lambda result: status.update(f"scored {result.protocol} {result.length}"),
            extension,
            world,
        )
    world.on_first(lambda: _track(trained, folder.path, corpus.name))
    if world.leads:
        show_runs([folder.path], console, found)


def main() -> None:
    with distributed.joined():
        evaluate()


def _track(trained: Config, folder: Path, corpus: str) -> None:
    """Log the folder's rows to the tracker that has the training's."""
    tracker = mirror.tracker(trained, folder, corpus)
    code = 1
    try:
        mirror.training(folder, tracker)
        mirror.evaluation(folder, tracker)
        mirror.checkpoint(trained, folder, tracker)
        code = 0
    finally:
        tracker.finish(code)


def _label(settings: dict[str, Any]) -> str:
    """The name of an extension in the report: its choice, factor, and other overrides."""
    hydra = HydraConfig.get()
    words = [str(hydra.runtime.choices["extension"])]
    if settings.get("factor", 1) != 1:
        words.append(f"x{settings['factor']:g}")
    shown = ("extension.factor=", "extension.original_length=")
    given = [word.lstrip("+") for word in hydra.overrides.task]
    asked = [
        word.removeprefix("extension.")
        for word in given
        if word.startswith("extension.") and not word.startswith(shown)
    ]
    return " ".join([*words, *asked])
