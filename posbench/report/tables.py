"""Perplexity by encoding and length, from runs that can be compared.

Runs share a table only if corpus, tokenizer, model, training, optimizer, dtype, protocol and
scored tokens are the same; the encoding, and its optimizer group, are what may differ. Runs share
a row, as its seeds, only if these are the same too.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posbench.errors import UserError
from posbench.report.collect import Run
from posbench.results import Result
from posbench.run_folder import flatten, is_free

COMPARED = ("corpus", "tokenizer", "model", "train", "optim")


@dataclass(frozen=True)
class Cell:
    """Mean perplexity over the seeds; spread is their standard deviation, None for one seed."""

    perplexity: float | None = None
    spread: float | None = None
    ratio: float | None = None  # to the value at the training length, as trained; elsewhere
    reason: str | None = None  # why there can be no number; None: not scored (yet)
    best: bool = False  # in its column


@dataclass(frozen=True)
class Row:
    """One encoding, or an extension of its context, over its seeds."""

    name: str
    cells: dict[int, Cell]
    positional_parameters: int | None
    lr_multiplier: float  # of the positional parameters
    tokens_per_second: float | None
    peak_memory: float | None  # bytes, training
    trouble: tuple[str, ...]  # what is missing, and why


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
        scored = {(r.protocol, r.targets) for run in group for r in run.results}
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
        began = [run.provenance.get(key) for key in ("corpus_hash", "dtype")]
        groups[json.dumps([run.experiment, kept, began], sort_keys=True)].append(run)
    return list(groups.values())


def _table(group: list[Run], protocol: str, targets: str | None) -> Table:
    lengths = {r.length for run in group for r in run.results if _belongs(r, protocol, targets)}
    if targets is None:
        lengths = set(group[0].config["eval"]["lengths"])
    first = group[0].config["train"]["length"]
    seeds = {run.seed for run in group}
    rows = [
        _row(name, runs, extension, protocol, targets, sorted(lengths), first, len(seeds))
        for name, runs in _by_encoding(group).items()
        for extension in _extensions(runs, protocol, targets)
    ]
    rows = _mark_best(sorted(rows, key=lambda row: _order(row, max(lengths))))
    title = f"{group[0].experiment}: perplexity by length, {protocol}"
    caption = _caption(group, protocol, targets)
    return Table(title, caption, first, sorted(lengths), rows)


def _by_encoding(group: list[Run]) -> dict[str, list[Run]]:
    """Label of a row -> its seeds. Runs of one name that differ in the encoding are told apart.

    Raises UserError where two folders hold the same run.
    """
    kinds: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in group:
        kinds[run.name][json.dumps(run.config["encoding"], sort_keys=True)].append(run)
    rows: dict[str, list[Run]] = {}
    for name, variants in kinds.items():
        flat = [flatten(runs[0].config["encoding"]) for runs in variants.values()]
        for settings, runs in zip(flat, variants.values(), strict=True):
            _require_distinct(runs)
            differing = [k for k in settings if any(o.get(k) != settings[k] for o in flat)]
            suffix = ", ".join(f"{key}={settings[key]}" for key in differing)
            rows[f"{name} ({suffix})" if suffix else name] = runs
    return rows


def _extensions(runs: list[Run], protocol: str, targets: str | None) -> list[str | None]:
    """What was done to the context of these runs: a row each. None: nothing."""
    found = {r.extension for run in runs for r in run.results if _belongs(r, protocol, targets)}
    if any(run.trouble for run in runs):
        found.add(None)
    return sorted(found, key=lambda extension: extension or "")


def _require_distinct(runs: list[Run]) -> None:
    seen: dict[int, Run] = {}
    for run in runs:
        if run.seed in seen:
            raise UserError(
                f"{seen[run.seed].folder} and {run.folder} are both {run.name} seed {run.seed}; "
                "leave one out of runs=[...]"
            )
        seen[run.seed] = run


def _belongs(result: Result, protocol: str, targets: str | None) -> bool:
    return result.protocol == protocol and result.targets == targets


def _row(
    name: str,
    runs: list[Run],
    extension: str | None,
    protocol: str,
    targets: str | None,
    lengths: list[int],
    train_length: int,
    seeds: int,
) -> Row:
    results = [r for run in runs for r in run.results if _belongs(r, protocol, targets)]
    scored = {
        length: [r for r in results if r.length == length and r.extension == extension]
        for length in lengths
    }
    base = _mean([r for r in results if r.length == train_length and r.extension is None])
    summaries = [run.summary for run in runs if run.summary]
    trouble = [f"seed {run.seed} {run.trouble}" for run in runs if run.trouble]
    scored_seeds = len(runs)
    if extension is not None:
        scored_seeds = sum(any(r.extension == extension for r in run.results) for run in runs)
    if scored_seeds < seeds:
        trouble.append(f"{scored_seeds} of {seeds} seeds")
    return Row(
        name=name if extension is None else f"{name} + {extension}",
        cells={
            length: _cell(found, None if length == train_length and extension is None else base)
            for length, found in scored.items()
        },
        positional_parameters=summaries[0]["positional_parameters"] if summaries else None,
        lr_multiplier=runs[0].lr_multiplier,
        tokens_per_second=_median(summaries, "train_tokens_per_second"),
        peak_memory=_median(summaries, "train_peak_memory"),
        trouble=tuple(trouble),
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
    belonging = (r for run in group for r in run.results if _belongs(r, protocol, targets))
    scored = next((result for result in belonging if result.tokens), None)
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
