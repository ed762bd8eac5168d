"""Published tables: all of a file is read, and agreement is what a hand computes."""

from __future__ import annotations

import csv
import dataclasses
import math
from importlib import resources

import pytest
from hydra import compose, initialize_config_module

from posbench import cli, config, published
from posbench.errors import UserError
from posbench.evaluation.statistics import Interval
from posbench.report.comparing import agreement as agreements
from posbench.report.comparing.agreement import Agreement, agreement
from posbench.report.comparing.comparison import Cell, Comparison
from tests.helpers import specimens
from tests.helpers.places import ROOT

CONF = ROOT / "conf"
NAMES = ["haviv2022", "kerple2022", "press2022", "press2022_speed", "transformer_xl2019"]
# shared/published/README.md, "Ratios perplexity(L)/perplexity(512)", as rounded there.
PRESS = {
    "sinusoidal": {1012: "2.17", 2512: "6.60"},
    "rope": {1012: "1.06", 2512: "1.57"},
    "t5": {1012: "0.956", 2512: "1.04"},
    "alibi": {1012: "0.949", 2512: "0.933"},
}
KERPLE = {
    "kerple_log": {1024: "0.921", 2048: "0.904", 8192: "0.891"},
    "alibi": {1024: "0.937", 2048: "0.941", 8192: "0.933"},
    "t5": {1024: "0.924", 2048: "0.916", 8192: "1.076"},
    "rope": {1024: "1.36", 2048: "2.58", 8192: "7.64"},
}


def curve(name: str, encoding: str, table: str = "", corpus: str = "") -> published.Curve:
    """The first one trained at 512 that fits."""
    return next(
        curve
        for curve in published.load(name).curves
        if curve.encoding == encoding
        and curve.train_length == 512
        and curve.source.endswith(table)
        and corpus in curve.corpus
    )


def comparison(ratios: dict[str, dict[int, float]]) -> Comparison:
    """Trained at 128; ratios by multiple, for each label of a row."""
    rows = []
    for name, known in ratios.items():
        row = specimens.row("alibi", (1.0,) * 5)
        cells = {128 * n: Cell(ratio=Interval(value)) for n, value in known.items()}
        encoding = name.partition(" ")[0]
        rows.append(dataclasses.replace(row, label=name, encoding=encoding, cells=cells))
    return dataclasses.replace(specimens.comparison(), rows=tuple(rows))


def at(found: list[Agreement], multiple: int, corpus: str = "WikiText-103") -> Agreement:
    """The first table's."""
    return next(one for one in found if one.multiple == multiple and one.corpus == corpus)


def test_every_row_of_every_file_is_loaded() -> None:
    assert published.names() == NAMES
    for name in NAMES:
        file = resources.files("posbench") / "data" / "published" / f"{name}.csv"
        lines = file.read_text().splitlines()
        found = published.load(name)
        assert len(found.rows) == len(lines) - 1
        if "eval_length" in lines[0].split(","):
            points = [n for curve in found.curves for n in curve.perplexities.items()]
            numbers = {(int(r["eval_length"]), r["perplexity"]) for r in csv.DictReader(lines)}
            assert len(points) == len(found.rows)
            assert set(points) == {(n, float(ppl) if ppl else None) for n, ppl in numbers}
        else:
            assert not found.curves


def test_encodings_are_posbenchs_and_curves_have_their_training_length() -> None:
    ours = {path.stem for path in CONF.glob("encoding/*.yaml")}
    for name in NAMES:
        found = published.load(name)
        assert set(found.values("encoding")) <= ours
        assert all(curve.ratios[curve.train_length] == 1 for curve in found.curves)


@pytest.mark.parametrize(
    ("name", "table", "corpus", "known"),
    [("press2022", "Table 2", "", PRESS), ("kerple2022", "", "OpenWebText2", KERPLE)],
)
def test_known_ratios(name: str, table: str, corpus: str, known: dict) -> None:
    for encoding, ratios in known.items():
        found = curve(name, encoding, table, corpus).ratios
        for length, rounded in ratios.items():
            last = 10 ** -len(rounded.partition(".")[2])
            assert found[length] == pytest.approx(float(rounded), abs=0.501 * last)


def test_out_of_memory_is_no_number() -> None:
    t5 = curve("press2022", "t5", "Table 2")
    assert t5.perplexities[12512] == 64.94
    assert t5.perplexities[13512] is t5.ratios[13512] is None
    assert t5.ratio_at(12512) == 64.94 / 19.65
    assert t5.ratio_at(12513) is None


def test_between_published_lengths_log_ratios_lie_on_a_line() -> None:
    sinusoidal = curve("press2022", "sinusoidal", "Table 2")
    share = math.log(2048 / 1512) / math.log(2512 / 1512)
    between = 76.23 / 20.05 * (132.41 / 76.23) ** share
    assert sinusoidal.ratio_at(2048) == pytest.approx(between)
    assert sinusoidal.ratio_at(511) is sinusoidal.ratio_at(15513) is None


def test_rank_correlation_as_by_hand() -> None:
    # Published order at twice the length: alibi, t5, rope, sinusoidal; ours has ranks 2, 1, 4, 3:
    # d² sums to 4, so ρ = 1 - 6 4 / (4 15) = 0.6; 4 pairs agree and 2 do not, so τ = 2 / 6.
    ours = {"sinusoidal": 2.5, "alibi": 1.1, "t5": 1.0, "rope": 3.0, "fire": 0.5}
    found = at(agreement(comparison({k: {2: v} for k, v in ours.items()}), "press2022"), 2)
    assert found.encodings == ("alibi", "t5", "rope", "sinusoidal")
    assert found.ours == {name: ours[name] for name in found.encodings}
    table_2 = {name: curve("press2022", name, "Table 2") for name in found.encodings}
    assert found.theirs == {name: one.ratio_at(1024) for name, one in table_2.items()}
    assert (found.spearman, found.kendall) == pytest.approx((0.6, 1 / 3))
    assert (found.table, found.train_length, found.reason) == ("Table 2", 512, None)


def test_ties_share_their_rank() -> None:
    # Ranks 1.5, 1.5, 3 against 1, 2, 3: ρ = 1.5 / √(1.5 2), τ-b = 2 / √(2 3).
    ours = {"alibi": {2: 1.0}, "t5": {2: 1.0}, "rope": {2: 2.0}}
    found = at(agreement(comparison(ours), "press2022"), 2)
    assert (found.spearman, found.kendall) == pytest.approx((math.sqrt(0.75), 2 / math.sqrt(6)))


def test_tables_of_a_paper_are_kept_apart() -> None:
    press, kerple = (
        agreement(specimens.comparison(), name) for name in ("press2022", "kerple2022")
    )
    tables = dict.fromkeys((one.table, one.train_length) for one in press)
    assert list(tables) == [("Table 2", 512), ("Table 3", 1024), ("Table 4", 3072)]
    assert {one.corpus for one in kerple} == {"OpenWebText2", "GitHub", "ArXiv", "WikiText-103"}
    assert [one.multiple for one in press] == [2, 4, 8, 16] * 3
    # KERPLE has T5 below ALiBi at twice the length, Press et al. have it above.
    assert at(kerple, 2, "GitHub").encodings == ("t5", "alibi", "rope")
    assert at(press, 2).encodings == ("alibi", "t5", "rope")


def test_extensions_and_one_of_several_settings_do_not_count() -> None:
    ours = {name: {2: 1.0} for name in ("alibi", "rope", "rope + yarn x8", "t5 (buckets=8)")}
    found = at(agreement(comparison(ours), "press2022"), 2)
    assert found.spearman is found.kendall is None
    assert (found.encodings, found.reason) == (
        ("alibi", "rope"),
        "in common: alibi, rope; 3 are needed",
    )


def test_where_there_is_no_correlation_it_says_why() -> None:
    ours = {name: {2: 1.0, 16: 1.0 + n} for n, name in enumerate(("alibi", "rope", "t5"))}
    found = agreement(comparison(ours), "press2022")
    reasons = {(one.table, one.multiple): one.reason for one in found}
    assert reasons["Table 2", 2] == "one ratio for all of alibi, t5, rope: no order"
    assert reasons["Table 2", 4] == "no ratio here at 512 tokens"
    assert reasons["Table 2", 16] is None
    assert reasons["Table 3", 16] == "published up to 16,024 tokens, not 16,384"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pres2022", "did you mean press2022?"),
        ("haviv2022", "perplexities at training lengths alone"),
        ("press2022_speed", "no perplexities by evaluation length"),
        ("transformer_xl2019", "in kerple2022, press2022"),
    ],
)
def test_what_cannot_be_agreed_with_is_one_line(name: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{name}.*{said}") as raised:
        agreement(specimens.comparison(), name)
    assert "\n" not in str(raised.value)


def test_a_row_of_text_for_every_agreement() -> None:
    found = agreement(specimens.comparison(), "press2022")
    rows = agreements.described(found)
    assert all(len(row) == len(agreements.HEADERS) for row in rows)
    first = ["press2022, Table 2", "WikiText-103", "512", "2×", "1.00", "1.00", "3"]
    assert rows[0] == [*first, "alibi, t5, rope"]
    assert "nothing is extrapolated" in agreements.caption(specimens.comparison())
    assert any("published up to 16,024 tokens, not 16,384" in row[-1] for row in rows)


def test_the_command_lists_and_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.run(["published"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES)
    for name in NAMES:
        assert cli.run(["published", f"name={name}"]) == 0
        assert published.load(name).source in capsys.readouterr().out
    cli.run(["published", "name=press2022"])
    shown = capsys.readouterr().out
    assert shown.count("trained at") == 11
    assert "43.54 ×2.172  21.37 ×1.065   18.79 ×0.956  18.73 ×0.949  Table 2" in shown
    assert "382.91 ×19.1  73.27 ×3.651  out of memory  18.31 ×0.928" in shown
    assert cli.run(["published", "name=pres2022"]) == 1
    assert "did you mean press2022?" in capsys.readouterr().err


def test_its_yaml_has_the_schemas_keys() -> None:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        assert config.load(compose("published"), config.PublishedCommand).name is None
