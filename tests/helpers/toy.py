"""The smallest run there is, for tests of everything around it."""

from __future__ import annotations

import os
import random
from pathlib import Path

from posbench import cli

# Of training; scripts/test_cpus.py sets them.
DTYPE = os.environ.get("POSBENCH_TEST_DTYPE", "auto")
THREADS = int(os.environ.get("POSBENCH_TEST_THREADS", "1"))
WORDS = "the of and to in a that is be for our we by not with it as have people states".split()


def write_text(folder: Path, documents: int = 3, words: int = 900) -> Path:
    """A folder of text files with some structure to learn."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    for number in range(documents):
        text = " ".join(generator.choice(WORDS) for _ in range(words))
        (folder / f"{number}.txt").write_text(text)
    return folder


def arguments(root: Path, *more: str) -> list[str]:
    """Overrides for a run that takes a second; `more` comes after and wins."""
    text = root / "text"
    if not text.exists():
        write_text(text)
    chosen = any(word.startswith("corpus=") for word in flat([*more]))
    return [
        "" if chosen else f"corpus=files corpus.path={text}",
        f"tokenizer=bytes tracking.wandb=disabled run.root={root / 'outputs'}",
        "model.width=16 model.heads=2 model.layers=2 model.feed_forward=32",
        "train.length=16 train.batch=2 train.steps=4 train.checkpoint_every=2 optim.warmup=1",
        "eval.lengths=[16,32] eval.targets=8 eval.blocks=4 runtime.device=cpu",
        f"runtime.dtype={DTYPE} runtime.threads={THREADS}",
        *more,
    ]


def train(root: Path, *more: str) -> int:
    """The exit code of `posbench train` at toy size."""
    return cli.run(["train", *flat(arguments(root, *more))])


def flat(groups: list[str]) -> list[str]:
    return [word for group in groups for word in group.split()]
