"""A report as a LaTeX document. Its tables can be pasted into a paper: they need only booktabs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Cell, Comparison, ProbeTable, Report, Row
from posbench.report.writing import wording
from posbench.report.writing.latex.escape import NONE, escape, number
from posbench.report.writing.latex.floats import Table, floats

HEAD = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,margin=15mm]{geometry}
\usepackage{booktabs}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\setlength{\belowcaptionskip}{6pt}
\sloppy
\begin{document}
"""
TAIL = "\\end{document}\n"
NUMBER = re.compile(r"[-+−×≥≤~]? ?[\d.,]+(e[-+]?\d+)? ?[%×]?|[-–—]*|n/a|nan|inf")
COSTS = (
    "medians over the seeds; lr ×: the learning-rate multiplier of the positional parameters; "
    "eval: at the longest length; MiB: peak memory of training; s: training and evaluation"
)


def latex(report: Report, extra: Sequence[wording.Extra] = ()) -> str:
    """A document that compiles as it is; each table stands between comments that name it."""
    groups = [_of_comparison(comparison) for comparison in report.comparisons]
    groups.append([_of_probe(probe) for probe in report.probes])
    groups.append([_of_extra(*table) for table in extra])
    labels: Counter[str] = Counter()
    made = ["\n".join(floats(table, labels) for table in group) for group in groups if group]
    return HEAD + "\n\\clearpage\n".join(made or ["No runs.\n"]) + TAIL


def _of_comparison(table: Comparison) -> list[Table]:
    """Perplexities, their intervals, two ratios, what the curves tell, and what it cost."""
    level = f"{100 * table.level:g}%"
    marks = f"bold: lowest of its column; underlined: not told apart from it at {level}"
    ends = f"{level} intervals of the perplexities"
    own = f"perplexity over its value at the training length {table.train_length:,}, as trained"
    made = [
        _grid(table, "", _perplexity, marks, [*table.notes, *table.apart]),
        _grid(table, ", intervals", lambda cell: _interval(cell.perplexity), ends),
        _grid(table, ", ratios", lambda cell: _times(cell.ratio), own),
    ]
    if table.baseline is not None:
        other = f", against {table.baseline}"
        told = f"perplexity over that of {table.baseline} at the same length"
        made.append(_grid(table, other, lambda cell: _times(cell.against), told))
    return [*made, _reach(table), _costs(table)]


def _grid(
    table: Comparison,
    kind: str,
    shown: Callable[[Cell], str],
    told: str,
    notes: Sequence[str] = (),
) -> Table:
    """Encodings down, lengths across."""
    multiples = [rf"{n / table.train_length:.3g}$\times$" for n in table.lengths]
    return Table(
        table.title + kind,
        [["", *(f"{n:,}" for n in table.lengths)], ["encoding", *multiples]],
        [[escape(row.name), *(shown(row.cells[n]) for n in table.lengths)] for row in table.rows],
        _caption(f"{told}; second line: multiples of the training length", table),
        notes,
    )


def _perplexity(cell: Cell) -> str:
    if cell.perplexity is None:
        return NONE
    text = number(cell.perplexity.value)
    if cell.best:
        return rf"\textbf{{{text}}}"
    return rf"\underline{{{text}}}" if cell.tied else text


def _interval(value: Interval | None) -> str:
    if value is None or value.low is None or value.high is None:
        return NONE
    return f"{{[}}{number(value.low)}, {number(value.high)}]"


def _times(ratio: Interval | None) -> str:
    return NONE if ratio is None else number(ratio.value)


def _reach(table: Comparison) -> Table:
    ends = sorted({max(table.lengths), table.train_length} & {*table.lengths})
    words = any(c.word_perplexity for row in table.rows for c in row.cells.values())
    kinds = ["rank", "bits/byte", *(["word ppl"] if words else [])]
    top = ["", "RECL", "helps", "breaks", *(kind for kind in kinds for _ in ends)]
    second = ["encoding", "", "to", "at", *(f"at {n:,}" for _ in kinds for n in ends)]
    rows = []
    for row in table.rows:
        reaches = [escape(str(reach)) for reach in (row.recl, row.helps, row.breaks)]
        cells = [row.cells[n] for n in ends]
        values = [_optional(cell.rank, "d") for cell in cells]
        values += [_optional(cell.bits_per_byte, ".3f") for cell in cells]
        values += [_optional(cell.word_perplexity, ",.1f") for cell in cells if words]
        rows.append([escape(row.name), *reaches, *values])
    reasons = [
        (row.name, r.reason) for row in table.rows for r in (row.recl, row.helps, row.breaks)
    ]
    told = f"{wording.REACH} {table.train_length:,}; lengths in tokens"
    return Table(
        f"{table.title}, reach", [top, second], rows, _caption(told, table), _by_reason(reasons)
    )


def _costs(table: Comparison) -> Table:
    top = ["", "all", "positional", "", "train", "eval", "peak", "", ""]
    second = ["encoding", "parameters", "parameters", r"lr $\times$", "tok/s", "tok/s", "MiB", "s"]
    return Table(
        f"{table.title}, costs",
        [top, [*second, "tuning"]],
        [_cost(row) for row in table.rows],
        _caption(COSTS, table),
        left=frozenset({len(second)}),
    )


def _cost(row: Row) -> list[str]:
    cost = row.cost
    memory = None if cost.peak_memory is None else cost.peak_memory / 2**20
    more = f" + {cost.decoder_parameters:,d}" if cost.decoder_parameters else ""
    rates = (cost.train_tokens_per_second, cost.eval_tokens_per_second)
    return [
        escape(row.name),
        _optional(cost.parameters, ",d"),
        _optional(cost.positional_parameters, ",d") + more,
        f"{row.lr_multiplier:g}",
        *(_optional(value, ",.0f") for value in (*rates, memory, cost.seconds)),
        escape(row.tuning),
    ]


def _of_probe(table: ProbeTable) -> Table:
    rows = []
    for row in table.rows:
        found = [row.recall.get(distance) for distance in table.distances]
        rows.append([escape(row.name), *(_share(share, table.chance) for share in found)])
    headers = ["encoding", *(f"{distance:,}" for distance in table.distances)]
    told = f"Per cent, by distance in tokens; trained at length {table.train_length:,}"
    return Table(table.title, [headers], rows, f"{told}; {wording.probe(table)}.", table.notes)


def _share(share: Interval | None, chance: float) -> str:
    if share is None:
        return NONE
    text = f"{100 * share.value:.1f}"
    return rf"\textbf{{{text}}}" if share.low is not None and share.low > chance else text


def _of_extra(title: str, headers: list[str], rows: list[list[str]], caption: str) -> Table:
    """A further table; columns of numbers are right-aligned."""
    columns = list(zip(*rows, strict=True)) or [()] * len(headers)
    text = {
        place
        for place, column in enumerate(columns)
        if not all(NUMBER.fullmatch(cell.strip()) for cell in column)
    }
    cells = [[escape(cell) for cell in row] for row in rows]
    return Table(title, [[escape(h) for h in headers]], cells, caption, left=frozenset(text))


def _by_reason(reasons: Iterable[tuple[str, str | None]]) -> list[str]:
    """Each reason once, after the names of the rows that it holds for."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for name, reason in reasons:
        if reason:
            found[reason][name] = None
    return [f"{', '.join(names)}: {reason}" for reason, names in found.items()]


def _caption(told: str, table: Comparison) -> str:
    return f"{told[:1].upper()}{told[1:]}; {table.caption}."


def _optional(value: float | None, form: str) -> str:
    if value is None:
        return NONE
    return format(value, form) if abs(value) < 1e6 else number(value)
