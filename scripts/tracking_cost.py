"""What W&B costs training, beside none: python scripts/tracking_cost.py [--rounds 5] [--steps 150]

The default model and batch, a row logged every step. In each round each mode trains as many steps,
one mode after the other in one process, and each starts its own W&B run within the time taken:
offline, and online at a host that accepts connections and never answers. Prints a Markdown table:
medians over rounds, and what the end of a run waits. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
from hydra import compose, initialize_config_module
from step_profile import Random  # beside this file

from posbench import config as schemas
from posbench import tracking
from posbench.config import TrackingConfig
from posbench.model import from_config
from posbench.training.trainer import Trainer

MODES = ("disabled", "offline", "online")


def trainer(steps: int) -> Trainer:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        words = ["run.name=cost", "optim.warmup=1", f"train.steps={steps}"]
        config = schemas.load(compose("train", words), schemas.Config)
    stream = Random(config.train.batch, config.train.length)
    return Trainer(from_config.model(config, 1024), stream, config, torch.device("cpu"))


def block(trained: Trainer, mode: str, folder: Path, steps: int) -> tuple[float, float, float]:
    """Seconds of all steps together, of the median one, and of the end."""
    folder.mkdir(parents=True)
    times = []
    began = time.perf_counter()
    tracker = tracking.start(
        TrackingConfig(1, wandb=mode),
        folder=folder,
        name=mode,
        group="cost",
        settings={},
        resume_id=None,
    )
    for step in range(1, steps + 1):
        started = time.perf_counter()
        loss, norm = trained.optimize()
        row = {"step": step, "loss": loss, "grad_norm": norm, "lr": 1.0, "tokens_per_second": 1.0}
        tracker.log(row, "step")
        times.append(time.perf_counter() - started)
    ended = time.perf_counter()
    tracker.finish(0)
    return ended - began, statistics.median(times), time.perf_counter() - ended


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    asked = parser.parse_args()
    deaf = socket.create_server(("127.0.0.1", 0))
    os.environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{deaf.getsockname()[1]}"
    os.environ["WANDB_API_KEY"] = "0" * 40
    trained = trainer((asked.rounds + 1) * len(MODES) * asked.steps)
    found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as place:
        for number in range(asked.rounds + 1):  # the first warms up: imports, W&B's process
            for mode in MODES:
                measured = block(trained, mode, Path(place) / f"{number}-{mode}", asked.steps)
                found[mode] += [measured] if number else []
    print(f"{asked.rounds} rounds of {asked.steps} steps, {torch.get_num_threads()} threads\n")
    print("| tracking.wandb | all steps, s | beside disabled | a step, ms | beside | the end, s |")
    print("|---|---|---|---|---|---|")
    base = [statistics.median(column) for column in zip(*found["disabled"], strict=True)]
    for mode in MODES:
        total, step, end = (statistics.median(c) for c in zip(*found[mode], strict=True))
        ratios = total / base[0] - 1, step / base[1] - 1
        print(
            f"| {mode} | {total:.2f} | {ratios[0]:+.1%} | {step * 1e3:.2f} | {ratios[1]:+.1%} "
            f"| {end:.2f} |"
        )


if __name__ == "__main__":
    main()
