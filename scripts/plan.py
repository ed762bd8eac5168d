"""The plan of docs/scaling.md: python scripts/plan.py [experiment=... encoding=a,b seed=1,2]

GPU hours = tokens x FLOP a token of NoPE x time over NoPE's / (utilisation x peak).

FLOP are posbench's own (posbench/speed/cost.py) for the experiment's model, batch and length. The
time over NoPE's lies between the ratio of the FLOP and what docs/performance.md measured. What is
assumed, for want of a GPU that has run it, are the first constants below.
"""

from __future__ import annotations

import dataclasses
import sys

from hydra import compose, initialize_config_module

from posbench.config import Config, load
from posbench.model import from_config
from posbench.speed.cost import Pass, cost

UTILISATION = (0.40, 0.20)  # of the peak, best and worst: NoPE in training, all in evaluation
PEAK = {"bfloat16": 989e12, "float32": 67e12}  # FLOP/s of an H100 SXM, dense, by its data sheet
WATTS = 700  # of the board, its limit

CPU = 5_217 * 34.6e6  # FLOP/s of NoPE on two hyper-threads, bfloat16: docs/performance.md
# Tokens/s over NoPE's in training at length 512, width 256, six layers: docs/performance.md.
# What enters at the input is an addition, and was not measured there.
SPEED = {"rope": 0.96, "alibi": 1.01, "t5": 0.90, "transformer_xl": 1 / 3.0, "shaw": 0.69}
SPEED |= {"deberta": 0.41}
PRESS = 286_000 * 144 * 512  # tokens: conf/experiment/press2022.yaml
TRIALS = 6  # of posbench tune: conf/tune.yaml

Hours = tuple[float, float]  # best and worst


@dataclasses.dataclass(frozen=True)
class Row:
    """An encoding: FLOP of a token in training and of a whole evaluation, time over NoPE's."""

    name: str
    token: float
    evaluation: float
    time: float


def row(config: Config) -> Row:
    train, evaluated = config.train, config.eval
    model = from_config.model(config, config.tokenizer["vocabulary"])
    step = Pass(True, train.batch, train.length, scored=train.length, itemsize=2)
    limit = model.max_length
    passes = [
        Pass(False, evaluated.blocks, length, evaluated.targets, itemsize=4)
        for length in evaluated.lengths
        if limit is None or length <= limit
    ]
    scored = sum(cost(model, config.model, each).operations for each in passes)
    token = cost(model, config.model, step).operations / (train.batch * train.length)
    return Row(config.run.name, token, scored, 1 / SPEED.get(config.run.name, 1.0))


def hours(each: Row, nope: Row, tokens: float) -> Hours:
    """GPU hours of one run's training."""
    ratios = sorted((each.token / nope.token, each.time))
    work = tokens * nope.token / PEAK["bfloat16"] / 3600
    return work * ratios[0] / UTILISATION[0], work * ratios[1] / UTILISATION[1]


def total(rows: list[Row], tokens: float, times: int) -> Hours:
    """GPU hours of so many runs of each encoding."""
    each = [hours(row, rows[0], tokens) for row in rows]
    return times * sum(best for best, _ in each), times * sum(worst for _, worst in each)


def span(hours: Hours) -> str:
    return " to ".join(f"{value:,.{0 if value >= 10 else 1}f}" for value in hours)


def tell(rows: list[Row], config: Config, seeds: int) -> None:
    train = config.train
    step = train.batch * train.length * train.accumulate
    tokens, nope, runs = train.steps * step, rows[0], len(rows) * seeds
    model = from_config.model(config, config.tokenizer["vocabulary"])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"NoPE has {parameters / 1e6:.1f} M parameters. A run: {tokens / 1e9:.2f} G tokens, "
        f"{train.steps:,} steps of {step:,}. {runs} runs: {len(rows)} encodings, {seeds} seeds.\n"
    )
    print("| encoding | FLOP a token | over NoPE's | time measured | GPU hours | all seeds |")
    print("|---|---:|---:|---:|---:|---:|")
    for each in rows:
        one = hours(each, nope, tokens)
        print(
            f"| {each.name} | {each.token / 1e6:,.0f} M | {each.token / nope.token:.2f} "
            f"| {each.time:.2f} | {span(one)} | {span((seeds * one[0], seeds * one[1]))} |"
        )
    grid = total(rows, tokens, seeds)
    work = seeds * sum(each.evaluation for each in rows) / PEAK["float32"] / 3600
    print(f"| **all** | | | | | **{span(grid)}** |\n\n| besides | GPU hours |\n|---|---:|")
    tuning = total(rows, tokens, TRIALS)
    print(f"| tuning, {TRIALS} trials an encoding, each as long as a run | {span(tuning)} |")
    print(f"| evaluation | {span((work / UTILISATION[0], work / UTILISATION[1]))} |")
    press = total(rows, PRESS, seeds)
    print(f"| the grid with {PRESS / 1e9:.1f} G tokens a run | {span(press)} |\n")
    energy = (grid[0] * WATTS / 1000, grid[1] * WATTS / 1000)
    disk = 2 * 3 * 4 * parameters  # two checkpoints: weights and two moments, float32
    print(f"Energy of the grid: {span(energy)} kWh. Checkpoints: {runs * disk / 1e9:.0f} GB.")
    print(f"One NoPE run on two hyper-threads: {tokens * nope.token / CPU / 86_400:,.1f} days.")


def main(words: list[str]) -> None:
    words = words or ["experiment=wikitext125m"]
    given = dict(word.split("=", 1) for word in words if word.startswith(("encoding=", "seed=")))
    words = [word for word in words if word.split("=", 1)[0] not in given]
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("train", [*words, "run.name=x"], return_hydra_config=True)
        swept = {"encoding": "rope", "seed": "1", **(node.hydra.sweeper.params or {}), **given}
        names = ["nope", *(name for name in swept["encoding"].split(",") if name != "nope")]
        configs = [
            load(compose("train", [*words, f"encoding={name}", f"run.name={name}"]), Config)
            for name in names
        ]
    tell([row(config) for config in configs], configs[0], len(str(swept["seed"]).split(",")))


if __name__ == "__main__":
    main(sys.argv[1:])
