"""Captions and notes of a table: what its numbers rest on, and what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posbench.evaluation.statistics import Bootstrap
from posbench.report.comparing.comparison import Row
from posbench.report.comparing.scores import Entry
from posbench.report.reading.collect import Run
from posbench.report.reading.groups import Group, decoder
from posbench.terminal.tables import counts

OBJECTIVE = ("share", "masked", "random", "spans")  # keys that a caption has


def facts(group: Group, entries: Sequence[Entry], bootstrap: Bootstrap) -> dict[str, str]:
    """A comparison's caption, in order: name of a fact -> its text."""
    told = setting(group)
    results = [r for each in entries for found in each.results.values() for r in found.values()]
    scored = next((result for result in results if result.tokens), None)
    if scored is not None:
        told["scored"] = (
            f"{scored.tokens:,} targets {scored.targets} of {scored.documents} documents"
        )
    seeds = {seed for each in entries for found in each.results.values() for seed in found}
    told["seeds"] = seeds_in_words(seeds or {run.seed for run in group.runs})
    if scored is not None:
        told["intervals"] = _intervals(entries, bootstrap)
    told["commit"] = commits(group.runs)
    return told


def setting(group: Group) -> dict[str, str]:
    """The facts common to a group's runs; those that training finds, where any run has them."""
    config = group.config
    model, train = config["model"], config["train"]
    told = {"corpus": str(config["corpus"].get("name") or _class(config["corpus"]))}
    told["tokenizer"] = _class(config["tokenizer"])
    told["model"] = f"width {model['width']}, {model['layers']} layers, {model['heads']} heads"
    told |= _objective(group)
    told["trained"] = f"at length {train['length']}"
    if summary := next((run.summary for run in group.runs if run.summary), None):
        told["corpus"] = str(summary.get("corpus"))
        told["tokenizer"] += f", vocabulary {summary.get('vocabulary', 0):,}"
        told["trained"] = f"on {summary.get('tokens_trained', 0):,} tokens {told['trained']}"
    remarks = [run.provenance.get("corpus_remarks", {}) for run in group.runs]
    if said := counts({kind: count for each in remarks for kind, count in each.items()}):
        told["corpus"] += f" ({said})"
    told["learning rates"] = _tuning(group.runs)
    return told


def _objective(group: Group) -> dict[str, str]:
    """What models other than causal ones predict, and which have an enhanced decoder."""
    settings = group.config.get("objective", {})
    if (name := _class(settings)) in ("Causal", "None"):
        return {}
    shown = [f"{key} {value}" for key, value in settings.items() if key in OBJECTIVE]
    enhanced = dict.fromkeys(run.name for run in group.runs if decoder(run))
    all_of_them = len(enhanced) == len({run.name for run in group.runs})
    if enhanced:
        shown.append("enhanced decoder" + (f" of {', '.join(enhanced)}" * (not all_of_them)))
    return {"objective": ", ".join([name.lower(), *shown])}


def commits(runs: Sequence[Run]) -> str:
    """All commits of posbench that the runs were made with."""
    return ", ".join(sorted({commit for run in runs for commit in run.commits}))


def _class(settings: dict[str, Any]) -> str:
    return str(settings.get("_target_")).rpartition(".")[2]


def seeds_in_words(seeds: Collection[int]) -> str:
    """The seeds as text; of a single seed, also what that means."""
    if len(seeds) > 1:
        return ", ".join(map(str, sorted(seeds)))
    (seed,) = seeds
    return f"{seed} alone, so nothing is known of how another training run would differ"


def _intervals(entries: Sequence[Entry], bootstrap: Bootstrap) -> str:
    found = [scores for each in entries for scores in each.scores.values()]
    documents = {len(score.documents) for scores in found for score in scores.values()}
    if max(documents, default=0) < 2:
        return "none, for want of losses by document"
    over = f"{_range(documents)} documents"
    if max(map(len, found)) > 1:
        over += f" and {_range({len(scores) for scores in found})} seeds"
    return f"{bootstrap.level:.0%}, paired block bootstrap over {over}, {bootstrap.draws:,} draws"


def _range(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _tuning(runs: Sequence[Run]) -> str:
    """ "untuned", "tuned, 6 trials each", or which runs are which."""
    kinds: dict[str, list[str]] = defaultdict(list)
    budgets = {_budget(run) for run in runs} - {None}
    for run in runs:
        kind = "untuned"
        if run.tuning is not None:
            kind = f"tuned, {run.tuning['trials']} trials"
            kind += f" of another kind ({_budget(run)})" if len(budgets) > 1 else ""
        if run.name not in kinds[kind]:
            kinds[kind].append(run.name)
    if len(kinds) == 1:
        (kind,) = kinds
        return kind if kind == "untuned" else f"{kind} each"
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in sorted(kinds.items()))


def _budget(run: Run) -> str | None:
    """The budget of a run's tuning trials, besides their number; None: untuned."""
    if run.tuning is None:
        return None
    known = run.tuning["budget"].items()
    return ", ".join(
        f"{key} {value}" for key, value in known if key not in ("trials", "corpus_hash")
    )


def unmeasured(name: str, reasons: Mapping[int, str | None]) -> list[str]:
    """Why a row lacks numbers: a line a reason, with its lengths or distances where several."""
    lengths: dict[str, list[str]] = defaultdict(list)
    for length, reason in reasons.items():
        if reason:
            lengths[reason].append(f"{length:,}")
    several = len(lengths) > 1
    return [
        f"{name}, n/a{' at ' * several}{' and '.join(found) * several}: {reason}"
        for reason, found in lengths.items()
    ]


def parts(runs: Sequence[Run]) -> tuple[str, ...]:
    """A note for each training resumed on another machine: where its parts ran."""
    return tuple(
        f"seed {run.seed} is of several parts, so an undisturbed run may differ: {run.parts}"
        for run in runs
        if run.parts
    )


def notes(rows: Sequence[Row], without_baseline: bool) -> tuple[str, ...]:
    """Why numbers are missing and what a mark on a name means; no note twice."""
    told = [f"{row.name}: {said}" for row in rows for said in (*row.missing, *row.parts)]
    for row in rows:
        told += unmeasured(row.name, {n: cell.reason for n, cell in row.cells.items()})
        for length, cell in row.cells.items():
            told += [f"{row.name}, {length:,} without {why}" for why in cell.without]
    if without_baseline:
        told.append("the baseline is not among these runs")
    return tuple(dict.fromkeys(told))
