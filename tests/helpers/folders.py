"""Run folders written without training, with losses of known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from posbench.evaluation import results
from posbench.evaluation.results import Result
from posbench.evaluation.windows import Window
from posbench.machine.files import write_json, write_text

LENGTHS = (128, 256, 512, 1024, 2048)
DOCUMENTS, BLOCKS, TARGETS = 22, 64, 64

Curve = Callable[[int], float | None]  # length -> mean loss in nats; None: n/a


def write_run(
    root: Path,
    name: str,
    seed: int,
    curve: Curve,
    *,
    spread: float = 0.0,
    lengths: Sequence[int] = LENGTHS,
    changes: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
) -> Path:
    """A finished run. Documents differ by N(0, 0.2) nats, the same for every run; tokens by
    N(0, spread) on top, drawn for each name and seed.

    changes: dotted keys of the configuration.
    """
    config = OmegaConf.create(_config(name, seed, lengths))
    for key, value in (changes or {}).items():
        OmegaConf.update(config, key, value, force_add=True)
    folder = root / str(config.run.experiment) / name / f"seed{seed}"
    folder.mkdir(parents=True)
    write_text(folder / "config.yaml", OmegaConf.to_yaml(config))
    write_json(folder / "status.json", {"state": "done", "reason": None})
    write_json(folder / "summary.json", _summary())
    write_json(folder / "provenance.json", {"commit": "abc", **(provenance or {})})
    by_document = np.random.default_rng(0).normal(0, 0.2, DOCUMENTS)
    hard = np.repeat(by_document[np.arange(BLOCKS) % DOCUMENTS], TARGETS)
    hard -= hard.mean()
    own = np.random.default_rng([seed, *name.encode()])
    for length in lengths:
        mean = curve(length)
        if mean is None:
            result = Result("fixed_targets", length, reason="no position past 128", targets="feed")
            results.append(folder, result)
            continue
        losses = mean + hard + own.normal(0, spread, len(hard))
        _write_losses(folder, length, losses)
    return folder


def _write_losses(folder: Path, length: int, losses: np.ndarray) -> None:
    windows = [
        Window(block % DOCUMENTS, 4096 + 64 * block - length, length, TARGETS)
        for block in range(BLOCKS)
    ]
    result = Result(
        "fixed_targets",
        length,
        nll=float(losses.sum()),
        tokens=len(losses),
        bytes=3 * len(losses),
        words=len(losses) // 2,
        documents=DOCUMENTS,
        targets="feed",
        tokens_per_second=30_000.0,
        seconds=1.0,
        peak_memory=2**20,
    )
    results.save_losses(folder, result, windows, losses)
    results.append(folder, result)


def _config(name: str, seed: int, lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "run": {"root": "outputs", "experiment": "made", "name": name, "overwrite": False},
        "seed": seed,
        "encoding": {"_target_": f"x.{name}"},
        "corpus": {"_target_": "x"},
        "tokenizer": {"_target_": "x"},
        "model": {"width": 16, "layers": 2, "heads": 2},
        "train": {"length": 128, "steps": 800},
        "optim": {"lr": 0.005},
        "eval": {"protocols": ["fixed_targets"], "lengths": list(lengths)},
    }


def _summary() -> dict[str, Any]:
    return {
        "corpus": "sotu",
        "tokenizer": "BPE",
        "vocabulary": 1024,
        "parameters": 500_000,
        "positional_parameters": 64,
        "tokens_trained": 819_200,
        "train_tokens_per_second": 14_000.0,
        "train_peak_memory": 2**29,
    }
