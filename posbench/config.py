"""Typed schemas of the configuration. Types live here, values in conf/.

An encoding, a corpus and an optimizer group stay open dictionaries where a class outside this
file defines the keys (`_target_`); everything else is checked against these fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class RunConfig:
    """Where a run lives: <root>/<experiment>/<name>/seed<seed>."""

    root: str
    experiment: str
    name: str
    overwrite: bool


@dataclass
class ModelConfig:
    width: int
    heads: int
    layers: int
    feed_forward: int
    dropout: float
    attention: str


@dataclass
class TrainConfig:
    length: int  # tokens in a training window
    batch: int  # windows in a batch
    accumulate: int  # batches in an optimizer step
    steps: int  # optimizer steps
    checkpoint_every: int  # steps between checkpoints
    compile: bool


@dataclass
class PositionalGroup:
    """The optimizer group of the parameters under `encoding.`."""

    lr_multiplier: float = 1.0
    weight_decay: float = 0.0


@dataclass
class OptimConfig:
    lr: float
    betas: list[float]
    weight_decay: float
    warmup: int  # steps of linear warm-up, then cosine
    final_lr: float  # as a fraction of lr, at the last step
    clip: float  # largest gradient norm


@dataclass
class EvalConfig:
    protocols: list[str]
    lengths: list[int]
    targets: int  # tokens in a block of targets (fixed_targets)
    blocks: int  # blocks of targets (fixed_targets)
    tokens: int  # at most so many tokens scored (nonoverlapping)
    batch_tokens: int  # tokens in one forward pass


@dataclass
class TrackingConfig:
    wandb: str  # auto, online, offline, disabled
    project: str
    every: int  # steps between logged rows


@dataclass
class RuntimeConfig:
    device: str  # auto, cpu, cuda
    dtype: str  # auto, float32, bfloat16 (autocast in training; evaluation is float32)
    threads: int  # 0: as many as there are cores


@dataclass
class Config:
    """Everything that `posbench train` needs; saved as the run's config.yaml."""

    run: RunConfig
    seed: int
    corpus: dict[str, Any]
    tokenizer: dict[str, Any]
    model: ModelConfig
    encoding: dict[str, Any]
    train: TrainConfig
    optim: OptimConfig
    eval: EvalConfig
    tracking: TrackingConfig
    runtime: RuntimeConfig
