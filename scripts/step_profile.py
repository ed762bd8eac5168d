"""What one training step's time goes into, on a CPU: python scripts/step_profile.py t5 shaw ...

Width 256, 6 layers, 8 heads, 16 windows of 512 tokens, one thread, float32 unless --dtype says
otherwise; CPU time, so that other work beside it counts for little. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np
import torch
from hydra import compose, initialize_config_module
from torch.profiler import ProfilerActivity, profile

from posbench import config as schemas
from posbench.corpus.segments import Batch
from posbench.model import from_config
from posbench.training.trainer import Trainer

GROUPS = {  # by the first part of an operation's name that fits
    "linear layers": ("aten::mm", "aten::addmm"),
    "fused attention": ("aten::_scaled_dot_product",),
    "products of tables and weights": ("aten::bmm", "aten::baddbmm"),
    "copies, fills, views": (
        *("aten::copy_", "aten::fill_", "aten::cat", "aten::flip", "aten::clone"),
        *("aten::as_strided", "aten::slice", "aten::empty", "aten::constant_pad_nd"),
    ),
    "softmax and exp": ("aten::_softmax", "aten::exp", "aten::_log_softmax", "aten::logsumexp"),
}
OTHER = "the rest: norms, GELU, sums, optimizer"
SETTINGS = (
    "model.width=256 model.layers=6 model.heads=8 model.feed_forward=1024 train.length=512 "
    "train.batch=16 run.name=profile runtime.threads=1 runtime.dtype={dtype} encoding={encoding}"
)


class Random:
    """The same tokens in every step."""

    def __init__(self, windows: int, length: int) -> None:
        tokens = np.random.default_rng(0).integers(1024, size=(windows, length + 1))
        self.only = Batch(tokens[:, :-1], tokens[:, 1:], np.zeros(windows, dtype=np.bool_))

    def batch(self, step: int) -> Batch:
        return self.only


def trainer(encoding: str, dtype: str) -> Trainer:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        words = SETTINGS.format(dtype=dtype, encoding=encoding).split()
        config = schemas.load(compose("train", words), schemas.Config)
    model = from_config.model(config, 1024)
    autocast = None if dtype == "float32" else torch.bfloat16
    stream = Random(config.train.batch, config.train.length)
    return Trainer(model, stream, config, torch.device("cpu"), autocast)


def spent(trainer: Trainer) -> Counter[str]:
    """Milliseconds of CPU in each group, in one step."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.optimize()
    found = Counter[str]()
    for event in seen.key_averages():
        fits = (group for group, names in GROUPS.items() if event.key.startswith(names))
        found[next(fits, OTHER)] += event.self_cpu_time_total / 1e3
    return found


def seconds(trainer: Trainer) -> float:
    """CPU seconds of a step, the least of three, nothing watching."""
    times = []
    for _ in range(3):
        started = time.process_time()
        trainer.optimize()
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encodings", nargs="+")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    columns = {}
    for name in asked.encodings:
        made = trainer(name, asked.dtype)
        made.optimize()
        columns[name] = (seconds(made), spent(made))
    print(f"| {asked.dtype}, ms of CPU in a step | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for group in (*GROUPS, OTHER):
        print(f"| {group} | " + " | ".join(f"{s[group]:,.0f}" for _, s in columns.values()) + " |")
    print(
        "| the step, unwatched | "
        + " | ".join(f"{1e3 * t:,.0f}" for t, _ in columns.values())
        + " |"
    )


if __name__ == "__main__":
    main()
