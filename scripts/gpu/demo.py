"""The nine encodings of the demo, trained and evaluated by `posbench train`, one command each."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from posbench.evaluation import results
from posbench.runs.run_folder import RunFolder
from scripts.gpu import commands
from scripts.gpu.part import Case, Row, Settings

NINE = "t5 transformer_xl rope alibi deberta nope shaw sinusoidal learned".split()
SECONDS = 110.0
TINY = (
    "train.steps=2 train.batch=2 train.length=16 eval.lengths=[16,32] eval.targets=8 "
    "eval.blocks=2 eval.tokens=64 model.width=16 model.heads=2 optim.warmup=1 runtime.threads=1"
).split()


def cases(settings: Settings) -> list[Case]:
    names = NINE[:2] if settings.rehearse else NINE
    return [Case(name, partial(train, name, settings)) for name in names]


def train(name: str, settings: Settings) -> Row:
    """Perplexities of fixed targets by length, and what the run cost."""
    root = Path(settings.folder) / "runs"
    words = [
        *("experiment=demo", f"encoding={name}", f"run.root={root}", "tracking.wandb=disabled"),
        f"runtime.device={settings.device}",
        *(TINY if settings.rehearse else []),
    ]
    commands.checked([sys.executable, "-m", "posbench", "train", *words], SECONDS)
    folder = root / "demo" / name / "seed1"
    found = [each for each in results.read(folder) if each.protocol == "fixed_targets"]
    return {
        "perplexity": {each.length: each.perplexity or each.reason for each in found},
        "summary": RunFolder(folder).summary,
        "lr": RunFolder(folder).config()["optim"]["lr"],
        "dtype": RunFolder(folder).provenance.get("dtype"),
    }
