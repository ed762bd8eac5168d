"""How figures look: colours, lines, fonts. Importing this imports matplotlib."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib import style

from posbench.report.writing.figures import fonts

WIDTH = 5.5  # inches: the text of a paper's page
SMALL, TINY = 8, 6.5  # points
# Okabe and Ito's colours, which the colour-blind can tell apart. Yellow is lost on white.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DARK = ("#56B4E9", "#E69F00", "#2CC295", "#E79AC6", "#F0E442", "#FF7F41", "#F0F0F0")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*")  # 12; 7 colours: 84 pairs


@dataclass(frozen=True)
class Theme:
    ink: str  # text and axes
    muted: str  # grid, notes and what is not data
    paper: str  # behind labels
    ground: str  # of the figure
    colours: tuple[str, ...]


THEMES = {
    "light": Theme("#1a1a1a", "#6b6b6b", "#ffffff", "#ffffff", LIGHT),
    "dark": Theme("#e6edf3", "#9198a1", "#0d1117", "none", DARK),  # GitHub's
}


@dataclass(frozen=True)
class Line:
    """What tells an encoding from others, in colour and without."""

    colour: str
    dash: Any
    marker: str


def lines(names: Iterable[str], theme: Theme) -> dict[str, Line]:
    """A line for each name, the same in all figures of a report."""
    unique = dict.fromkeys(names)
    return {
        name: Line(
            theme.colours[place % len(theme.colours)],
            DASHES[place % len(DASHES)],
            MARKERS[place % len(MARKERS)],
        )
        for place, name in enumerate(unique)
    }


@contextlib.contextmanager
def use(theme: Theme, text: str) -> Iterator[None]:
    """Draw in a theme, whatever a user's matplotlibrc says, with fonts for a text."""
    with style.context(["default", _settings(theme, text)]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # said once, by fonts
        yield


def _settings(theme: Theme, text: str) -> dict[str, Any]:
    families = fonts.covering(text)
    return {
        "font.family": [*families],
        "font.size": SMALL,
        "axes.labelsize": SMALL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.35,
        "grid.color": theme.muted,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "text.color": theme.ink,
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.facecolor": "none",
        "figure.facecolor": theme.ground,
        "text.parse_math": False,  # a dollar in a name is a dollar
        "text.usetex": False,
        "pdf.fonttype": fonts.embedded(families.values()),
        "svg.fonttype": "path",  # the same wherever it is seen, whatever fonts are there
        "svg.hashsalt": "posbench",  # ids that are the same in every run
    }


def clean(text: str) -> str:
    """On one line, without what no font shows."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
