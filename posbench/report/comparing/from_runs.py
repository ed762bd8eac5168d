"""From runs to comparisons: one for each group of comparable runs, protocol and set of tokens."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from posbench.evaluation.statistics import Bootstrap
from posbench.report.comparing import reach
from posbench.report.comparing.cells import column
from posbench.report.comparing.comparison import MASKED, Comparison, Cost, Reach, Row
from posbench.report.comparing.facts import facts, notes, parts
from posbench.report.comparing.scores import Entry, entry
from posbench.report.reading import groups
from posbench.report.reading.collect import Run
from posbench.report.reading.groups import Group


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a comparison depends on besides the runs."""

    bootstrap: Bootstrap
    baseline: str | None = None  # an encoding
    recl_share: float = 0.1  # of the tokens, the hardest ones


def comparisons(
    runs: Sequence[Run], settings: Settings, targets: set[str] | None = None
) -> list[Comparison]:
    """A Comparison for each group of comparable runs, protocol and set of scored tokens.

    targets, where given: hashes of the sets of scored tokens that are wanted.

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
        apart=(*group.apart, *_other_tokens(group, protocol, targets)),
        notes=notes(rows, settings.baseline is not None and baseline is None),
    )


def _other_tokens(group: Group, protocol: str, targets: str | None) -> list[str]:
    """Notes on runs of the group scored over other tokens, which are in another table."""
    told: dict[tuple[str, str | None], list[str]] = {}
    for run in group.runs:
        for result in run.results:
            place = (result.protocol, result.targets)
            if place[0] == protocol and place[1] != targets:
                told.setdefault(place, []).append(run.name)
    return [
        f"scored over other tokens ({hashed}), in another table: {', '.join(dict.fromkeys(names))}"
        for (_, hashed), names in told.items()
    ]


def _extensions(runs: list[Run], protocol: str, targets: str | None) -> list[str | None]:
    """The extensions these runs were scored with, each a row; None: without extension."""
    wanted = (protocol, targets)
    found = {r.extension for run in runs for r in run.results if (r.protocol, r.targets) == wanted}
    if any(run.why_incomplete for run in runs):
        found.add(None)
    return sorted(found, key=lambda extension: extension or "")


def _is_baseline(entry: Entry, settings: Settings) -> bool:
    return entry.as_trained and settings.baseline in (entry.name, entry.runs[0].name)


def _rows(
    entries: list[Entry], lengths: list[int], group: Group, protocol: str, settings: Settings
) -> list[Row]:
    first, bootstrap = group.config["train"]["length"], settings.bootstrap
    baseline = next((each for each in entries if _is_baseline(each, settings)), None)
    columns = {n: column(entries, n, first, baseline, bootstrap) for n in lengths}
    name = protocol.removeprefix(MASKED).split()[0]
    same_tokens = name in reach.WHOLE_CONTEXT
    recl = [Reach(reason="windows hold all contexts")] * len(entries)
    if same_tokens:
        recl = reach.recl(entries, lengths, settings.recl_share)
    seeds = {seed for each in entries for found in each.results.values() for seed in found}
    rows = []
    for number, each in enumerate(entries):
        cells = {n: columns[n][number] for n in lengths}
        breaks = reach.breaks(cells, first)
        contexts = each.scores.get(lengths[-1]) and name not in reach.ONE_CONTEXT
        rows.append(
            Row(
                label=each.name,
                encoding=each.runs[0].name,
                extension=each.extension,
                cells=cells,
                cost=_cost(each, max(lengths)),
                lr_multiplier=each.runs[0].lr_multiplier,
                tuning=each.runs[0].tuned,
                recl=reach.recl_unless_broken(recl[number], breaks),
                helps=reach.helps(each, bootstrap),
                breaks=breaks,
                by_context=reach.by_context(each, lengths[-1], bootstrap) if contexts else (),
                missing=_missing(each, seeds),
                parts=parts(each.runs),
            )
        )
    return rows


def _cost(each: Entry, longest: int) -> Cost:
    summaries = [run.summary for run in each.runs if run.summary]
    if not summaries:
        return Cost()
    speeds = [r.tokens_per_second for r in each.results.get(longest, {}).values()]
    return Cost(
        parameters=summaries[0].get("parameters"),
        positional_parameters=summaries[0].get("positional_parameters"),
        decoder_parameters=summaries[0].get("objective_parameters"),
        train_tokens_per_second=_median([s.get("train_tokens_per_second") for s in summaries]),
        eval_tokens_per_second=_median(speeds),
        peak_memory=_median([s.get("train_peak_memory") for s in summaries]),
        seconds=_median([_seconds(run, each) for run in each.runs]),
    )


def _seconds(run: Run, each: Entry) -> float | None:
    """Seconds of training, from its median speed, and of this row's evaluations."""
    speed = run.summary.get("train_tokens_per_second")
    if not speed:
        return None
    scored = [found[run.seed] for found in each.results.values() if run.seed in found]
    return float(run.summary["tokens_trained"] / speed) + sum(r.seconds or 0 for r in scored)


def _median(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _missing(each: Entry, seeds: set[int]) -> tuple[str, ...]:
    """The entry's seeds that failed or are not there, and why. seeds: of the whole table."""
    failed = {run.seed: run.why_incomplete for run in each.runs if run.why_incomplete}
    found = [f"seed {seed} {reason}" for seed, reason in failed.items()]
    scored = {seed for found in each.results.values() for seed in found}
    if absent := seeds - scored - failed.keys():
        found.append(f"no seed {', '.join(map(str, sorted(absent)))}")
    return tuple(found)


def _order(row: Row) -> tuple[bool, float, str]:
    """Sort key: by perplexity at the longest length, rows without one last."""
    interval = row.longest.perplexity
    return (interval is None, interval.value if interval else 0.0, row.name)
