"""Checks of a configuration before a run begins; each raises UserError."""

from __future__ import annotations

import math
import os
from pathlib import Path

from posbench import tracking
from posbench.config import Config, EvalConfig, RunConfig
from posbench.corpus.cache import Corpus
from posbench.errors import UserError
from posbench.evaluation import probes, protocols
from posbench.machine import paths


def check(config: Config) -> None:
    """Raise UserError for a value out of its range."""
    if config.dry_run:
        raise UserError("dry_run=true: posbench train alone has dry runs")
    train, optim = config.train, config.optim
    for name in ("length", "batch", "accumulate", "steps", "checkpoint_every"):
        if getattr(train, name) < 1:
            raise UserError(f"train.{name}={getattr(train, name)} must be at least 1")
    if not 0 < optim.lr < math.inf:
        raise UserError(f"optim.lr={optim.lr} must be positive")
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise UserError(f"optim.betas={optim.betas} must be two numbers in [0, 1)")
    if not optim.weight_decay >= 0:
        raise UserError(f"optim.weight_decay={optim.weight_decay} must not be negative")
    if not 0 <= optim.final_lr <= 1:
        raise UserError(f"optim.final_lr={optim.final_lr} must lie in [0, 1]")
    if not optim.clip > 0:
        raise UserError(f"optim.clip={optim.clip} must be positive")
    if not 0 <= optim.warmup <= train.steps:
        raise UserError(f"optim.warmup={optim.warmup} must lie in 0 .. train.steps={train.steps}")
    tracking.check(config.tracking)
    if config.tracking.every < 1:
        raise UserError(f"tracking.every={config.tracking.every} must be at least 1")
    if config.runtime.cuda_graphs and not train.compile:
        raise UserError("runtime.cuda_graphs=true: needs train.compile=true")
    if not 0 < config.runtime.memory_fraction <= 1:
        raise UserError(
            f"runtime.memory_fraction={config.runtime.memory_fraction} must lie in (0, 1]"
        )
    if not 0 <= config.seed < 2**63:
        raise UserError(f"seed={config.seed} must lie in 0 .. 2^63 - 1")
    _check_place(config.run)


def _check_place(run: RunConfig) -> None:
    """Raise UserError for a run folder that is not below run.root, or whose path is too long."""
    for key, name in (("run.experiment", run.experiment), ("run.name", run.name)):
        parts = Path(name).parts
        outside = Path(name).is_absolute() or ".." in parts or os.path.expanduser(name) != name
        if not parts or outside or not all(part.strip() for part in parts):
            raise UserError(f"{key}={paths.shortened(name)} must be a path below run.root")
        paths.require_short(key, name, paths.LONGEST_NAME)
    place = os.path.abspath(Path(run.root) / run.experiment / run.name)
    if (size := len(os.fsencode(place))) > paths.LONGEST_PATH:
        raise UserError(
            f"run.root, run.experiment and run.name make a path of {size:,} bytes; at most "
            f"{paths.LONGEST_PATH:,} are allowed"
        )


def check_evaluation(config: EvalConfig, corpus: Corpus, two_sided: bool) -> None:
    """Raise UserError for settings of the evaluation that would fail after training.

    two_sided: whether the model is a masked one.
    """
    documents = corpus.documents("test")
    protocols.check(config, documents, two_sided)
    if two_sided and config.probes:
        raise UserError(
            f"eval.probes={config.probes}: they ask for the next token, which a masked model does "
            "not predict; eval.probes=[]"
        )
    names, distances, trials = config.probes, config.probe_distances, config.probe_trials
    probes.check(documents, corpus.vocabulary, names, distances, trials)
