"""Figures: what is drawn is there, always the same, and text from runs is text."""

from __future__ import annotations

import dataclasses
import html
import itertools
import logging
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import font_manager

from posbench.errors import UserError
from posbench.evaluation.statistics import Interval
from posbench.report import FIGURES
from posbench.report.comparing.comparison import Bin, Cell, Comparison, Cost, Reach, Report, Row
from posbench.report.writing.figures import fonts, styles
from posbench.report.writing.figures import write as figures
from posbench.report.writing.spread import spread
from tests.helpers import specimens

pytestmark = pytest.mark.filterwarnings("error")
PATH = "{http://www.w3.org/2000/svg}path"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is said but that letters are missing, and that once for each writing."""
    with caplog.at_level(logging.WARNING):
        yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert [line for line in said if "no installed font" not in line] == []


def row(name: str, curve: dict[int, Cell], **changes: object) -> Row:
    made = Row(name, name, None, curve, Cost(), 1.0, "untuned", Reach(), Reach(), Reach())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def table(*rows: Row, experiment: str = "plain", lengths: tuple[int, ...] = (128, 256)) -> Report:
    facts = {"corpus": "sotu"}
    made = Comparison(experiment, "sliding", "feed", 128, lengths, rows, None, 0.95, facts)
    return Report((made,))


def cells(*values: float | None, width: float = 0.01) -> dict[int, Cell]:
    found: dict[int, Cell] = {}
    for power, value in enumerate(values):
        if value is None:
            found[128 * 2**power] = Cell(reason="no such position")
            continue
        around = Interval(value, value * (1 - width), value * (1 + width))
        first = values[0] or 1.0
        ratio = Interval(value / first) if power else None
        found[128 * 2**power] = Cell(perplexity=around, ratio=ratio)
    return found


def spoken(svg: Path) -> str:
    """The texts of a figure, which stand beside their outlines as comments."""
    builder = ElementTree.TreeBuilder(insert_comments=True)
    tree = ElementTree.parse(svg, ElementTree.XMLParser(target=builder))
    comments = [e.text or "" for e in tree.iter() if not isinstance(e.tag, str)]
    return " ".join(html.unescape(" ".join(comments)).split())


def test_every_kind_in_every_format(tmp_path: Path) -> None:
    paths = figures.write(specimens.report(), tmp_path / "new", FIGURES)
    kinds = ["extrapolation", "context", "cost", "passkey-recall", "copy-recall"]
    expected = [f"demo-{kind}.{form}" for kind in kinds for form in FIGURES]
    assert [path.name for path in paths] == expected
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    for path in paths:
        data = path.read_bytes()
        if path.suffix == ".pdf":
            assert data.startswith(b"%PDF-")
        elif path.suffix == ".png":
            assert data.startswith(b"\x89PNG")
            width, height = struct.unpack(">II", data[16:24])
            assert width == 1100
            assert 500 < height < 900
        else:
            assert len(list(ElementTree.parse(path).iter(PATH))) > 40


def test_the_same_report_gives_the_same_files(tmp_path: Path) -> None:
    report = Report((specimens.comparison(),))
    first = figures.write(report, tmp_path / "a", FIGURES, "dark")
    again = figures.write(report, tmp_path / "b", FIGURES, "dark")
    assert [path.name for path in first] == [path.name for path in again]
    assert all(path.stem.endswith("-dark") for path in first)
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_a_users_matplotlibrc_changes_nothing(tmp_path: Path) -> None:
    import matplotlib

    report = table(row("a", cells(10, 20)))
    (plain,) = figures.write(report, tmp_path / "a", ["svg"])
    with matplotlib.rc_context({"text.usetex": True, "axes.grid": False, "font.size": 20}):
        (odd,) = figures.write(report, tmp_path / "b", ["svg"])
        assert matplotlib.rcParams["font.size"] == 20
    assert plain.read_bytes() == odd.read_bytes()


def test_text_of_runs_is_shown_as_it_is(tmp_path: Path) -> None:
    names = [specimens.WORST, "$x_1$", "_hidden", "two\nlines", "nul\x00 \ud800"]
    rows = [row(name, cells(10 + n, 11 + n)) for n, name in enumerate(names)]
    (path,) = figures.write(table(*rows), tmp_path, ["svg"])
    shown = spoken(path)
    for text in ("<script>alert", "50% of", "$x_1$", "_hidden", "two lines", "nul\ufffd \ufffd"):
        assert text in shown, text
    many = [dataclasses.replace(r, label=f"{n} {r.name}") for n in range(3) for r in rows]
    hidden = row("_hidden", cells(10, 11))
    (path,) = figures.write(table(hidden, *many), tmp_path, ["svg"])
    assert "_hidden" in spoken(path)
    assert "2 $x_1$" in spoken(path)


def test_what_has_no_number_is_named(tmp_path: Path) -> None:
    rows = [row("short", cells(9, None)), row("none", cells(None, None)), row("a", cells(8, 9))]
    (path,) = figures.write(table(*rows), tmp_path, ["svg"])
    assert "length: 95% intervals. No number past ×: short. No number: none." in spoken(path)
    assert "Corpus sotu" in spoken(path)
    assert "trained at 128" in spoken(path)


@pytest.mark.parametrize("theme", styles.THEMES)
def test_forty_encodings(theme: str, tmp_path: Path) -> None:
    rows = [
        row(
            f"encoding number {n}",
            cells(20 + n, 20 + 3 * n),
            cost=Cost(train_tokens_per_second=1000.0 + n * n),
        )
        for n in range(40)
    ]
    paths = figures.write(table(*rows), tmp_path, ["svg"], theme)
    for path in paths:
        assert all(f"encoding number {n}" in spoken(path) for n in range(40))
    drawn = styles.lines((row.name for row in rows), styles.THEMES[theme]).values()
    assert len({(line.colour, line.marker) for line in drawn}) == 40
    assert len({(str(line.dash), line.marker, line.colour) for line in drawn}) == 40


@pytest.mark.parametrize(
    "rows",
    [
        [row("a", cells(30))],
        [row("a", cells(30)), row("b", cells(30)), row("c", cells(None))],
        [row("a", cells(0.5, 9e11, 1e30)), row("b", cells(math.inf, math.nan, 3.0))],
        [row("a", {128: Cell(Interval(30.0)), 256: Cell(Interval(31.0, 0.0, math.inf))})],
        [row("a" * 90, cells(1, 2, None, 4)), row("b c " * 20, cells(1, 2, 3, 4))],
        [row("ctx", cells(9, 9), by_context=(Bin(1, 1, Interval(3.0), 5),))],
    ],
    ids=["one length", "alike", "extremes", "no intervals", "long names and a gap", "one bin"],
)
def test_odd_numbers(rows: list[Row], tmp_path: Path) -> None:
    lengths = tuple(sorted(rows[0].cells))
    paths = figures.write(table(*rows, lengths=lengths), tmp_path, ["png"])
    assert "plain-extrapolation.png" in [path.name for path in paths]


def test_nothing_scored_gives_no_file(tmp_path: Path) -> None:
    assert figures.write(Report(()), tmp_path, ["svg"]) == []
    assert figures.write(table(row("a", {128: Cell(), 256: Cell()})), tmp_path, ["svg"]) == []
    assert list(tmp_path.iterdir()) == []


def test_names_of_files_are_safe_and_none_is_written_over(tmp_path: Path) -> None:
    odd = ["../up/x", "a b", "a_b", "A_B", ".hid", "国" * 200, "..", ""]
    reports = [table(row("a", cells(1, 2)), experiment=name) for name in odd]
    together = Report(tuple(report.comparisons[0] for report in reports))
    paths = figures.write(together, tmp_path, ["svg"])
    assert len({path.name.casefold() for path in paths}) == len(odd)
    assert all(path.parent == tmp_path for path in paths)
    assert [path.stem for path in paths[1:4]] == [
        "a_b-extrapolation",
        "a_b-extrapolation-2",
        "A_B-extrapolation-3",
    ]


@pytest.mark.parametrize(("formats", "theme"), [(["svg", "gif"], "light"), (["svg"], "sepia")])
def test_an_unknown_format_or_theme_is_refused(
    formats: list[str], theme: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^no figures as '(gif|sepia)': choose from \w+"):
        figures.write(specimens.report(), tmp_path, formats, theme)
    assert list(tmp_path.iterdir()) == []


def test_missing_letters_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tibetan = "\u0f40\u0f41"
    found = fonts.covering(f"abc {tibetan} \u4e2d")
    assert next(iter(found)) == fonts.BASE
    letters = {chr(c) for f in found.values() for c in font_manager.get_font(f).get_charmap()}
    if {*tibetan, "\u4e2d"} <= letters:
        pytest.skip("fonts for all of it are installed")
    assert len(caplog.records) == 1
    assert "no installed font has" in caplog.records[0].getMessage()


def test_a_pdf_has_truetype_fonts(tmp_path: Path) -> None:
    (path,) = figures.write(table(row("a", cells(10, 11))), tmp_path, ["pdf"])
    assert b"/CIDFontType2" in path.read_bytes()
    assert b"/Type3" not in path.read_bytes()


def test_fonts_that_are_not_truetype_are_embedded_as_outlines(tmp_path: Path) -> None:
    cff, collection = tmp_path / "a.otf", tmp_path / "b.ttc"
    cff.write_bytes(b"OTTO" + bytes(20))
    collection.write_bytes(b"ttcf" + bytes(8) + struct.pack(">I", 16) + b"OTTO")
    truetype = fonts.covering("a")[fonts.BASE]
    assert fonts.embedded([truetype]) == 42
    assert fonts.embedded([truetype, str(cff)]) == 3
    assert fonts.embedded([str(collection)]) == 3


def test_labels_do_not_overlap_and_move_little() -> None:
    wanted, heights = [50.0, 10.0, 11.0, 12.0, 90.0], [10.0, 10.0, 20.0, 10.0, 10.0]
    placed = spread(wanted, heights, 0, 100)
    order = sorted(range(5), key=placed.__getitem__)
    assert order == sorted(range(5), key=wanted.__getitem__)
    for below, above in itertools.pairwise(order):
        gap = (heights[below] + heights[above]) / 2
        assert placed[above] - placed[below] >= gap - 1e-9
    assert placed[0] == pytest.approx(50)
    assert placed[4] == pytest.approx(90)
    assert min(p - h / 2 for p, h in zip(placed, heights, strict=True)) >= 0
    assert spread([99.0, 99.0], [10.0, 10.0], 0, 100) == pytest.approx([85, 95])
