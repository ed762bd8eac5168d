"""Perplexity by encoding and length, from runs that can be compared.

Runs share a table only if corpus, tokenizer, model, training, optimizer, protocol and scored
tokens are the same; the encoding, and its optimizer group, are what may differ.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posbench.report.collect import Run
from posbench.results import Result
from posbench.run_folder import flatten, is_free

COMPARED = ("corpus", "tokenizer", "model", "train", "optim")


@dataclass(frozen=True)
class Cell:
    """Mean perplexity over the seeds; spread is their standard deviation, None for one seed."""

    perplexity: float | None = None
    spread: float | None = None
    ratio: float | None = None  # to the value at the training length, elsewhere
    reason: str | None = None  # why there can be no number; None: not scored (yet)
    best: bool = False  # in its column


@dataclass(frozen=True)
class Row:
    """One encoding, over its seeds."""

    name: str
    seeds: int
    cells: dict[int, Cell]
    positional_parameters: int | None
    tokens_per_second: float | None
    peak_memory: float | None  # bytes, training
    trouble: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    title: str
    caption: str
    train_length: int
    lengths: list[int]
    rows: list[Row]

    @property
    def notes(self) -> list[str]:
        """Why there is no number, each reason once."""
        notes = [f"{row.name}: {trouble}" for row in self.rows for trouble in row.trouble]
        for row in self.rows:
            notes += [f"{row.name}, n/a: {c.reason}" for c in row.cells.values() if c.reason]
        return list(dict.fromkeys(notes))


def tables(runs: Sequence[Run], targets: set[str] | None = None) -> list[Table]:
    """One table for each set of comparable runs, protocol and set of scored tokens.

    targets, where given, keeps the tables over these sets of scored tokens.
    """
    made = []
    for group in _comparable(runs):
        scored = {(r.protocol, r.targets) for run in group for r in run.results if r.targets}
        kinds: list[tuple[str, str | None]] = [*sorted(scored)]
        for protocol, tokens in kinds or [(group[0].config["eval"]["protocols"][0], None)]:
            if targets is None or tokens in targets:
                made.append(_table(group, protocol, tokens))
    return made


def _comparable(runs: Sequence[Run]) -> list[list[Run]]:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        settings = flatten({part: run.config[part] for part in COMPARED})
        kept = {key: value for key, value in settings.items() if not is_free(key)}
        groups[json.dumps([run.experiment, kept], sort_keys=True)].append(run)
    return list(groups.values())


def _table(group: list[Run], protocol: str, targets: str | None) -> Table:
    lengths = {r.length for run in group for r in run.results if _belongs(r, protocol, targets)}
    if targets is None:
        lengths = set(group[0].config["eval"]["lengths"])
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in group:
        by_name[run.name].append(run)
    first = group[0].config["train"]["length"]
    rows = [
        _row(name, same, protocol, targets, sorted(lengths), first)
        for name, same in by_name.items()
    ]
    rows = _mark_best(sorted(rows, key=lambda row: _order(row, max(lengths))))
    title = f"{group[0].experiment}: perplexity by length, {protocol}"
    caption = _caption(group, protocol, targets)
    return Table(title, caption, first, sorted(lengths), rows)


def _belongs(result: Result, protocol: str, targets: str | None) -> bool:
    return result.protocol == protocol and result.targets == targets and targets is not None


def _row(
    name: str,
    runs: list[Run],
    protocol: str,
    targets: str | None,
    lengths: list[int],
    train_length: int,
) -> Row:
    scored = {
        length: [
            result
            for run in runs
            for result in run.results
            if result.length == length
            and result.protocol == protocol
            and result.targets in (targets, None)
        ]
        for length in lengths
    }
    base = _mean(scored.get(train_length, []))
    summaries = [run.summary for run in runs if run.summary]
    return Row(
        name=name,
        seeds=len([run for run in runs if run.trouble is None]),
        cells={
            length: _cell(found, None if length == train_length else base)
            for length, found in scored.items()
        },
        positional_parameters=summaries[0]["positional_parameters"] if summaries else None,
        tokens_per_second=_median(summaries, "train_tokens_per_second"),
        peak_memory=_median(summaries, "train_peak_memory"),
        trouble=tuple(f"seed {run.seed} {run.trouble}" for run in runs if run.trouble),
    )


def _cell(found: list[Result], base: float | None) -> Cell:
    values = [result.perplexity for result in found if result.perplexity is not None]
    if not values:
        reasons = [result.reason for result in found if result.reason]
        return Cell(reason=reasons[0] if reasons else None)
    mean = statistics.mean(values)
    return Cell(
        perplexity=mean,
        spread=statistics.stdev(values) if len(values) > 1 else None,
        ratio=mean / base if base else None,
    )


def _mean(found: list[Result]) -> float | None:
    values = [result.perplexity for result in found if result.perplexity is not None]
    return statistics.mean(values) if values else None


def _median(summaries: list[dict[str, float]], key: str) -> float | None:
    return statistics.median(s[key] for s in summaries) if summaries else None


def _order(row: Row, longest: int) -> tuple[bool, float, str]:
    """Best at the longest length first, then what has no number there."""
    perplexity = row.cells[longest].perplexity
    return (perplexity is None, perplexity or 0.0, row.name)


def _mark_best(rows: list[Row]) -> list[Row]:
    """Each column's lowest value, where there is something to compare it with."""
    lowest: dict[int, float] = {}
    for row in rows:
        for length, cell in row.cells.items():
            if cell.perplexity is not None:
                lowest[length] = min(cell.perplexity, lowest.get(length, cell.perplexity))
    if len(rows) < 2:
        return rows
    return [
        dataclasses.replace(
            row,
            cells={
                length: dataclasses.replace(cell, best=cell.perplexity == lowest.get(length))
                if cell.perplexity is not None
                else cell
                for length, cell in row.cells.items()
            },
        )
        for row in rows
    ]


def _caption(group: list[Run], protocol: str, targets: str | None) -> str:
    """What every number of the table rests on."""
    config = group[0].config
    summary = next((run.summary for run in group if run.summary), {})
    scored = next(
        (r for run in group for r in run.results if _belongs(r, protocol, targets)), None
    )
    model = config["model"]
    seeds = sorted({run.seed for run in group})
    commits = sorted({str(run.provenance.get("commit")) for run in group})
    parts = [
        f"corpus {summary.get('corpus', '?')}, vocabulary {summary.get('vocabulary', '?')}",
        f"width {model['width']}, {model['layers']} layers, {model['heads']} heads",
        f"trained at length {config['train']['length']} on "
        f"{summary.get('tokens_trained', 0):,} tokens",
    ]
    if scored is not None:
        parts.append(f"{scored.tokens:,} targets {targets} of {scored.documents} documents")
    parts.append(
        f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed: no spread"
    )
    parts.append(f"commit {', '.join(commits)}")
    return "; ".join(parts)
