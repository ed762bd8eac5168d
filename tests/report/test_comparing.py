"""What a report says of losses of known truth."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from posbench.errors import UserError
from posbench.evaluation.statistics import Bootstrap
from posbench.machine.files import write_json
from posbench.report.comparing import from_runs
from posbench.report.comparing.comparison import Comparison, Reach, Row
from posbench.report.comparing.from_runs import Settings
from posbench.report.comparing.reach import by_context
from posbench.report.comparing.scores import entry
from posbench.report.reading import collect
from tests.helpers.folders import DOCUMENTS, write_run

SETTINGS = Settings(Bootstrap(draws=500))


def compared(root: Path, **changes: Any) -> list[Comparison]:
    runs = collect.runs(collect.folders([str(root)]))
    return from_runs.comparisons(runs, dataclasses.replace(SETTINGS, **changes))


def rows(comparison: Comparison) -> dict[str, Row]:
    return {row.name: row for row in comparison.rows}


def test_a_difference_smaller_than_the_documents_is_seen_because_it_is_paired(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "better", 1, lambda n: 3.40)
    write_run(tmp_path, "worse", 1, lambda n: 3.41)
    (table,) = compared(tmp_path, baseline="better")
    found = rows(table)
    best, worse = found["better"].cells[128], found["worse"].cells[128]
    assert best.perplexity is not None
    assert worse.perplexity is not None
    assert worse.perplexity.low is not None
    assert worse.perplexity.low < best.perplexity.value  # alone they overlap by far
    assert best.best
    assert not worse.tied
    assert worse.against is not None
    assert worse.against.low == pytest.approx(math.exp(0.01), rel=1e-4)
    assert best.against is None


def test_what_cannot_be_told_apart_from_the_best_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.400, spread=0.3)
    write_run(tmp_path, "b", 1, lambda n: 3.400, spread=0.3)
    write_run(tmp_path, "far", 1, lambda n: 4.4, spread=0.3)
    (table,) = compared(tmp_path)
    for length in table.lengths:
        marks = {row.name: (row.cells[length].best, row.cells[length].tied) for row in table.rows}
        assert sorted([marks["a"], marks["b"]]) == [(False, True), (True, False)]
        assert marks["far"] == (False, False)


def test_it_says_how_many_seeds_and_documents_a_cell_rests_on(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path, "a", seed, lambda n: 3.4, spread=0.1)
    (table,) = compared(tmp_path)
    cell = table.rows[0].cells[128]
    assert (cell.seeds, cell.documents) == (3, DOCUMENTS)
    assert "22 documents and 3 seeds" in table.facts["intervals"]


def test_reaches_of_curves_whose_bends_are_known(tmp_path: Path) -> None:
    def rising(length: int) -> float:
        return 3.4 + math.log(1.1) * math.log2(length / 128)  # 1.1 times at each doubling

    def falling(length: int) -> float:
        return 3.4 - 0.05 * min(math.log2(length / 128), 2)  # to 512

    write_run(tmp_path, "rising", 1, rising)
    write_run(tmp_path, "falling", 1, falling)
    write_run(tmp_path, "flat", 1, lambda n: 3.4)
    write_run(tmp_path, "short", 1, lambda n: 3.4 if n == 128 else None)
    (table,) = compared(tmp_path)
    found = rows(table)
    assert found["rising"].breaks.length == pytest.approx(128 * 2**0.5, rel=1e-6)
    assert found["falling"].breaks == Reach(2048, beyond=True)
    assert found["falling"].helps == Reach(512)
    assert found["flat"].helps == Reach(128)
    assert found["short"].helps.length is None
    assert found["short"].breaks.reason == "scored at the training length alone"
    assert str(found["falling"].breaks) == "≥ 2,048"


def test_recl_by_hand(tmp_path: Path) -> None:
    """Two encodings whose losses are the same at every token: b is the lower of the two.

    At 128 both have 3.4. The one gains 0.05 nats a doubling until 512, the other nothing, and by
    less than 1% counts as nothing: 0.005 nats.
    """

    def one(length: int) -> float:
        return 3.4 - 0.05 * min(math.log2(length / 128), 2)

    def other(length: int) -> float:
        return 3.4 - 0.005 * math.log2(length / 128)

    write_run(tmp_path, "one", 1, one)
    write_run(tmp_path, "other", 1, other)
    (table,) = compared(tmp_path, recl_share=1.0)
    assert rows(table)["one"].recl == Reach(512)
    assert rows(table)["other"].recl == Reach(128)


def test_recl_is_not_told_where_perplexity_breaks_first(tmp_path: Path) -> None:
    """Tokens that a broken model gets right by chance look like gains."""
    write_run(tmp_path, "broken", 1, lambda n: 3.4 + 0.2 * math.log2(n / 128), spread=1.0)
    (table,) = compared(tmp_path)
    assert rows(table)["broken"].recl.length is None
    assert "breaks first, at" in str(rows(table)["broken"].recl.reason)


def test_a_band_is_of_the_change_alone(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path, "a", seed, lambda n, s=seed: 3 + s / 5 + n / 10_000)  # type: ignore[misc]
    (table,) = compared(tmp_path)
    cell = table.rows[0].cells[2048]
    assert cell.perplexity is not None
    assert cell.bend is not None
    assert cell.perplexity.high > 1.1 * cell.perplexity.value  # type: ignore[operator]
    assert cell.bend.value == pytest.approx(cell.perplexity.value)
    assert cell.bend.high == pytest.approx(cell.bend.value, rel=1e-4)


def test_recl_counts_what_beats_the_best_of_all(tmp_path: Path) -> None:
    """A laggard that gains 5% a doubling but never beats the leader at the shorter length."""
    write_run(tmp_path, "leader", 1, lambda n: 3.0)
    write_run(tmp_path, "laggard", 1, lambda n: 3.4 - 0.05 * math.log2(n / 128))
    (table,) = compared(tmp_path)
    assert rows(table)["laggard"].recl == Reach(128)
    assert rows(table)["laggard"].helps == Reach(2048, beyond=True)


def test_runs_apart_say_why(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4)
    write_run(tmp_path, "b", 1, lambda n: 3.4, changes={"train.steps": 400})
    write_run(tmp_path, "c", 1, lambda n: 3.4, provenance={"corpus_hash": "other"})
    tables = compared(tmp_path)
    assert [[row.name for row in table.rows] for table in tables] == [["a"], ["b"], ["c"]]
    assert tables[0].apart == (
        "b is in another table: train.steps 400, here 800",
        "c is in another table: corpus_hash other, here None",
    )


TUNING = {
    "trials": 6,
    "budget": {},
    "chosen": {"optim.lr": 0.006, "encoding.optim.lr_multiplier": 3.1},
    "untuned": {"optim.lr": 0.005, "encoding.optim.lr_multiplier": 1.0},
}


def test_tuned_runs_share_a_table_though_their_learning_rates_differ(tmp_path: Path) -> None:
    write_run(
        tmp_path, "a", 1, lambda n: 3.3, changes={"optim.lr": 0.006}, provenance={"tuning": TUNING}
    )
    write_run(tmp_path, "b", 1, lambda n: 3.4)
    (table,) = compared(tmp_path)
    assert table.facts["learning rates"] == "tuned, 6 trials: a; untuned: b"
    assert rows(table)["a"].tuning == "tuned, 6 trials: lr 0.006, positional ×3.1"
    assert rows(table)["b"].tuning == "untuned"


def test_all_tuned_alike_is_said_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, 1, lambda n: 3.3, provenance={"tuning": TUNING})
    assert compared(tmp_path)[0].facts["learning rates"] == "tuned, 6 trials each"


def test_seeds_in_common_are_what_is_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4, spread=0.1)
    write_run(tmp_path, "b", 2, lambda n: 3.5, spread=0.1)
    (table,) = compared(tmp_path, baseline="a")
    assert rows(table)["b"].cells[128].against is None
    best, other = (rows(table)[name].cells[128] for name in "ab")
    assert (best.rank, best.best) == (1, True)
    assert (other.rank, other.best, other.tied) == (None, False, False)  # nothing to pair with
    assert table.notes == ("a: no seed 2", "b: no seed 1")


def test_a_column_is_ranked_over_the_seeds_that_most_rows_share(tmp_path: Path) -> None:
    """Seed 1 alone says that a is better than b; a's other seeds must not turn that round."""
    for seed, mean in ((1, 2.9), (2, 3.4), (3, 3.9)):
        write_run(tmp_path, "a", seed, lambda n, mean=mean: mean)  # type: ignore[misc]
    write_run(tmp_path, "b", 1, lambda n: 3.0)
    (table,) = compared(tmp_path)
    a, b = (rows(table)[name].cells[128] for name in "ab")
    assert (a.rank, a.best) == (1, True)
    assert (b.rank, b.best, b.tied) == (2, False, False)
    assert "b: no seed 2, 3" in table.notes


def test_without_an_interval_nothing_is_told_apart(tmp_path: Path) -> None:
    for name, mean in (("a", 3.4), ("b", 3.41)):
        folder = write_run(tmp_path, name, 1, lambda n, mean=mean: mean)  # type: ignore[misc]
        for path in (folder / "losses").iterdir():
            path.unlink()
    (table,) = compared(tmp_path)
    assert rows(table)["a"].cells[128].best
    assert rows(table)["b"].cells[128].tied


def test_one_seed_without_its_losses_costs_the_interval_only(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4)
    folder = write_run(tmp_path, "a", 2, lambda n: 3.4)
    for path in (folder / "losses").iterdir():
        path.unlink()
    (table,) = compared(tmp_path)
    cell = table.rows[0].cells[128]
    assert cell.perplexity is not None
    assert cell.perplexity.value == pytest.approx(math.exp(3.4))
    assert cell.perplexity.low is None


def test_breaks_are_paired(tmp_path: Path) -> None:
    """A seed that got no further than 256 must not bend the curve of the others."""
    write_run(tmp_path, "b", 1, lambda n: 3.4)
    write_run(tmp_path, "b", 2, lambda n: 3.0, lengths=(128, 256))
    (table,) = compared(tmp_path)
    assert rows(table)["b"].breaks == Reach(2048, beyond=True)


def test_other_scored_tokens_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4)
    folder = write_run(tmp_path, "b", 1, lambda n: 3.4)
    text = (folder / "results.jsonl").read_text()
    (folder / "results.jsonl").write_text(text.replace('"feed"', '"beef"'))
    apart = {table.targets: table.apart for table in compared(tmp_path)}
    assert apart == {
        "feed": ("scored over other tokens (beef), in another table: b",),
        "beef": ("scored over other tokens (feed), in another table: a",),
    }


def test_another_tuning_budget_is_told(tmp_path: Path) -> None:
    for name, low in (("a", 0.3), ("b", 0.1)):
        tuning = {**TUNING, "budget": {"trials": 6, "lr": [low, 2.0]}}
        write_run(tmp_path, name, 1, lambda n: 3.3, provenance={"tuning": tuning})
    said = compared(tmp_path)[0].facts["learning rates"]
    assert "lr [0.3, 2.0]): a" in said
    assert "lr [0.1, 2.0]): b" in said


def test_the_last_bin_ends_at_the_length(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4)
    (run,) = collect.runs(collect.folders([str(tmp_path)]))
    found = entry("a", [run], None, "fixed_targets", "feed")
    bins = by_context(found, 128, SETTINGS.bootstrap)
    assert bins[-1].last == 128
    assert sum(each.tokens for each in bins) == 64 * 64
    assert all(a.last + 1 == b.first for a, b in itertools.pairwise(bins))


@pytest.mark.parametrize("content", [b"PK", b""])
def test_a_damaged_file_of_losses_is_one_line(tmp_path: Path, content: bytes) -> None:
    folder = write_run(tmp_path, "a", 1, lambda n: 3.4)
    path = next((folder / "losses").iterdir())
    path.write_bytes(content)
    with pytest.raises(UserError, match="score it again with posbench eval "):
        compared(tmp_path)


def test_a_run_whose_losses_are_gone_keeps_its_numbers_without_intervals(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", 1, lambda n: 3.4)
    for path in (folder / "losses").iterdir():
        path.unlink()
    (table,) = compared(tmp_path)
    cell = table.rows[0].cells[128]
    assert cell.perplexity is not None
    assert cell.perplexity.value == pytest.approx(math.exp(3.4), rel=0.01)
    assert cell.perplexity.low is None
    assert table.facts["intervals"] == "none, for want of losses by document"


def test_the_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", 1, lambda n: 3.4, spread=0.1)
    rows_there = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    (table,) = compared(tmp_path)
    for row in rows_there:
        cell = table.rows[0].cells[row["length"]]
        assert cell.perplexity is not None
        assert cell.perplexity.value == pytest.approx(row["perplexity"], rel=1e-6)
        assert cell.bits_per_byte == pytest.approx(row["bits_per_byte"])
        assert cell.word_perplexity == pytest.approx(row["word_perplexity"])


def test_ranks_are_by_column(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1, lambda n: 3.4 if n == 128 else 3.6)
    write_run(tmp_path, "b", 1, lambda n: 3.5)
    (table,) = compared(tmp_path)
    ranks = {row.name: [row.cells[n].rank for n in (128, 2048)] for row in table.rows}
    assert ranks == {"a": [1, 2], "b": [2, 1]}
    assert table.rows[0].cost.seconds == pytest.approx(819_200 / 14_000 + 5)


def masked(**settings: Any) -> dict[str, Any]:
    made = {"_target_": "posbench.objectives.Masked", "share": 0.15, "decoder": "plain"}
    return {"objective": made | {"passes": 2, "positions": "learned"} | settings}


def test_models_with_and_without_the_mask_decoder_share_a_table(tmp_path: Path) -> None:
    """What they predict must be the same; the decoder is part of the row."""
    write_run(tmp_path, "deberta", 1, lambda n: 2.5, changes=masked())
    write_run(tmp_path, "enhanced", 1, lambda n: 2.4, changes=masked(decoder="enhanced"))
    unlike = masked(decoder="enhanced", positions="none")
    other = write_run(tmp_path, "enhanced", 2, lambda n: 2.6, changes=unlike)
    write_json(other / "summary.json", {"objective_parameters": 16_384, "tokens_trained": 1})
    write_run(tmp_path, "deberta", 3, lambda n: 2.5, changes=masked(share=0.3))
    table, apart = compared(tmp_path)
    found = rows(table)
    assert list(found) == [
        "enhanced (positions=learned)",
        "deberta",
        "enhanced (positions=none)",
    ]
    assert table.facts["objective"] == "masked, share 0.15, enhanced decoder of enhanced"
    assert found["enhanced (positions=none)"].cost.decoder_parameters == 16_384
    assert apart.facts["objective"] == "masked, share 0.3"
    assert "objective.share" in table.apart[0]
    assert "decoder" not in table.apart[0]


def test_settings_of_a_decoder_that_is_not_used_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path, "deberta", 1, lambda n: 2.5, changes=masked())
    write_run(tmp_path, "deberta", 2, lambda n: 2.5, changes=masked(positions="none"))
    (table,) = compared(tmp_path)
    assert list(rows(table)) == ["deberta"]
