"""From runs to comparisons: one for each group of comparable runs, protocol and set of tokens."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from posbench.report import groups, reach
from posbench.report.collect import Run
from posbench.report.comparison import Cell, Comparison, Cost, Reach, Row
from posbench.report.facts import facts, notes
from posbench.report.groups import Group
from posbench.report.scores import Entry, difference, entry, pooled
from posbench.results import Result
from posbench.statistics import Bootstrap, Interval, exponential


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a report is asked for besides runs."""

    bootstrap: Bootstrap
    baseline: str | None = None  # an encoding
    recl_share: float = 0.1  # of the tokens, the hardest ones


def compare(
    runs: Sequence[Run], settings: Settings, targets: set[str] | None = None
) -> list[Comparison]:
    """targets, where given, keeps the comparisons over these sets of scored tokens.

    Raises UserError where two folders hold the same run, and for a damaged file.
    """
    made = []
    for group in groups.comparable(runs):
        found = {(r.protocol, r.targets): None for run in group.runs for r in run.results}
        kinds: list[tuple[str, str | None]] = sorted(found) or [
            (group.config["eval"]["protocols"][0], None)
        ]
        for protocol, tokens in kinds:
            if targets is None or tokens in targets:
                made.append(_comparison(group, protocol, tokens, settings))
    return made


def _comparison(
    group: Group, protocol: str, targets: str | None, settings: Settings
) -> Comparison:
    entries = [
        entry(name, runs, extension, protocol, targets)
        for name, runs in groups.rows(group.runs).items()
        for extension in _extensions(runs, protocol, targets)
    ]
    lengths = sorted({length for each in entries for length in each.results})
    lengths = lengths or sorted(group.config["eval"]["lengths"])
    rows = _rows(entries, lengths, group, protocol, settings)
    baseline = next((e.name for e in entries if _is_baseline(e, settings)), None)
    return Comparison(
        experiment=group.runs[0].experiment,
        protocol=protocol,
        targets=targets,
        train_length=group.config["train"]["length"],
        lengths=tuple(lengths),
        rows=tuple(sorted(rows, key=_order)),
        baseline=baseline,
        level=settings.bootstrap.level,
        facts=facts(group, entries, settings.bootstrap),
        apart=group.apart,
        notes=notes(rows, settings.baseline is not None and baseline is None),
    )


def _extensions(runs: list[Run], protocol: str, targets: str | None) -> list[str | None]:
    """What was done to the context of these runs: a row each. None: nothing."""
    wanted = (protocol, targets)
    found = {r.extension for run in runs for r in run.results if (r.protocol, r.targets) == wanted}
    if any(run.trouble for run in runs):
        found.add(None)
    return sorted(found, key=lambda extension: extension or "")


def _is_baseline(entry: Entry, settings: Settings) -> bool:
    return entry.as_trained and settings.baseline in (entry.name, entry.runs[0].name)


def _rows(
    entries: list[Entry], lengths: list[int], group: Group, protocol: str, settings: Settings
) -> list[Row]:
    first, bootstrap = group.config["train"]["length"], settings.bootstrap
    columns = {n: _column(entries, n, first, settings) for n in lengths}
    same_tokens = protocol.split()[0] in reach.WHOLE_CONTEXT
    recl = [Reach(reason="windows hold all contexts")] * len(entries)
    if same_tokens:
        recl = reach.recl(entries, lengths, settings.recl_share)
    rows = []
    for number, each in enumerate(entries):
        cells = {n: columns[n][number] for n in lengths}
        scored = [n for n in lengths if each.scores.get(n)]
        contexts = scored and protocol != "fixed_targets"
        rows.append(
            Row(
                name=each.name if each.as_trained else f"{each.name} + {each.extension}",
                encoding=each.runs[0].name,
                cells=cells,
                cost=_cost(each, max(lengths)),
                lr_multiplier=each.runs[0].lr_multiplier,
                tuning=each.runs[0].tuned,
                recl=recl[number],
                helps=reach.helps(each, bootstrap),
                breaks=reach.breaks(cells, first),
                by_context=reach.by_context(each, scored[-1], bootstrap) if contexts else (),
                trouble=_trouble(each, group),
            )
        )
    return rows


def _column(entries: list[Entry], length: int, first: int, settings: Settings) -> list[Cell]:
    """Every entry's cell at a length, ranked and marked."""
    bootstrap = settings.bootstrap
    baseline = next((e for e in entries if _is_baseline(e, settings)), None)
    trained = {e.name: e for e in entries if e.as_trained}
    cells = []
    for each in entries:
        at_first = trained.get(each.name)
        own = length == first and each.as_trained
        other = None if each is baseline else baseline
        cells.append(
            dataclasses.replace(
                _cell(each, length, bootstrap),
                ratio=None if own else _ratio(each, at_first, length, first, bootstrap),
                against=_ratio(each, other, length, length, bootstrap),
            )
        )
    order = sorted(
        (n for n, cell in enumerate(cells) if cell.perplexity is not None),
        key=lambda n: _value(cells[n]),
    )
    for place, number in enumerate(order):
        best = _value(cells[number]) == _value(cells[order[0]])
        alike = not best and _alike(entries[number], entries[order[0]], length, bootstrap)
        cells[number] = dataclasses.replace(
            cells[number], rank=place + 1, best=best and len(entries) > 1, tied=alike
        )
    return cells


def _value(cell: Cell) -> float:
    assert cell.perplexity is not None
    return cell.perplexity.value


def _alike(these: Entry, those: Entry, length: int, bootstrap: Bootstrap) -> bool:
    """Whether the interval of their difference holds zero."""
    paired = difference(these.scores[length], those.scores[length])
    interval = None if paired is None else bootstrap.interval(paired)
    return interval is not None and interval.low is not None and interval.holds(0.0)


def _cell(each: Entry, length: int, bootstrap: Bootstrap) -> Cell:
    results = each.results.get(length, {})
    scores = each.scores.get(length)
    if not scores:
        reasons = [result.reason for result in results.values() if result.reason]
        return Cell(reason=reasons[0] if reasons else None)
    found = [result for result in results.values() if result.nll is not None]
    return Cell(
        perplexity=bootstrap.interval(pooled(scores)).map(exponential),
        bits_per_byte=_mean(found, lambda result: result.bits_per_byte),
        word_perplexity=_geometric(found),
        seeds=len(found),
        documents=found[0].documents or 0,
    )


def _ratio(
    each: Entry, other: Entry | None, length: int, at: int, bootstrap: Bootstrap
) -> Interval | None:
    """Perplexity at a length over another's at another, paired."""
    if other is None or not each.scores.get(length) or not other.scores.get(at):
        return None
    paired = difference(each.scores[length], other.scores[at])
    return None if paired is None else bootstrap.interval(paired).map(exponential)


def _mean(found: list[Result], value: Callable[[Result], float | None]) -> float | None:
    values = [v for result in found if (v := value(result)) is not None]
    return statistics.mean(values) if values else None


def _geometric(found: list[Result]) -> float | None:
    """exp of the mean over seeds, as a perplexity is."""
    rate = _mean(found, lambda r: r.nll / r.words if r.nll is not None and r.words else None)
    return None if rate is None else exponential(rate)


def _cost(each: Entry, longest: int) -> Cost:
    summaries = [run.summary for run in each.runs if run.summary]
    if not summaries:
        return Cost()
    speeds = [r.tokens_per_second for r in each.results.get(longest, {}).values()]
    return Cost(
        parameters=summaries[0].get("parameters"),
        positional_parameters=summaries[0].get("positional_parameters"),
        train_tokens_per_second=_median([s.get("train_tokens_per_second") for s in summaries]),
        eval_tokens_per_second=_median(speeds),
        peak_memory=_median([s.get("train_peak_memory") for s in summaries]),
        seconds=_median([_seconds(run) for run in each.runs]),
    )


def _seconds(run: Run) -> float | None:
    """Training, by its median speed, and evaluation."""
    speed = run.summary.get("train_tokens_per_second")
    if not speed:
        return None
    return float(run.summary["tokens_trained"] / speed) + sum(r.seconds or 0 for r in run.results)


def _median(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _trouble(each: Entry, group: Group) -> tuple[str, ...]:
    """What is missing, and why."""
    trouble = [f"seed {run.seed} {run.trouble}" for run in each.runs if run.trouble]
    scored = len(each.runs)
    if not each.as_trained:
        scored = len({seed for found in each.results.values() for seed in found})
    seeds = len({run.seed for run in group.runs})
    return (*trouble, f"{scored} of {seeds} seeds") if scored < seeds else tuple(trouble)


def _order(row: Row) -> tuple[bool, float, str]:
    """Best at the longest length first, then what has no number there."""
    interval = row.longest.perplexity
    return (interval is None, interval.value if interval else 0.0, row.name)
