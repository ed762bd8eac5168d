"""How cells and captions read on the terminal and in Markdown, and numbers in HTML."""

from __future__ import annotations

import math

from posbench.evaluation.results import LARGEST
from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Cell, Comparison, ProbeRow, ProbeTable, Row

Extra = tuple[str, list[str], list[list[str]], str]  # title, headers, rows, caption

KEPT, WORSE = 1.03, 1.25  # ratios to the training length: holds up to, fails beyond
COSTS = {
    "params": "params: positional ones, with their learning-rate multiplier",
    "tok/s": "tok/s: of training",
    "MiB": "MiB: peak process memory of training",
}
DISPENSABLE = ("word ppl", "rank", "bits/byte", "× at", "95%")  # where a terminal is narrow
REACH_TITLE = "how far context helps"
REACH = (
    "RECL: relative effective context length; helps to: the longest length with less loss than "
    "the length before, beyond the interval; breaks at: where perplexity passes 1.05 times its "
    "value at the training length"
)


def legend(comparison: Comparison) -> str:
    words = "×: ratio to the value at the training length; bold: lowest of its column"
    if any(cell.tied for row in comparison.rows for cell in row.cells.values()):
        words += "; ≈: cannot be told apart from it"
    if any(row.cost.decoder_parameters for row in comparison.rows):
        words += "; + after params: those of the enhanced mask decoder"
    return words


def headers(comparison: Comparison) -> list[str]:
    lengths = [f"{n:,} ({n / comparison.train_length:g}×)" for n in comparison.lengths]
    return [*lengths, *COSTS]


def cell(cell: Cell, between: str = " ") -> str:
    """ "31.38 ×1.02≈", "n/a", or "–" for what was not scored."""
    if cell.perplexity is None:
        return "n/a" if cell.reason else "–"
    ratio = "" if cell.ratio is None else f"{between}×{number(cell.ratio.value)}"
    return f"{number(cell.perplexity.value)}{ratio}{'≈' if cell.tied else ''}"


def ends(interval: Interval | None, places: int = 2) -> str:
    """ "30.11 – 32.70"; empty where there is no interval."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{number(interval.low, places)} – {number(interval.high, places)}"


def number(value: float, places: int = 2) -> str:
    """A number with `places` decimals, fewer where it is large."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–∞" if value < 0 else "not a number"
    if value >= LARGEST:
        return f"> {LARGEST:.0e}".replace("+", "")
    if abs(value) >= 1e6:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{places}f}"


def positional_remarks(row: Row) -> str:
    """What stands after the count of positional parameters: " lr×10", " + 16,384"."""
    rate = "" if row.lr_multiplier == 1 else f" lr×{row.lr_multiplier:.3g}"
    decoder = row.cost.decoder_parameters
    return f"{rate} + {decoder:,}" if decoder else rate


def costs(row: Row) -> list[str]:
    cost = row.cost
    more = positional_remarks(row)
    memory = None if cost.peak_memory is None else cost.peak_memory / 2**20
    speed = cost.train_tokens_per_second
    return [
        "" if cost.positional_parameters is None else f"{cost.positional_parameters:,}{more}",
        "" if speed is None else f"{speed:,.0f}",
        "" if memory is None else f"{memory:,.0f}",
    ]


def reaches(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: intervals at both ends, bits per byte, reaches, ranks."""
    first, last = comparison.train_length, comparison.lengths[-1]
    head = ["encoding", f"{comparison.level:.0%} at {last:,}", f"× at {last:,}"]
    if comparison.baseline is not None:
        head.append(f"× {comparison.baseline} at {last:,}")
    words = any(row.longest.word_perplexity for row in comparison.rows)
    head += ["bits/byte", *(["word ppl"] if words else [])]
    head += ["RECL", "helps to", "breaks at", f"rank {first:,}→{last:,}"]
    rows = []
    for row in comparison.rows:
        cell = row.longest
        line = [row.name, ends(cell.perplexity), ends(cell.ratio, 3)]
        if comparison.baseline is not None:
            line.append(_with_ends(cell.against))
        line.append("" if cell.bits_per_byte is None else number(cell.bits_per_byte, 3))
        if words:
            line.append("" if cell.word_perplexity is None else number(cell.word_perplexity, 0))
        line += [str(row.recl), str(row.helps), str(row.breaks), _ranks(row, first, last)]
        rows.append(line)
    return head, rows


def _with_ends(interval: Interval | None) -> str:
    return "" if interval is None else f"{number(interval.value, 3)} ({ends(interval, 3)})"


def _ranks(row: Row, first: int, last: int) -> str:
    found = [row.cells[n].rank if n in row.cells else None for n in (first, last)]
    return "→".join("–" if rank is None else str(rank) for rank in found)


def probe(probe: ProbeTable) -> str:
    return (
        f"chance {probe.chance:.1%}; bold: better than that, beyond its interval; {probe.caption}"
    )


def beats_chance(share: Interval | None, probe: ProbeTable) -> bool:
    """Whether a share of recalled trials, with its whole interval, lies above chance."""
    return share is not None and share.low is not None and share.low > probe.chance


def share(row: ProbeRow, distance: int) -> str:
    """ "43%", "n/a", or "–" for what was not probed."""
    found = row.recall.get(distance)
    if found is None:
        return "n/a" if distance in row.reasons else "–"
    return f"{found.value:.0%}"
