"""LaTeX: it compiles, fits the page, and what runs say is printed and not run."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from posbench.evaluation.statistics import Interval
from posbench.report.comparing.comparison import Cell, Report
from posbench.report.writing.latex.document import latex
from posbench.report.writing.latex.escape import escape, number, width
from posbench.report.writing.wording import Extra
from tests.helpers import specimens

EXTRA: list[Extra] = [
    (
        "Published",
        ["method & source", "perplexity", "Δ", "note"],
        [["alibi", "31.2", "−0.1", "long text " * 12], [specimens.WORST, "1,234", "–", "国"]],
        f"by α: {specimens.WORST}",
    )
]
FAMILY = ["", "_long_name_of_a_variant", " (k=16, deep.er=settings, 国)", "x" * 90]


def many(rows: int, lengths: int) -> Report:
    """A sweep that needs more than a page."""
    table = specimens.comparison()
    wide = tuple(128 * (n + 1) for n in range(lengths))
    cell = Cell(Interval(1e9, 3.0, 2e12), Interval(1.5, 1.4, 1.6), Interval(2.0), 1.5, 99_999.0, 7)
    made = [
        dataclasses.replace(
            table.rows[n % 7], label=f"{n}{FAMILY[n % 4]}", cells=dict.fromkeys(wide, cell)
        )
        for n in range(rows)
    ]
    notes = tuple(f"{row.name}: seed 1 failed: the loss is nan" for row in made)
    table = dataclasses.replace(table, rows=tuple(made), lengths=wide, notes=notes)
    return Report((table,))


PROBED = specimens.report()
PROBED = dataclasses.replace(
    PROBED, probes=(PROBED.probes[0], dataclasses.replace(PROBED.probes[1], notes=("a: none",)))
)
REPORTS = {
    "specimens": latex(PROBED, EXTRA),
    "nothing": latex(Report(())),
    "many": latex(many(rows=90, lengths=14)),
    "one": latex(many(rows=1, lengths=1)),
}


def tables(document: str) -> list[str]:
    found = re.findall(r"^% --- begin table: .*?^% --- end table$", document, re.M | re.S)
    assert len(found) == document.count(r"\begin{table}")
    return found


def lines_of(table: str) -> list[str]:
    """The rows of the tabular, headers among them."""
    return re.findall(r"^(.*) (?:\\\\|\\tabularnewline)$", table, re.M)


def compiles(document: str, folder: Path) -> str:
    (folder / "report.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-draftmode", "-halt-on-error", "-interaction=nonstopmode"]
    done = subprocess.run(
        [*command, "-no-shell-escape", "report.tex"], cwd=folder, capture_output=True, timeout=120
    )
    log = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, log[-3000:]
    return log


needs_tex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="no pdflatex here: the structure alone is tested"
)


@needs_tex
@pytest.mark.parametrize("name", REPORTS)
def test_it_compiles_and_nothing_runs_off_the_page(name: str, tmp_path: Path) -> None:
    log = compiles(REPORTS[name], tmp_path)
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    assert max(wide, default=0) <= 20
    assert "Float too large" not in log
    assert "Missing character" not in log


@needs_tex
def test_a_table_needs_booktabs_alone(tmp_path: Path) -> None:
    pasted = "\n".join(tables(REPORTS["specimens"]))
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}"
    compiles(head + "\\begin{document}\n" + pasted + "\n\\end{document}\n", tmp_path)


@pytest.mark.parametrize("name", REPORTS)
def test_environments_close_and_rows_have_as_many_cells_as_columns(name: str) -> None:
    document = REPORTS[name]
    opened: list[str] = []
    for end, environment in re.findall(r"\\(begin|end)\{(\w+)\}", document):
        if end == "begin":
            opened.append(environment)
        else:
            assert opened.pop() == environment
    assert opened == []
    for table in tables(document):
        (kinds,) = re.findall(r"\\begin\{tabular\}\{@\{\}(.*)@\{\}\}", table)
        columns = len(re.sub(r"p\{[^}]*\}", "p", kinds))
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines_of(table)} == {columns}


@pytest.mark.parametrize("name", REPORTS)
def test_only_comments_have_letters_beyond_ascii(name: str) -> None:
    lines = [line for line in REPORTS[name].splitlines() if not line.startswith("%")]
    assert "".join(lines).isascii()
    labels = re.findall(r"\\label\{(.*?)\}", REPORTS[name])
    assert len(labels) == len(set(labels))


def test_what_a_table_shows() -> None:
    main, intervals, ratios, against, reach, costs, *_ = tables(REPORTS["specimens"])
    assert "& 128 & 256 & 512 & 1,024 & 2,048" in main
    assert r"encoding & 1$\times$ & 2$\times$" in main
    assert (
        r"deberta & \textbf{30.50} & \textbf{30.60} & \textbf{30.90} & \underline{31.40}" in main
    )
    assert "learned & 51.30 & -- & -- & -- & --" in main
    assert r"learned, n/\allowbreak{}a: no position past 128" in main
    assert "runs with train.steps 400 (800 here)" in main
    assert "{[}30.99, 31.61]" in intervals
    assert "rope & -- & 1.05 & 1.26" in ratios
    assert "against alibi" in against
    assert r"rope & 512 & $\geq$ 2,048 & 302 & 4 & 6" in reach
    assert "learned: scored at one length" in reach
    assert "t5 & 500,000 & 1,024 & 10 & 14,322 & 31,000 & 740 & 71" in costs
    for table in (main, intervals, ratios, against, reach, costs):
        assert "seeds 1, 2, 3; commit 0123456789ab" in table
        assert escape(specimens.WORST) in table


def test_probes_and_further_tables() -> None:
    *_, copy, extra = tables(REPORTS["specimens"])
    assert r"chance 6.2\%" in copy
    assert (
        r"learned & \textbf{50.0} & \textbf{50.0} & \textbf{50.0} & \textbf{50.0} & -- & --"
        in copy
    )
    assert r"\noindent a: none\par" in copy
    assert r"method \& source & perplexity & $\Delta$ & note" in extra
    assert r"{@{}p{16em}rrp{16em}@{}}" in extra
    assert r"alibi & 31.2 & $-$0.1 & \raggedright{} long text" in extra


def test_letters_without_a_glyph_are_numbered_and_explained() -> None:
    main = tables(REPORTS["specimens"])[0]
    assert r"corpus \texttt{U+56FD U+60C5 U+54A8 U+6587} sotu" in main
    assert "U+56FD 国 U+60C5 情" in main.splitlines()[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("50% & $x_1$ #", r"50\% \& \$x\_\allowbreak{}1\$ \#"),
        ("\\{}~^", r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}"),
        ("<a|b>", r"\textless{}a\textbar{}b\textgreater{}"),
        ("--x ,, ''", "-{}-x ,{}, '{}'"),
        ("[1] *", "{[}1] {*}"),
        ("≥ 2×, 1–2 ≈ α", r"$\geq$ 2$\times$, 1--2 $\approx$ $\alpha$"),
        ("Künsch, Łoś", r"K\"{u}nsch, \L{}o\'{s}"),
        ("Ж\x00x", r"\texttt{U+0416 U+0000}x"),
        ("two\nlines\t", "two lines"),
        ("x" * 31, "x" * 30 + r"\allowbreak{}x"),
        ("", ""),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_numbers() -> None:
    values = (31.416, 999.994, 999.996, 123456.7, 1.5e9, float("inf"))
    shown = ["31.42", "999.99", "1,000", "123,457", r"$1.5{\times}10^{9}$", r"$\infty$"]
    assert [number(value) for value in values] == shown
    assert [width(text) for text in shown] == [5, 6, 5, 7, 7, 1]
    assert width(escape("<x_1> & ≥")) == 9
