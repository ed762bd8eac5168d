"""A report as writers get it, with everything in it that can go wrong."""

from __future__ import annotations

import dataclasses

from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import (
    Bin,
    Cell,
    Comparison,
    Cost,
    ProbeRow,
    ProbeTable,
    Reach,
    Report,
    Row,
)

LENGTHS = (128, 256, 512, 1024, 2048)
CURVES = {
    "transformer_xl": (31.3, 31.3, 31.3, 31.35, 31.4),
    "deberta": (30.5, 30.6, 30.9, 31.4, 32.0),
    "t5": (30.7, 30.9, 31.4, 31.9, 32.4),
    "alibi": (36.8, 36.8, 36.8, 36.8, 36.8),
    "rope": (33.4, 35.2, 42.0, 57.6, 74.5),
    "rope + yarn x8": (35.0, 35.1, 35.3, 35.9, 41.0),
    "learned": (51.3, None, None, None, None),
}
WORST = "<script>alert('x')</script> & 50% of $x_1$ #~^\\{}|"


def interval(value: float, width: float = 0.01) -> Interval:
    return Interval(value, value * (1 - width), value * (1 + width))


def row(name: str, values: tuple[float | None, ...]) -> Row:
    cells = {}
    for place, (length, value) in enumerate(zip(LENGTHS, values, strict=True)):
        if value is None:
            cells[length] = Cell(reason="no position past 128")
            continue
        column = sorted(v for values in CURVES.values() if (v := values[place]) is not None)
        base = values[0]
        assert base is not None
        cells[length] = Cell(
            perplexity=interval(value),
            ratio=None if length == 128 and "+" not in name else interval(value / base, 0.002),
            against=None if name == "alibi" else interval(value / 36.8, 0.003),
            bits_per_byte=value / 20,
            word_perplexity=value**1.3,
            rank=1 + column.index(value) if value in column else 9,
            best=value == column[0],
            tied=value != column[0] and value < column[0] * 1.01,
            seeds=3,
            documents=22,
        )
    bins = [Bin(2**n, 2 ** (n + 1) - 1, interval(4.5 - n / 10), 2**n * 8) for n in range(11)]
    return Row(
        label=name.partition(" + ")[0],
        encoding=name.partition(" + ")[0],
        extension=name.partition(" + ")[2] or None,
        cells=cells,
        cost=Cost(500_000, 1_024, 14_321.5, 31_000.0, 740 * 2**20, 71.3),
        lr_multiplier=10.0 if name == "t5" else 1.0,
        tuning="tuned, 6 trials: lr 0.006, positional ×3.1",
        recl=Reach(512) if values[-1] else Reach(reason="scored at one length"),
        helps=Reach(2048, beyond=True) if values[-1] else Reach(reason="scored at one length"),
        breaks=Reach(301.7) if name == "rope" else Reach(2048, beyond=True),
        by_context=tuple(bins),
    )


def comparison() -> Comparison:
    rows = [row(name, values) for name, values in CURVES.items()]
    failed = dataclasses.replace(
        row("mine", (None,) * 5),
        label=WORST,
        encoding=WORST,
        cells={length: Cell() for length in LENGTHS},
        cost=Cost(),
        tuning="untuned",
        recl=Reach(reason="not scored"),
        helps=Reach(reason="not scored"),
        breaks=Reach(reason="not scored"),
        by_context=(),
        missing=(f"seed 1 failed: {WORST}", "seed 2 running"),
    )
    return Comparison(
        experiment="demo",
        protocol="fixed_targets",
        targets="48bed7d25124f892",
        train_length=128,
        lengths=LENGTHS,
        rows=(*rows, failed),
        baseline="alibi",
        level=0.95,
        facts={
            "corpus": "国情咨文 sotu",
            "tokenizer": "BPE, vocabulary 1,024",
            "model": "width 128, 2 layers, 4 heads",
            "trained": "819,200 tokens at length 128",
            "scored": "4,096 targets 48bed7d25124f892 of 22 documents",
            "seeds": "1, 2, 3",
            "commit": "0123456789ab",
        },
        apart=("runs with train.steps 400 (800 here) are in a table of their own",),
        notes=(f"{WORST}: seed 1 failed: {WORST}", "learned, n/a: no position past 128"),
    )


def probe(name: str = "passkey") -> ProbeTable:
    distances = (16, 32, 64, 128, 256, 512)
    rows = [
        ProbeRow(row, {n: interval(0.9 / (1 + n / 200), 0.05) for n in distances})
        for row in ("alibi", "rope", "t5")
    ]
    short = {n: Interval(0.5, 0.4, 0.6) for n in distances if n <= 128}
    gone = {n: "no position past 128" for n in distances if n > 128}
    return ProbeTable(
        experiment="demo",
        probe=name,
        train_length=128,
        distances=distances,
        rows=(*rows, ProbeRow("learned", short, gone)),
        trials="beef",
        chance=1 / 16,
        facts={"corpus": "国情咨文 sotu", "trials": "128 a distance", "candidates": "16"},
    )


def report() -> Report:
    return Report((comparison(),), (probe("passkey"), probe("copy")))
