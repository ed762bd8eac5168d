"""Tables as the page shows them: texts, what they sort by, and what hovering says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Cell, Comparison, ProbeTable, Reach, Row
from posbench.report.writing.html.wording import percent
from posbench.report.writing.wording import KEPT, WORSE, ends, number, positional_remarks

SIGNS = {"holds": "", "worse": " ↑", "fails": " ↑↑", "": ""}  # colour is not all that tells
MEASURES = {
    "perplexity": "perplexity",
    "bits": "bits per byte",
    "words": "word perplexity",
    "ratio": "ratio",
    "rank": "rank",
    "against": "against baseline",
}


@dataclass(frozen=True)
class Reading:
    """A cell's text under one of MEASURES; measure "": the same under all."""

    text: str
    value: float | None = None  # to sort by
    detail: str = ""  # the interval, or why there is no number
    measure: str = ""
    mark: str = ""  # "best" or "tied"
    ratio: str = ""
    verdict: str = ""  # of the ratio: "holds", "worse" or "fails"

    @property
    def sortable(self) -> bool:
        """Whether there is a finite value to sort by; other cells come last."""
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True)
class Slot:
    """A cell of a table, and what hovering over it says."""

    readings: tuple[Reading, ...]
    says: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    about: str = ""  # in small letters below the name
    is_text: bool = False
    order: str = "none"  # aria-sort


@dataclass(frozen=True)
class Grid:
    """The first column holds the names of the rows."""

    label: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Slot, ...]], ...]


def headline(comparison: Comparison) -> Grid:
    """Encodings by lengths, and how far each of them reaches."""
    base, longest = comparison.train_length, max(comparison.lengths, default=0)
    columns = [Column("encoding", is_text=True)]
    for length in comparison.lengths:
        order = "ascending" if length == longest else "none"
        columns.append(Column(f"{length:,}", f"{length / base:g}×", order=order))
    columns += [Column("RECL"), Column("more context helps up to")]
    columns.append(Column("breaks (1.05×) at"))
    rows = []
    for row in comparison.rows:
        slots = [_slot(row, length, comparison) for length in comparison.lengths]
        slots += [_reach(reach) for reach in (row.recl, row.helps, row.breaks)]
        rows.append((row.name, tuple(slots)))
    return Grid(comparison.title, tuple(columns), tuple(rows))


def measures(comparison: Comparison) -> dict[str, str]:
    """The MEASURES that any cell has: key -> name."""
    cells = [cell for row in comparison.rows for cell in row.cells.values()]
    found = {reading.measure for cell in cells if cell.perplexity for reading in _readings(cell)}
    shown = {key: name for key, name in MEASURES.items() if key in found or key == "perplexity"}
    if "against" in shown and comparison.baseline is not None:
        shown["against"] = f"against {comparison.baseline}"
    return shown


def costs(comparison: Comparison) -> Grid:
    """What every encoding takes, and how it was tuned."""
    names = ["parameters", "positional parameters", "training, tokens/s", "evaluation, tokens/s"]
    names += ["peak memory, MiB", "wall time, s"]
    columns = [Column("encoding", is_text=True), *map(Column, names)]
    columns.append(Column("tuning", is_text=True))
    rows = [(row.name, (*_costs(row), plain(row.tuning))) for row in comparison.rows]
    return Grid(f"{comparison.experiment}: cost and tuning", tuple(columns), tuple(rows))


def recalls(table: ProbeTable) -> Grid:
    columns = [Column("encoding", is_text=True)]
    columns += [Column(f"{n:,}", f"{n / table.train_length:g}×") for n in table.distances]
    rows = []
    for row in table.rows:
        found = [_recall(row.recall.get(n), row.reasons.get(n, "")) for n in table.distances]
        rows.append((row.name, tuple(found)))
    return Grid(table.title, tuple(columns), tuple(rows))


def plain(text: str, value: float | None = None, detail: str = "") -> Slot:
    return Slot((Reading(text, value, detail),), detail)


def _slot(row: Row, length: int, comparison: Comparison) -> Slot:
    cell = row.cells.get(length, Cell())
    if cell.perplexity is None:
        return plain("n/a" if cell.reason else "–", detail=cell.reason or "not scored")
    readings = {reading.measure: reading for reading in _readings(cell)}
    if row.label == comparison.baseline and row.extension is None:
        readings["against"] = Reading("baseline", 1.0, measure="against")
    missing = {key: Reading("–", measure=key) for key in MEASURES}
    parts = [f"{MEASURES[key]} {r.text} {r.detail}".strip() for key, r in readings.items()]
    if cell.tied:
        parts.append("cannot be told apart from the best")
    parts.append(
        f"{comparison.level:.0%} intervals over {cell.documents} documents, {cell.seeds} seeds"
    )
    return Slot(tuple((missing | readings).values()), "\n".join(parts))


def _readings(cell: Cell) -> list[Reading]:
    """A Reading for each measure that a cell has."""
    assert cell.perplexity is not None
    mark = "best" if cell.best else "tied" if cell.tied else ""
    found = [_interval("perplexity", cell.perplexity, mark=mark, ratio=cell.ratio)]
    if cell.bits_per_byte is not None:
        text = number(cell.bits_per_byte, 3)
        found.append(Reading(text, cell.bits_per_byte, measure="bits", mark=mark))
    if cell.word_perplexity is not None:
        text = number(cell.word_perplexity)
        found.append(Reading(text, cell.word_perplexity, measure="words", mark=mark))
    if cell.ratio is not None:
        found.append(_interval("ratio", cell.ratio, "×", 3, ratio=cell.ratio))
    if cell.rank is not None:
        found.append(Reading(str(cell.rank), cell.rank, measure="rank", mark=mark))
    if cell.against is not None:
        found.append(_interval("against", cell.against, "×", 3, mark=mark))
    return found


def _interval(
    measure: str,
    shown: Interval,
    sign: str = "",
    places: int = 2,
    *,
    mark: str = "",
    ratio: Interval | None = None,
) -> Reading:
    verdict = "" if ratio is None else _verdict(ratio.value)
    beside = "" if ratio is None or ratio is shown else f"×{number(ratio.value)}{SIGNS[verdict]}"
    text = sign + number(shown.value, places) + (SIGNS[verdict] if ratio is shown else "")
    return Reading(text, shown.value, ends(shown, places), measure, mark, beside, verdict)


def _verdict(ratio: float) -> str:
    return "holds" if ratio <= KEPT else "worse" if ratio <= WORSE else "fails"


def _reach(reach: Reach) -> Slot:
    return plain(str(reach), reach.length, reach.reason or "")


def _costs(row: Row) -> list[Slot]:
    cost = row.cost
    memory = None if cost.peak_memory is None else cost.peak_memory / 2**20
    return [
        _count(cost.parameters),
        _count(cost.positional_parameters, positional_remarks(row)),
        _count(cost.train_tokens_per_second),
        _count(cost.eval_tokens_per_second),
        _count(memory),
        _count(cost.seconds, places=1),
    ]


def _count(value: float | None, after: str = "", places: int = 0) -> Slot:
    return plain("–") if value is None else plain(f"{value:,.{places}f}{after}", value)


def _recall(recall: Interval | None, reason: str) -> Slot:
    if recall is None:
        return plain("n/a" if reason else "–", detail=reason or "not probed")
    if recall.low is None or recall.high is None:
        return plain(percent(recall.value), recall.value)
    span = f"{percent(recall.low)} – {percent(recall.high)}"
    return plain(percent(recall.value), recall.value, span)
