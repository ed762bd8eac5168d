"""The HTML report in a browser: it fits, sorts, switches, and its figures can be taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from posbench.report.writing.html import html
from tests.helpers import chromium, specimens
from tests.helpers.chromium import Chromium

COLUMN = "[...document.querySelectorAll('table tbody')[0].rows].map(r => r.cells[%d].innerText)"
HEAD = "document.querySelectorAll('table')[0].tHead.rows[0].cells[%d]"
SVG = "{http://www.w3.org/2000/svg}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if chromium.PROGRAM is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    with Chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html(specimens.report()), encoding="utf-8")
    return path


def test_on_a_phone_names_stay_in_sight(browser: Chromium, file: Path) -> None:
    browser.open(file, 390)
    where = (
        "[...document.querySelector('tbody tr').cells].map(c => c.getBoundingClientRect().left)"
    )
    before = browser.evaluate(where)
    browser.evaluate("document.querySelector('.scroll').scrollLeft = 150")
    assert browser.evaluate(where) == [before[0], *(left - 150 for left in before[1:])]


def troubles(browser: Chromium) -> list[str]:
    """What the console shows; exceptions and a violated policy among it."""
    kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    return [json.dumps(event["params"]) for event in browser.events if event["method"] in kinds]


@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_nothing_overflows_and_nothing_is_fetched(
    browser: Chromium, file: Path, width: int
) -> None:
    browser.open(file, width)
    measured = "[document.documentElement.scrollWidth, innerWidth, window.visualViewport.scale]"
    assert browser.evaluate(measured) == [width, width, 1]
    shown = browser.evaluate(
        "[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length)"
        ".map(s => [s.classList[0], s.getBoundingClientRect().right])"
    )
    assert len(shown) == 5
    assert all((name == "phone") == (width == 390) and right <= width for name, right in shown)
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"].endswith("requestWillBeSent")
    ]
    assert asked == [file.as_uri()]
    assert troubles(browser) == []


def test_a_click_sorts_and_what_has_no_number_stays_last(browser: Chromium, file: Path) -> None:
    browser.open(file, 1280)
    names = [row.name for row in specimens.comparison().rows]
    assert browser.evaluate(COLUMN % 0) == names
    browser.evaluate((HEAD % 1) + ".querySelector('button').click()")
    column = [text.split()[0].strip("≈") for text in browser.evaluate(COLUMN % 1)]
    assert column == ["30.50", "30.70", "31.30", "33.40", "35.00", "36.80", "51.30", "–"]
    assert browser.evaluate((HEAD % 1) + ".getAttribute('aria-sort')") == "ascending"
    assert browser.evaluate((HEAD % 5) + ".getAttribute('aria-sort')") == "none"
    browser.evaluate((HEAD % 1) + ".querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
        browser.send("Input.dispatchKeyEvent", type=kind, **key)
    assert browser.evaluate((HEAD % 1) + ".getAttribute('aria-sort')") == "descending"
    assert [text.split()[-1] for text in browser.evaluate(COLUMN % 1)][::7] == ["51.30", "–"]
    browser.evaluate((HEAD % 0) + ".querySelector('button').click()")
    assert browser.evaluate(COLUMN % 0) != names
    assert sorted(browser.evaluate(COLUMN % 0)) == sorted(names)
    assert troubles(browser) == []


def test_the_switch_shows_another_measure(browser: Chromium, file: Path) -> None:
    browser.open(file, 1280)

    def rope() -> str:
        names = browser.evaluate(COLUMN % 0)
        return browser.evaluate(COLUMN % 3)[names.index("rope")]

    assert rope().split() == ["42.00", "×1.26", "↑↑"]
    shown = {"bits": "2.100", "rank": "6", "ratio": "×1.257 ↑↑", "against": "×1.141"}
    for value, text in shown.items():
        browser.evaluate(f"document.querySelector('input[value={value}]').click()")
        assert rope() == text
    browser.evaluate("document.querySelector('input[value=detail]').click()")
    assert rope().split("\n") == ["×1.141", "1.138 – 1.145"]
    assert troubles(browser) == []


def test_dark_is_another_picture_and_the_button_changes_it(browser: Chromium, file: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('.colour-0 .curve')).stroke"
    browser.open(file, 1280, theme="light")
    light = browser.evaluate(f"[{paper}, {line}]")
    browser.open(file, 1280, theme="dark")
    dark = browser.evaluate(f"[{paper}, {line}]")
    assert not set(light) & set(dark)
    browser.evaluate("document.querySelector('.theme').click()")
    assert browser.evaluate(f"[{paper}, {line}]") == light


def test_pointing_at_a_line_says_its_nearest_value(browser: Chromium, file: Path) -> None:
    browser.open(file, 1280)
    place = browser.evaluate(
        "(() => { const at = document.querySelectorAll('.full .colour-4.line .marker')[2];"
        "at.scrollIntoView({block: 'center'}); const box = at.getBoundingClientRect();"
        "return [box.x + 8, box.y + 6] })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    said = browser.evaluate("document.querySelector('.tip').textContent")
    assert said == "rope: 512 tokens: 42.00 (41.58 – 42.42)"
    assert troubles(browser) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_downloaded_figure_stands_alone(browser: Chromium, file: Path, theme: str) -> None:
    browser.open(file, 1280, theme=theme)
    target = browser.downloads / "demo-extrapolation.svg"
    target.unlink(missing_ok=True)
    browser.evaluate("document.querySelector('.full .item').dispatchEvent(new Event('click'))")
    browser.evaluate("document.querySelector('.download').click()")
    browser.wait_for(target)
    root = ElementTree.parse(target).getroot()
    curves = [path for path in root.iter(SVG + "path") if path.get("class") == "curve"]
    lines = [g for g in root.iter(SVG + "g") if (g.get("class") or "").startswith("line ")]
    assert len(lines) == len(specimens.CURVES) - 1  # one is hidden
    assert all((curve.get("stroke") or "").startswith("rgb(") for curve in curves)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert root[0].get("fill") == paper
    assert "var(" not in target.read_text("utf-8")
    assert "rope + yarn x8" in "".join(root.itertext())
    assert troubles(browser) == []
