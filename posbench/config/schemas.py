"""Typed schemas of the configuration. Types live here, values in conf/.

An encoding, a corpus, a tokenizer and an objective stay open dictionaries, because the class that
`_target_` names defines their keys (targets.py checks them); everything else is checked against
these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NOT_ARGUMENTS = ("optim", "tune")  # keys of an encoding's yaml that its class does not get


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
class ParameterGroup:
    """An optimizer group; an encoding's yaml declares its own under `optim`."""

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
    tokens: int  # at most so many tokens scored (nonoverlapping, sliding, stream)
    stride: int  # tokens that a window moves on (sliding)
    segment: int  # tokens of a segment; the rest of a length is memory (stream)
    probes: list[str]  # passkey, copy
    probe_distances: list[int]  # tokens from what is planted to where it is asked for
    probe_trials: int  # at each distance
    batch_tokens: int  # tokens in one forward pass
    folds: int = (
        7  # passes over a text, in each one token in so many is MASK; earlier runs have none
    )


@dataclass
class TrackingConfig:
    every: int  # steps between logged rows
    to: str = "wandb"  # tensorboard, trackio; the values below are for what a file does not name
    wandb: str = "disabled"  # auto, online, offline, disabled
    project: str = "posbench"
    checkpoints: bool = False  # the last one, as an artifact of W&B


@dataclass
class DeviceConfig:
    device: str  # auto, cpu, cuda
    threads: int  # 0: as many as there are cores, shared by the jobs that run at once


@dataclass
class RuntimeConfig(DeviceConfig):
    dtype: str  # auto, float32, bfloat16 (autocast in training; evaluation is float32)
    memory_fraction: float = 1.0  # of a GPU, at most; earlier runs have none
    cuda_graphs: bool = False  # with train.compile, on a GPU; earlier runs have none


@dataclass
class Config:
    """Everything that `posbench train` needs; saved as the run's config.yaml."""

    run: RunConfig
    seed: int
    tuned: str  # true, false, auto
    corpus: dict[str, Any]
    tokenizer: dict[str, Any]
    model: ModelConfig
    encoding: dict[str, Any]
    train: TrainConfig
    optim: OptimConfig
    eval: EvalConfig
    tracking: TrackingConfig
    runtime: RuntimeConfig
    objective: dict[str, Any] = field(
        default_factory=lambda: {"_target_": "posbench.objectives.Causal"}, kw_only=True
    )
    dry_run: bool = field(default=False, kw_only=True)  # posbench train says what it would do


@dataclass
class EvalChanges:
    """The evaluation's settings, each null to keep what the run was trained with."""

    protocols: list[str] | None
    lengths: list[int] | None
    targets: int | None
    blocks: int | None
    tokens: int | None
    stride: int | None
    segment: int | None
    folds: int | None
    probes: list[str] | None
    probe_distances: list[int] | None
    probe_trials: int | None
    batch_tokens: int | None


@dataclass
class TrackingChanges:
    """Of the tracking, null to keep what the run was trained with."""

    wandb: str | None


@dataclass
class EvalCommand:
    """`posbench eval`."""

    run: str
    extension: dict[str, Any] | None  # of the trained context, by the class that `_target_` names
    eval: EvalChanges
    tracking: TrackingChanges
    runtime: DeviceConfig


@dataclass
class ReproConfig:
    steps: int  # replayed, and as many more as the run's second logged row needs
    score: bool  # a finished run's first length is scored again too


@dataclass
class MachineChanges:
    """What to replay a run on, each null to keep what it was trained on."""

    device: str | None
    dtype: str | None
    threads: int | None


@dataclass
class ReproCommand:
    """`posbench repro`."""

    run: str
    repro: ReproConfig
    runtime: MachineChanges


@dataclass
class ReportConfig:
    formats: list[str]  # terminal, markdown, csv, latex, html
    figures: list[str]  # png, svg, pdf
    themes: list[str]  # of the figures: light, dark
    baseline: str | None  # an encoding that the others are divided by
    against: Any  # a publication, a list of them, or "all"; see posbench published
    level: float  # of the intervals
    draws: int  # of the bootstrap
    seed: int  # of the bootstrap
    recl_share: float  # of the tokens, the hardest ones, that RECL is of


@dataclass
class ReportCommand:
    """`posbench report`."""

    runs: list[str]  # folders or globs; every run below them
    folder: str  # where the files go
    report: ReportConfig
    tracking: TrackingConfig


@dataclass
class TuneConfig:
    trials: int
    lr: list[float]  # from and to, times optim.lr
    lr_multiplier: list[float]  # from and to, of positional parameters
    blocks: int  # blocks of validation targets


@dataclass
class TuneCommand(Config):
    """`posbench tune`."""

    tune: TuneConfig


@dataclass
class DescribeConfig:
    length: int  # tokens of the window whose operations and distances are shown
    matrix: int  # tokens of the window whose attention weights are shown
    alike: bool  # windows of one token repeated; random ones otherwise


@dataclass
class DescribeCommand(Config):
    """`posbench describe`."""

    describe: DescribeConfig
    figures: bool
    folder: str  # where figures go


@dataclass
class SpeedConfig:
    lengths: list[int]
    modes: list[str]  # train, eval
    tokens: int  # in a training step or a pass of evaluation
    vocabulary: int  # of the random tokens
    rounds: int
    seconds: float  # that one measurement repeats steps for, at least
    baseline: str  # the encoding that ratios are to


@dataclass
class SpeedCommand(Config):
    """`posbench speed`."""

    speed: SpeedConfig
    folder: str  # where <run.name>.json goes


@dataclass
class ClaimsCommand:
    """`posbench claims`."""

    runs: list[str]  # folders or globs; every run below them
    folder: str  # where claims.md goes


@dataclass
class PublishedCommand:
    """`posbench published`."""

    name: str | None  # a publication, to print its numbers; null lists them all


SCHEMAS: tuple[type, ...] = (  # the first has those of Config
    DescribeCommand,
    SpeedCommand,
    TuneCommand,
    EvalCommand,
    ReproCommand,
    ReportCommand,
    ClaimsCommand,
    PublishedCommand,
)
