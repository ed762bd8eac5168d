"""posbench report, from folders to files, by the command line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from posbench import cli, tracking
from posbench.evaluation import results
from posbench.evaluation.results import ProbeResult
from posbench.hydra_app.overrides import readable
from posbench.report.writing.tracker import tables
from tests.helpers import specimens
from tests.helpers.folders import write_run
from tests.helpers.marks import a_few, slow


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four encodings whose order at each multiple of the training length is the papers'."""
    monkeypatch.chdir(tmp_path)
    slopes = {"alibi": 0.0, "t5": 0.05, "rope": 0.3, "sinusoidal": 0.6}
    for name, slope in slopes.items():
        for seed in (1, 2):
            write_run(
                tmp_path / "outputs",
                name,
                seed,
                lambda n, slope=slope: 3.4 + slope * math.log2(n / 128),  # type: ignore[misc]
                spread=0.1,
            )
    return tmp_path


def report(*words: str) -> int:
    return cli.run(["report", *words])


def test_every_format_from_files_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formats = "report.formats=[terminal,markdown,csv,latex,html]"
    assert report(formats, "report.figures=[svg,png]", "report.baseline=alibi") == 0
    shown = capsys.readouterr().out
    assert "made: perplexity by length, fixed_targets" in shown
    for suffix in ("md", "csv", "tex", "html"):
        text = (root / "outputs" / f"report.{suffix}").read_text(encoding="utf-8")
        for name in ("alibi", "t5", "rope", "sinusoidal"):
            assert name in text
    pictures = {path.name for path in (root / "outputs" / "figures").iterdir()}
    assert any("extrapolation" in name and name.endswith(".svg") for name in pictures)
    assert any(name.endswith(".png") for name in pictures)


FILES = "report.formats=[markdown,csv] report.figures=[svg]".split()


def test_the_same_runs_make_the_same_report_to_the_byte(root: Path) -> None:
    assert report(*FILES, "folder=one") == report(*FILES, "folder=two") == 0
    assert contents(root / "one") == contents(root / "two")


@pytest.mark.parametrize(
    "other",
    [
        *("report.level=0.5", "report.baseline=t5", "report.against=press2022"),
        *slow("report.draws=500", "report.seed=1", "report.recl_share=0.5"),
        *slow("report.themes=[dark]", "report.figures=[png]"),
        *slow("runs=[outputs/made/alibi,outputs/made/rope]"),
    ],
)
def test_another_value_makes_another_report(root: Path, other: str) -> None:
    assert report(*FILES, "folder=one") == 0
    assert report(*FILES, "folder=two", other) == 0
    assert contents(root / "one") != contents(root / "two")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def test_the_default_is_a_table_and_three_files(root: Path) -> None:
    assert report() == 0
    written = {path.name for path in (root / "outputs").iterdir() if path.is_file()}
    assert written == {"report.md", "report.csv", "report.html"}


def test_the_numbers_in_the_csv(root: Path) -> None:
    assert report("report.baseline=alibi") == 0
    with (root / "outputs" / "report.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(r["encoding"], r["seed"], r["quantity"], r["length"]): r for r in rows}
    assert len(found) == len(rows)
    assert float(found["rope", "all", "perplexity", "2048"]["value"]) == pytest.approx(
        math.exp(3.4 + 1.2), rel=0.02
    )
    against = found["rope", "all", "ratio_to_alibi", "2048"]
    assert float(against["low"]) < math.exp(1.2) < float(against["high"])


def test_words_without_a_key_are_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("outputs/made/alibi", "outputs/made/r*", "report.formats=[terminal]") == 0
    shown = capsys.readouterr().out
    assert "alibi" in shown
    assert "rope" in shown
    assert "sinusoidal" not in shown


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["a", "b*"], ["runs=['a','b*']"]),
        (["folder=x"], ["folder=x"]),
        (["a", "--config-dir", "/", "-m"], ["--multirun", "--config-dir=/", "runs=['a']"]),
        (["it's"], ["runs=['it\\'s']"]),
        (["~report", "a"], ["~report", "runs=['a']"]),
    ],
)
def test_words_without_a_key_become_runs(words: list[str], runs: list[str]) -> None:
    assert readable("report", words) == runs


def test_agreement_with_a_paper(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("report.against=press2022", "report.formats=[terminal,markdown,html]") == 0
    text = (root / "outputs" / "report.md").read_text(encoding="utf-8")
    assert "agreement with press2022" in text
    assert "1.00" in text[text.index("agreement with press2022") :]
    assert "agreement with press2022" in (root / "outputs" / "report.html").read_text()


@pytest.mark.parametrize("asked", ["[press2022,kerple2022]", "all"])
def test_agreement_with_several_papers_and_of_papers(
    root: Path, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    formats = "report.formats=[terminal,markdown,csv,latex,html]"
    assert report(f"report.against={asked}", formats) == 0
    shown = capsys.readouterr().out
    files = [root / "outputs" / f"report.{suffix}" for suffix in ("md", "html", "tex")]
    for text in (shown, *(file.read_text(encoding="utf-8") for file in files)):
        for title in ("agreement with press2022", "agreement with kerple2022", "papers beside"):
            assert title in text
    text = (root / "outputs" / "report.md").read_text(encoding="utf-8")
    assert "| 1.00 (1.00 – 1.00) | 1.00 | 4 | alibi, t5, rope, sinusoidal |" in text


@pytest.mark.parametrize(
    ("word", "named"),
    a_few(
        [
            ("report.formats=[word]", "report.formats: word is unknown"),
            ("report.figures=[gif]", "report.figures: gif is unknown"),
            ("report.baseline=alibbi", "did you mean alibi?"),
            ("report.against=pres2022", "press2022"),
            ("report.against=[press2022,press2022]", "press2022 is there twice"),
            ("report.against=pi2023_steps", "pi2023_steps has no perplexities by evaluation"),
            ("report.against=7", "report.against=7 must be a publication"),
            ("report.level=2", "report.level must lie in (0, 1)"),
            ("report.recl_share=0", "report.recl_share=0"),
            ("nowhere", "no run folder there"),
        ],
        2,
    ),
)
def test_a_mistake_is_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], word: str, named: str
) -> None:
    assert report(word) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert named in said
    assert "Traceback" not in said
    assert not (root / "outputs" / "report.html").exists()


def test_a_half_finished_sweep_reports_what_is_there(root: Path) -> None:
    states = {
        "alibi/seed2": {"state": "failed", "reason": "the loss is nan at step 3"},
        "rope/seed2": {"state": "running", "reason": None},
    }
    for place, status in states.items():
        folder = root / "outputs" / "made" / place
        (folder / "status.json").write_text(json.dumps(status))
        (folder / "results.jsonl").unlink()
        (folder / "summary.json").unlink()
    formats = "report.formats=[terminal,markdown,csv,latex,html]"
    assert report(formats, "report.figures=[svg]") == 0
    for suffix in ("md", "html"):
        text = (root / "outputs" / f"report.{suffix}").read_text(encoding="utf-8")
        assert "alibi: seed 2 failed: the loss is nan at step 3" in text
        assert "rope: seed 2 running" in text


def test_probes_are_reported_with_their_chance(root: Path) -> None:
    rows = [[0, 30, 40, 64], [1, 31, 42, 64], [2, 29, 41, 64]]
    for seed in (1, 2):
        for distance in (16, 64):
            found = ProbeResult("copy", distance, 90, 192, 16, 3, "feed")
            found = ProbeResult(**{**vars(found), "lifts": 123, "by_document": rows})
            results.append_probe(root / "outputs" / "made" / "rope" / f"seed{seed}", found)
    assert report("report.formats=[markdown,csv,html,latex]") == 0
    text = (root / "outputs" / "report.md").read_text(encoding="utf-8")
    assert "copy, recall by distance" in text
    assert "copy, lift by distance" in text
    assert "| rope | **47%** | **47%** |" in text
    assert "chance 6.2%" in text
    with (root / "outputs" / "report.csv").open(encoding="utf-8") as file:
        found_rows = [r for r in csv.DictReader(file) if r["quantity"] == "lift"]
    assert float(found_rows[0]["value"]) == pytest.approx(123 / 192)
    assert float(found_rows[0]["low"]) < 123 / 192 < float(found_rows[0]["high"])


@pytest.mark.slow
def test_wandb_gets_the_same_tables_and_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[tuple[Mapping[str, tracking.Table], Sequence[Path]]] = []

    class Kept(tracking.Nothing):
        def publish(self, tables: Mapping[str, tracking.Table], files: Sequence[Path]) -> None:
            published.append((tables, files))

    monkeypatch.setattr(tracking, "start", lambda *arguments, **named: Kept())
    words = ["report.formats=[html]", "report.figures=[png]", "tracking.wandb=offline"]
    assert report(*words) == 0
    ((shown, files),) = published
    assert any("perplexity by length" in title for title in shown)
    assert {path.suffix for path in files} == {".html", ".png"}


def test_a_table_for_wandb_holds_numbers() -> None:
    made = tables(specimens.report())
    headers, rows = made["demo: perplexity by length, fixed_targets"]
    assert headers == ["encoding", "128", "256", "512", "1024", "2048"]
    assert rows[0] == ["transformer_xl", 31.3, 31.3, 31.3, 31.35, 31.4]
    assert rows[-1][1:] == [None] * 5
    assert all(len(row) == len(headers) for row in rows)
