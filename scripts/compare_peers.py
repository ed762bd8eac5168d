"""How fast posbench is beside x-transformers and transformers, at one shape, in one process:

    python scripts/compare_peers.py [--lengths 128 512 4096] [--encodings rope t5] [--modes eval]
        [--rounds 5] [--threads 2] [--json FILE] [--markdown FILE]

Every round, each case is run once by posbench and once by each of its peers, in turn; a ratio is
of the two times of one round. A peer has its fused and its explicit attention tried, and counts
with the faster one. Training is a step of --train-tokens: states, logits, cross-entropy, backward,
clipping, fused AdamW. Evaluation is states, logits and cross-entropy of all of --eval-tokens,
without gradients. The same functions do it for everybody, in float32, not compiled, with freed
memory kept as in `posbench train`. Lengths over 512 are evaluated only: what explicit attention
keeps for its backward would fill the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from posbench.encodings import Shape
from posbench.machine import runtime
from scripts import peers
from scripts.peer_table import Row, environment, markdown, table
from scripts.peers import Make, Party, Wanted

LONGEST_TRAINED = 512
TRIALS = 2  # of each setting, before the rounds
HOPELESS = 1.5  # a setting that takes this many times the best is not tried again

Work = Callable[[Party, Tensor, Tensor], Callable[[], None]]  # of inputs and targets [B, T]


@dataclasses.dataclass
class Timed:
    """A party, what it does in a case, and how long that took each round."""

    party: Party
    run: Callable[[], None]
    seconds: list[float] = dataclasses.field(default_factory=list)

    def time(self) -> float:
        started = time.perf_counter()
        self.run()
        return time.perf_counter() - started


@dataclasses.dataclass
class Case:
    """One piece of work for posbench and for every peer that can do it."""

    mode: str
    length: int
    encoding: str
    tokens: int
    ours: Timed
    peers: list[list[Timed]]  # each in its settings

    def parties(self) -> Iterator[Timed]:
        yield self.ours
        for settings in self.peers:
            yield from settings


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    runtime.keep_freed_memory()
    progress = Console(stderr=True)
    cases, refusals = build(options, progress)
    for number in range(1, options.rounds + 1):
        progress.print(f"round {number} of {options.rounds}")
        for case in cases:
            for timed in case.parties():
                timed.seconds.append(timed.time())
    rows = [compare(case, settings) for case in cases for settings in case.peers]
    facts = environment("scripts/compare_peers.py", arguments)
    notes = [*explain(options, rows), *refusals]
    Console(width=None if sys.stdout.isatty() else 140).print(table(rows), *notes, sep="\n")
    if options.json:
        record = {"environment": facts, "rows": [dataclasses.asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows, facts, notes))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    add, known = parser.add_argument, list(peers.PEERS)
    add("--lengths", type=int, nargs="+", default=[128, 512, 4096])
    add("--encodings", nargs="+", choices=known, default=known)
    add("--modes", nargs="+", choices=["train", "eval"], default=["train", "eval"])
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=0, help="0: one a usable core")
    add("--train-tokens", type=int, default=8192, help="of a step")
    add("--eval-tokens", type=int, default=4096)
    for name, size in {"width": 128, "layers": 4, "heads": 4, "vocabulary": 1024}.items():
        add(f"--{name}", type=int, default=size)
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} must be at least 1")
    if not list(wanted(options)):
        parser.error(f"nothing to do: lengths over {LONGEST_TRAINED} are not trained")
    return options


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, Wanted, int]]:
    """mode, encoding, what is asked of every library, and the batch."""
    shape = Shape(options.width, options.heads, options.layers)
    for mode in options.modes:
        tokens = options.train_tokens if mode == "train" else options.eval_tokens
        for length in options.lengths:
            if mode == "train" and length > LONGEST_TRAINED:
                continue
            for encoding in options.encodings:
                asked = Wanted(shape, options.vocabulary, length)
                yield mode, encoding, asked, max(1, tokens // length)


def build(options: argparse.Namespace, progress: Console) -> tuple[list[Case], list[str]]:
    """Every case, its parties checked and warm; and what fused attention refused to do."""
    cases, refusals = [], []
    for mode, encoding, asked, batch in wanted(options):
        progress.print(f"trying {mode}, {asked.length}, {encoding}")
        drawn = torch.randint(asked.vocabulary, (batch, asked.length + 1))
        work = (asked, WORK[mode], drawn[:, :-1], drawn[:, 1:])
        ours = warm(peers.posbench(encoding, asked), *work)
        case = Case(mode, asked.length, encoding, batch * asked.length, ours, [])
        for make in peers.PEERS[encoding]:
            parties, refused = settings(make, asked, encoding)
            case.peers.append(hopeful([warm(party, *work) for party in parties], progress))
            refusals += refused
        cases.append(case)
    return cases, list(dict.fromkeys(refusals))


def settings(make: Make, asked: Wanted, encoding: str) -> tuple[list[Party], list[str]]:
    """The peer with explicit attention and, unless it refuses, with fused; why it does."""
    explicit = make(asked, False)
    try:
        return [explicit, make(asked, True)], []
    except (AssertionError, ValueError) as error:
        said = str(error).partition(". ")[0]
        return [explicit], [f"{explicit.name}, {encoding}: no fused attention ({said})."]


def warm(party: Party, asked: Wanted, work: Work, inputs: Tensor, targets: Tensor) -> Timed:
    peers.check(party, asked)
    timed = Timed(party, work(party, inputs, targets))
    timed.run()
    return timed


def hopeful(tried: list[Timed], progress: Console) -> list[Timed]:
    """Those that are not far slower than the best: the rounds decide between them."""
    if len(tried) == 1:
        return tried
    best = [min(timed.time() for _ in range(TRIALS)) for timed in tried]
    for timed, seconds in zip(tried, best, strict=True):
        progress.print(f"  {timed.party.name}, {timed.party.setting}: {seconds:.2f} s")
    return [timed for timed, t in zip(tried, best, strict=True) if t < HOPELESS * min(best)]


def training(party: Party, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    party.module.train()
    optimizer = torch.optim.AdamW(party.module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        party.loss(inputs, targets).backward()
        nn.utils.clip_grad_norm_(party.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def evaluation(party: Party, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    party.module.eval()

    @torch.no_grad()
    def evaluate() -> None:
        party.loss(inputs, targets)

    return evaluate


WORK: dict[str, Work] = {"train": training, "eval": evaluation}


def compare(case: Case, settings: Sequence[Timed]) -> Row:
    """posbench against a peer in its fastest setting."""
    ours, peer = case.ours, min(settings, key=lambda timed: median(timed.seconds))
    ratios = [b / a for a, b in zip(ours.seconds, peer.seconds, strict=True)]
    return Row(
        mode=case.mode,
        length=case.length,
        encoding=case.encoding,
        peer=peer.party.name,
        setting=peer.party.setting,
        parameters=(ours.party.parameters, peer.party.parameters),
        tokens_per_second=(
            case.tokens / median(ours.seconds),
            case.tokens / median(peer.seconds),
        ),
        ratio=median(ratios),
        low=min(ratios),
        high=max(ratios),
    )


def explain(options: argparse.Namespace, rows: Sequence[Row]) -> list[str]:
    shown = {row.peer for row in rows}
    return [
        f"Width {options.width}, {options.layers} layers, {options.heads} heads, feed-forward "
        f"{4 * options.width}, vocabulary {options.vocabulary:,}; float32, not compiled.",
        f"Medians of {options.rounds} rounds; spread: the least and the greatest ratio of a "
        "round. A ratio over 1: posbench is faster.",
        f"train: a step of {options.train_tokens:,} tokens, with loss, backward, clipping and "
        f"AdamW. eval: states, logits and losses of all of {options.eval_tokens:,} tokens.",
        *(f"{peer}: {note}." for peer, note in peers.NOTES.items() if peer in shown),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
