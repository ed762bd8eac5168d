"""Text and numbers as LaTeX: ASCII, and nothing in it that a package would have to provide."""

from __future__ import annotations

import math
import re
import unicodedata

from posbench.evaluation.results import LARGEST

APART = "\u200c"  # between letters that TeX would join: -- is a dash, ,, a quote
BREAK = "\u200b"  # where a line may end
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\`{}",
    "[": "{[}",  # after \\ it would be an argument
    "*": "{*}",
    APART: "{}",
    **{character: f"\\{character}" for character in "#$%&_{}"},
}
BREAKS = "_/=+@"  # a line may end after these
LETTERS = "ßss æae ÆAE œoe ŒOE øo ØO łl ŁL ıi"
MATH = "×times ≥geq ≤leq ≈approx ≠neq ∼sim ±pm ·cdot →to ∞infty √surd ∈in µmu"
SYMBOLS = {
    **dict(zip("–—‘’“”", ["--", "---", "`", "'", "``", "''"], strict=True)),
    "…": r"\dots{}",
    "\u00a0": "~",
    "−": "$-$",
    "°": r"$^\circ$",
    **{word[0]: f"\\{word[1:]}{{}}" for word in LETTERS.split()},
    **{word[0]: f"$\\{word[1:]}$" for word in MATH.split()},
}
GREEK = {
    "α": "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi",
    "π": "pi rho",
    "σ": "sigma tau upsilon phi chi psi omega",
}
CAPITALS = dict(zip("ΓΔΘΛΞΠΣΥΦΨΩ", "γδθλξπσυφψω", strict=True))
for first, names in GREEK.items():
    SYMBOLS |= {chr(code): f"$\\{name}$" for code, name in enumerate(names.split(), ord(first))}
SYMBOLS |= {c: f"$\\{SYMBOLS[small][2:].capitalize()}" for c, small in CAPITALS.items()}
SYMBOLS |= {character: f"$^{digit}$" for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
SYMBOLS |= {character: f"$_{digit}$" for digit, character in enumerate("₀₁₂₃₄₅₆₇₈₉")}
ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0308\u0304\u0307", "`'^~\"=.", strict=True))
ACCENTS |= dict(zip("\u0306\u030a\u030b\u030c\u0327\u0323\u0331", "urHvcdb", strict=True))
LONGEST = 30  # letters of a word that are not broken
NONE = "--"


def escape(text: str) -> str:
    """Text from a run. What pdfTeX has no letter for becomes its number, e.g. U+56FD."""
    text = re.sub(rf"(\S{{{LONGEST}}})(?=\S)", rf"\1{BREAK}", " ".join(text.split()))
    text = re.sub(r"([-,'])(?=\1)", rf"\1{APART}", text)
    return "".join(_run(run) for run in _runs(text))


def numbered(latex: str) -> str:
    """The characters that escape() replaced by their numbers, each once."""
    codes = re.findall(r"U\+([0-9A-F]{4,6})", latex)
    return "".join(dict.fromkeys(chr(int(code, 16)) for code in codes))


def comment(text: str) -> str:
    """Text on a line of its own that TeX does not read."""
    return "% " + "".join(c if c.isprintable() else " " for c in text)


def width(cell: str) -> int:
    """About how many characters wide a cell prints."""
    shown = re.sub(r"\\text[a-z]+\{\}|\\[a-z]+(?=[$}])", "x", cell)
    return len(re.sub(r"\\[a-z]+|[{}$\\^]", "", shown))


def number(value: float) -> str:
    """A perplexity: 31.42, 1,234, or a power of ten where it is large."""
    if not math.isfinite(value):
        return r"$\infty$" if value > 0 else NONE
    if value >= LARGEST:
        return rf"${{>}}10^{{{math.log10(LARGEST):.0f}}}$"
    if abs(value) < 999.995:
        return f"{value:.2f}"
    if abs(value) < 999_999.5:
        return f"{value:,.0f}"
    digits, _, power = f"{value:.1e}".partition("e")
    return rf"${digits}{{\times}}10^{{{int(power)}}}$"


def _runs(text: str) -> list[str]:
    """The characters of a text, one a string, but neighbours without a letter in one string."""
    runs: list[str] = []
    for character in unicodedata.normalize("NFC", text):
        if runs and _letter(character) is None and _letter(runs[-1][-1]) is None:
            runs[-1] += character
        else:
            runs.append(character)
    return runs


def _run(run: str) -> str:
    letter = _letter(run[0])
    if letter is not None:
        return letter
    return rf"\texttt{{{' '.join(f'U+{ord(character):04X}' for character in run)}}}"


def _letter(character: str) -> str | None:
    """The LaTeX of a character; None: pdfTeX has no letter for it."""
    mark = r"\allowbreak{}" if character in BREAKS + BREAK else ""
    if character in SPECIAL or character == BREAK:
        return SPECIAL.get(character, "") + mark
    if character.isascii():
        return character + mark if character.isprintable() else None
    return SYMBOLS.get(character) or _accented(character)


def _accented(character: str) -> str | None:
    base, mark = [*unicodedata.normalize("NFD", character), "", ""][:2]
    return rf"\{ACCENTS[mark]}{{{base}}}" if base.isascii() and mark in ACCENTS else None
