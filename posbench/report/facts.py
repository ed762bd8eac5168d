"""What every number of a table rests on, and what is missing from it, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from posbench.report.collect import Run
from posbench.report.comparison import Row
from posbench.report.groups import Group
from posbench.report.scores import Entry
from posbench.statistics import Bootstrap


def facts(group: Group, entries: Sequence[Entry], bootstrap: Bootstrap) -> dict[str, str]:
    """For a caption, in order."""
    config = group.config
    summary = next((run.summary for run in group.runs if run.summary), {})
    model, train = config["model"], config["train"]
    results = [r for each in entries for found in each.results.values() for r in found.values()]
    scored = next((result for result in results if result.tokens), None)
    told = {
        "corpus": str(summary.get("corpus", "?")),
        "tokenizer": f"{summary.get('tokenizer')}, vocabulary {summary.get('vocabulary', 0):,}",
        "model": f"width {model['width']}, {model['layers']} layers, {model['heads']} heads",
        "trained on": f"{summary.get('tokens_trained', 0):,} tokens at length {train['length']}",
    }
    if scored is not None:
        told["scored"] = (
            f"{scored.tokens:,} targets {scored.targets} of {scored.documents} documents"
        )
    told["learning rates"] = _tuning(group.runs)
    told["seeds"] = _seeds(group.runs)
    if scored is not None:
        told["intervals"] = _intervals(entries, bootstrap)
    told["commit"] = ", ".join(sorted({str(run.provenance.get("commit")) for run in group.runs}))
    return told


def _seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({run.seed for run in runs})
    if len(seeds) > 1:
        return ", ".join(map(str, seeds))
    return f"{seeds[0]} alone, so nothing is known of how another training run would differ"


def _intervals(entries: Sequence[Entry], bootstrap: Bootstrap) -> str:
    scores = [s for each in entries for found in each.scores.values() for s in found.values()]
    documents = max((len(score.documents) for score in scores), default=0)
    if documents < 2:
        return "none, for want of documents"
    seeds = max(len(found) for each in entries for found in each.scores.values())
    over = f"{documents} documents" + (f" and {seeds} seeds" if seeds > 1 else "")
    return f"{bootstrap.level:.0%}, paired block bootstrap over {over}, {bootstrap.draws:,} draws"


def _tuning(runs: Sequence[Run]) -> str:
    """ "untuned", "tuned, 6 trials each", or who is what."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        trials = None if run.tuning is None else run.tuning["trials"]
        kind = "untuned" if trials is None else f"tuned, {trials} trials"
        if run.name not in kinds[kind]:
            kinds[kind].append(run.name)
    if len(kinds) == 1:
        (kind,) = kinds
        return kind if kind == "untuned" else f"{kind} each"
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in sorted(kinds.items()))


def notes(rows: Sequence[Row], without_baseline: bool) -> tuple[str, ...]:
    """Why there is no number, each reason once."""
    told = [f"{row.name}: {trouble}" for row in rows for trouble in row.trouble]
    for row in rows:
        told += [f"{row.name}, n/a: {cell.reason}" for cell in row.cells.values() if cell.reason]
    if without_baseline:
        told.append("the baseline is not among these runs")
    return tuple(dict.fromkeys(told))
