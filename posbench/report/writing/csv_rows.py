"""CSV, one row for each number: of every seed, and of all of them with its interval."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from posbench.evaluation.results import Result
from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Comparison, ProbeTable, Report, Row
from posbench.report.reading import groups
from posbench.report.reading.collect import Run

COLUMNS = (
    "experiment row encoding extension seed protocol targets train_length length context_first "
    "context_last quantity value low high tokens documents reason commit device corpus_hash"
).split()

Line = dict[str, object]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet's formula begins


def tidy(report: Report, runs: Sequence[Run]) -> str:
    """The CSV text of a report.

    Column seed is "all" for what rests on every seed; row is the label in the tables, which tells
    settings of one encoding apart. A run that failed has a line with the reason.
    """
    labels = {
        run.folder: label
        for group in groups.comparable(runs)
        for label, those in groups.rows(group.runs).items()
        for run in those
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        writer.writerows(map(_harmless, _run(run, labels[run.folder])))
    for comparison in report.comparisons:
        for row in comparison.rows:
            writer.writerows(map(_harmless, _row(comparison, row)))
    for probe in report.probes:
        writer.writerows(map(_harmless, _probe(probe)))
    return text.getvalue()


def _harmless(line: Line) -> Line:
    """The line, with an apostrophe before each text that a spreadsheet would run as a formula."""
    return {
        key: f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
        for key, value in line.items()
    }


def _run(run: Run, label: str) -> Iterator[Line]:
    place: Line = {
        "experiment": run.experiment,
        "row": label,
        "encoding": run.name,
        "seed": run.seed,
        "train_length": run.config["train"]["length"],
        "commit": run.provenance.get("commit"),
        "device": run.provenance.get("device"),
        "corpus_hash": run.provenance.get("corpus_hash"),
    }
    if run.why_incomplete:
        yield {**place, "quantity": "status", "reason": run.why_incomplete}
    if run.parts:
        yield {**place, "quantity": "parts", "reason": run.parts}
    costs = (
        "parameters positional_parameters objective_parameters "
        "tokens_trained train_tokens_per_second train_peak_memory"
    )
    for name in costs.split():
        if name in run.summary:
            yield {**place, "quantity": name, "value": run.summary[name]}
    if run.tuning is not None:
        yield {**place, "quantity": "tuning_trials", "value": run.tuning["trials"]}
    yield {**place, "quantity": "learning_rate", "value": run.config["optim"].get("lr")}
    yield {**place, "quantity": "lr_multiplier", "value": run.lr_multiplier}
    for result in run.results:
        yield from (place | line for line in _result(result))


def _result(result: Result) -> Iterator[Line]:
    place: Line = {
        "extension": result.extension,
        "protocol": result.protocol,
        "targets": result.targets,
        "length": result.length,
        "tokens": result.tokens,
        "documents": result.documents,
    }
    if result.nll is None:
        for name in ("nll", "perplexity"):
            yield {**place, "quantity": name, "reason": result.reason}
        return
    names = "nll perplexity bits_per_byte word_perplexity tokens_per_second peak_memory seconds"
    for name in names.split():
        if (value := getattr(result, name)) is not None:
            yield {**place, "quantity": name, "value": value}


def _row(comparison: Comparison, row: Row) -> Iterator[Line]:
    place: Line = {
        "experiment": comparison.experiment,
        "row": row.label,
        "encoding": row.encoding,
        "extension": row.extension,
        "seed": "all",
        "protocol": comparison.protocol,
        "targets": comparison.targets,
        "train_length": comparison.train_length,
    }
    for length, cell in row.cells.items():
        at = {**place, "length": length, "documents": cell.documents}
        intervals = {
            "perplexity": cell.perplexity,
            "ratio_to_training_length": cell.ratio,
            f"ratio_to_{comparison.baseline}": cell.against,
        }
        for name, interval in intervals.items():
            if interval is not None:
                yield {**at, "quantity": name, **_ends(interval)}
        for name in ("bits_per_byte", "word_perplexity"):
            if (value := getattr(cell, name)) is not None:
                yield {**at, "quantity": name, "value": value}
        if cell.rank is not None:
            yield {**at, "quantity": "rank", "value": cell.rank}
            yield {**at, "quantity": "tied_with_best", "value": int(cell.tied or cell.best)}
    for name, reach in (("recl", row.recl), ("helps_to", row.helps), ("breaks_at", row.breaks)):
        said = "at or past this" if reach.beyond else reach.reason
        yield {**place, "quantity": name, "value": reach.length, "reason": said}
    for part in row.by_context:
        at = {**place, "length": max(row.cells), "tokens": part.tokens}
        at |= {"context_first": part.first, "context_last": part.last}
        yield {**at, "quantity": "loss_at_context", **_ends(part.loss)}


def _probe(probe: ProbeTable) -> Iterator[Line]:
    for row in probe.rows:
        place: Line = {
            "experiment": probe.experiment,
            "row": row.label,
            "seed": "all",
            "protocol": probe.probe,
            "targets": probe.trials,
            "train_length": probe.train_length,
            "quantity": probe.measure,
        }
        for distance in probe.distances:
            if distance in row.recall:
                yield {**place, "length": distance, **_ends(row.recall[distance])}
            elif distance in row.reasons:
                yield {**place, "length": distance, "reason": row.reasons[distance]}


def _ends(interval: Interval) -> Line:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
