"""What a page needs beyond the wording of every format: labels, file names, widths."""

from __future__ import annotations

import re
import unicodedata


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def tick(value: float) -> str:
    """A label of an axis: short, and exact."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}")
    return f"{value:,.10g}"


def slug(text: str) -> str:
    """A part of a file name, of letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:60] or "report"


def printable(text: str) -> str:
    """On one line, without the control characters that XML forbids."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def width(text: str, size: float) -> float:
    """Roughly, in the units of size, in a sans-serif typeface."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return size * (wide + 0.56 * (len(text) - wide))


def shorten(text: str, size: float, room: float) -> str:
    """The text, or as much of its start as there is room for."""
    if width(text, size) <= room:
        return text
    while text and width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"
