"""Tables: means and spreads over seeds, ratios, the best, and what may share a table."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from posbench.errors import UserError
from posbench.evaluation.results import Result
from posbench.evaluation.statistics import Bootstrap
from posbench.report.comparing import from_runs
from posbench.report.comparing.comparison import Comparison, Report
from posbench.report.comparing.facts import unmeasured
from posbench.report.comparing.from_runs import Settings
from posbench.report.reading.collect import Run
from posbench.report.writing import csv_rows, terminal, wording
from posbench.report.writing.latex import document as latex
from posbench.report.writing.markdown import markdown

SETTINGS = Settings(Bootstrap(draws=200))


def tables(runs: list[Run], **changes: Any) -> list[Comparison]:
    return from_runs.comparisons(runs, dataclasses.replace(SETTINGS, **changes))


def as_markdown(made: list[Comparison]) -> str:
    return markdown(Report(tuple(made)))


def value(comparison: Comparison, row: int, length: int) -> float:
    perplexity = comparison.rows[row].cells[length].perplexity
    assert perplexity is not None
    return perplexity.value


def ratio(comparison: Comparison, row: int, length: int) -> float:
    found = comparison.rows[row].cells[length].ratio
    assert found is not None
    return found.value


def run(name: str, seed: int, perplexities: dict[int, float | None], **changes: Any) -> Run:
    config: dict[str, Any] = {
        "run": {"experiment": "test", "name": name},
        "seed": seed,
        "encoding": {"_target_": name},
        "corpus": {"_target_": "x"},
        "tokenizer": {},
        "model": {"width": 16, "layers": 2, "heads": 2},
        "train": {"length": 128},
        "optim": {"lr": 1.0},
        "eval": {"protocols": ["fixed_targets"], "lengths": [128, 256]},
    }
    state = changes.pop("status", {"state": "done", "reason": None})
    return Run(
        folder=Path(name),
        config=config | changes,
        status=state,
        summary={
            "positional_parameters": 7,
            "train_tokens_per_second": 1000.0 * seed,
            "train_peak_memory": 2**20,
            "tokens_trained": 5,
        },
        provenance={"commit": "abc"},
        results=[_result(length, value) for length, value in perplexities.items()],
    )


def _result(length: int, perplexity: float | None) -> Result:
    if perplexity is None:
        return Result("fixed_targets", length, reason="no such position", targets="feed")
    nll = 10 * math.log(perplexity)
    return Result(
        "fixed_targets", length, nll=nll, tokens=10, bytes=30, documents=2, targets="feed"
    )


def test_seeds_share_one_sum() -> None:
    (table,) = tables([run("a", 1, {128: 10.0, 256: 20.0}), run("a", 2, {128: 14.0, 256: 28.0})])
    assert value(table, 0, 128) == pytest.approx(math.sqrt(10 * 14))
    assert ratio(table, 0, 256) == pytest.approx(2)
    assert table.rows[0].cells[128].seeds == 2
    assert table.rows[0].cost.train_tokens_per_second == 1500
    assert table.facts["seeds"] == "1, 2"


def test_one_seed_says_so_in_words() -> None:
    (table,) = tables([run("a", 1, {128: 10.0, 256: 20.0})])
    assert "1 alone, so nothing is known" in table.caption
    assert "±" not in as_markdown([table])


def test_rows_are_ordered_by_the_longest_length_and_the_best_is_marked() -> None:
    (table,) = tables(
        [
            run("falls", 1, {128: 8.0, 256: 30.0}),
            run("none", 1, {128: 9.0, 256: None}),
            run("flat", 1, {128: 10.0, 256: 10.0}),
        ]
    )
    assert [row.name for row in table.rows] == ["flat", "falls", "none"]
    best = {(row.name, n) for row in table.rows for n, cell in row.cells.items() if cell.best}
    assert best == {("falls", 128), ("flat", 256)}
    text = as_markdown([table])
    assert "| flat | 10.00≈ | **10.00 ×1.00** |" in text
    assert "none, n/a: no such position" in text
    assert "| none | 9.00≈ | n/a |" in text


@pytest.mark.parametrize(
    "changed",
    [
        {"train": {"length": 64, "checkpoint_every": 1}},
        {"optim": {"lr": 2.0}},
        {"corpus": {"_target_": "y"}},
        {"model": {"width": 32, "layers": 2, "heads": 2}},
    ],
)
def test_runs_that_cannot_be_compared_get_tables_of_their_own(changed: dict[str, Any]) -> None:
    made = tables([run("a", 1, {128: 9.0}), run("b", 1, {128: 8.0}, **changed)])
    assert [[row.name for row in table.rows] for table in made] == [["a"], ["b"]]


def test_what_does_not_change_the_numbers_does_not_split_a_table() -> None:
    often = run("b", 1, {128: 8.0}, train={"length": 128, "checkpoint_every": 1})
    (table,) = tables([run("a", 1, {128: 9.0}), often])
    assert len(table.rows) == 2


def test_seeds_of_different_encodings_are_not_averaged() -> None:
    runs = [
        run("a", 1, {128: 8.0}, encoding={"_target_": "x", "k": 16}),
        run("a", 2, {128: 80.0}, encoding={"_target_": "x", "k": 64}),
    ]
    (table,) = tables(runs)
    assert [row.name for row in table.rows] == ["a (k=16)", "a (k=64)"]
    assert [value(table, row, 128) for row in (0, 1)] == pytest.approx([8, 80])
    assert table.rows[0].missing == ("no seed 2",)


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(UserError, match="both a seed 1"):
        tables([run("a", 1, {128: 8.0}), run("a", 1, {128: 8.0})])


def test_a_table_that_is_na_throughout_is_shown() -> None:
    (table,) = tables([run("a", 1, {128: None, 256: None})])
    assert table.notes == ("a, n/a: no such position",)


def test_an_evaluation_of_one_run_does_not_list_the_others() -> None:
    other = run("b", 1, {512: 9.0})
    other = dataclasses.replace(
        other, results=[dataclasses.replace(r, targets="beef") for r in other.results]
    )
    made = tables([run("a", 1, {128: 8.0}), other])
    assert [[row.name for row in table.rows] for table in made] == [["b"], ["a"]]


def test_the_multiplier_stands_beside_the_parameters() -> None:
    fast = run("a", 1, {128: 8.0}, encoding={"_target_": "x", "optim": {"lr_multiplier": 10}})
    assert "| 7 lr×10 |" in as_markdown(tables([fast]))


def test_the_multiplier_of_a_mix_is_its_parts_largest() -> None:
    parts = {"a": {"_target_": "x", "optim": {"lr_multiplier": 10}}, "b": {"_target_": "y"}}
    assert run("mix", 1, {}, encoding={"_target_": "m", "parts": parts}).lr_multiplier == 10
    assert run("plain", 1, {}, encoding={"_target_": "m", "optim": None}).lr_multiplier == 1


def test_a_failed_run_keeps_its_row_and_reason() -> None:
    failed = run("bad", 1, {}, status={"state": "failed", "reason": "the loss is nan at step 3"})
    (table,) = tables([run("a", 1, {128: 9.0}), failed])
    assert table.rows[-1].missing == ("seed 1 failed: the loss is nan at step 3",)
    assert "the loss is nan at step 3" in as_markdown([table])
    (alone,) = tables([failed])
    assert alone.lengths == (128, 256)
    rows = list(csv.DictReader(io.StringIO(csv_rows.tidy(Report(()), [failed]))))
    assert rows[0]["reason"] == "failed: the loss is nan at step 3"


def test_an_extension_is_a_row_of_its_own_beside_what_was_trained() -> None:
    plain = run("rope", 1, {128: 10.0, 256: 30.0})
    longer = [
        dataclasses.replace(_result(n, p), extension="yarn x8") for n, p in ((128, 11), (256, 15))
    ]
    both = dataclasses.replace(plain, results=[*plain.results, *longer])
    other = run("rope", 2, {128: 10.0, 256: 30.0})
    (table,) = tables([both, other])
    assert [row.name for row in table.rows] == ["rope + yarn x8", "rope"]
    assert ratio(table, 1, 256) == pytest.approx(3)
    assert ratio(table, 0, 128) == pytest.approx(1.1)
    assert ratio(table, 0, 256) == pytest.approx(1.5)
    assert table.rows[0].missing == ("no seed 2",)
    assert table.rows[1].missing == ()


def test_csv_has_one_row_for_each_number() -> None:
    runs = [run("a", 1, {128: 9.0, 256: None}), run("b", 1, {128: 8.0, 256: 7.5})]
    text = csv_rows.tidy(Report(tuple(tables(runs))), runs)
    rows = list(csv.DictReader(io.StringIO(text)))
    found = {(r["encoding"], r["seed"], r["quantity"], r["length"]): r for r in rows}
    assert len(found) == len(rows)
    assert float(found["b", "1", "perplexity", "256"]["value"]) == pytest.approx(7.5)
    assert float(found["b", "all", "perplexity", "256"]["value"]) == pytest.approx(7.5)
    assert found["b", "all", "rank", "128"]["value"] == "1"
    assert found["a", "1", "perplexity", "256"]["reason"] == "no such position"
    assert found["a", "1", "perplexity", "256"]["value"] == ""


@pytest.mark.parametrize(("width", "costs"), [(100, True), (40, False)])
def test_the_terminal_table_fits(width: int, costs: bool) -> None:
    (table,) = tables([run("a", 1, {128: 10.0, 256: 20.0}), run("b", 1, {128: 11.0, 256: 11.0})])
    shown = printed(terminal.perplexities(table), width)
    assert "128 (1×)" in shown
    assert ("20.00 ×2.00" in shown) == costs  # else in a line of its own
    assert "×2.00" in shown
    assert "…" not in shown
    assert ("tok/s" in shown) == costs  # in the legend, too


def printed(what: object, width: int) -> str:
    console = Console(width=width, color_system=None, file=io.StringIO())
    console.print(what)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(cell_len(line) <= width for line in shown.splitlines())
    return str(shown)


LONGEST_NAMES = ["transformer_xl_memoryless", "learned_interpolate", "rope + dynamic_ntk x16"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_name_and_no_number_is_broken(width: int) -> None:
    """Every name, length, perplexity and ratio stands in one piece, in a line of that width."""
    lengths: dict[int, float | None] = {128 * 2**n: 131.25 * 1.3**n for n in range(8)}
    (table,) = tables([run(name, 1, lengths) for name in LONGEST_NAMES])
    shown = printed(terminal.perplexities(table), width)
    pieces = [*LONGEST_NAMES, *(f"{n:,} ({n // 128}×)" for n in lengths)]
    for row in table.rows:
        pieces += [piece for cell in row.cells.values() for piece in wording.cell(cell).split()]
    assert [piece for piece in pieces if piece not in shown] == []
    reaches = printed(terminal.reaches(table), width)
    assert all(name in reaches for name in LONGEST_NAMES)
    assert "…" not in shown + reaches


def test_a_perplexity_past_all_floats_is_a_short_cell() -> None:
    """A loss of 2,000 nats a token: in every text, and beside it what can be compared."""
    made = [run("a", 1, {128: 10.0, 256: None}), run("b", 1, {128: 9.0, 256: 9.5})]
    huge = Result("fixed_targets", 256, None, 2e4, 10, 30, 5, 2, "feed")
    made[0] = dataclasses.replace(made[0], results=[made[0].results[0], huge])
    (table,) = tables(made)
    texts = [printed(terminal.perplexities(table), 120), printed(terminal.reaches(table), 120)]
    texts += [as_markdown([table]), latex.latex(Report((table,)))]
    assert texts[0].count("> 1e304") >= 1
    assert "{>}10^{304}" in texts[-1]
    for text in texts:
        assert not re.search(r"\d{12}", text.replace(",", ""))
        assert "inf" not in text.split()
    assert table.rows[-1].cells[256].rank == 2


def test_a_seed_without_a_number_is_told_beside_the_mean_of_the_others() -> None:
    made = [run("a", 1, {128: 10.0, 256: 20.0}), run("a", 2, {128: 14.0, 256: None})]
    (table,) = tables(made)
    assert value(table, 0, 256) == pytest.approx(20.0)
    assert "a, 256 without seed 2: no such position" in table.notes


def test_several_reasons_say_where_each_is() -> None:
    assert unmeasured("a", {128: None, 256: "x", 512: "x"}) == ["a, n/a: x"]
    assert unmeasured("a", {16: "y", 256: "x"}) == ["a, n/a at 16: y", "a, n/a at 256: x"]


def test_what_gives_way_first_repeats() -> None:
    """Ratios stand below before speed goes, speed before the rest, and all that before a part."""
    lengths: dict[int, float | None] = {128: 31.25, 256: 33.5, 512: 1100.0}
    (table,) = tables([run("b", 1, lengths), run("c", 1, lengths)])
    seen = []
    for width in range(100, 22, -1):
        shown = printed(terminal.perplexities(table), width)
        heads = [line for line in shown.splitlines() if line.startswith(" encoding")]
        state = (
            "33.50 ×1.07" not in shown,
            *(name in heads[0] for name in ("tok/s", "MiB", "params")),
            len(heads),
        )
        seen += [state] if state not in seen else []
    assert seen[:6] == [
        (False, True, True, True, 1),
        (True, True, True, True, 1),
        (True, False, True, True, 1),
        (True, False, False, True, 1),
        (True, False, False, False, 1),
        (True, False, False, False, 2),
    ]


def test_text_from_a_run_cannot_break_the_markdown() -> None:
    (table,) = tables([run("a|b<script>", 1, {128: 10.0})])
    assert "| a\\|b&lt;script> |" in as_markdown([table])
