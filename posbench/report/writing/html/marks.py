"""How lines are told apart: by colour, and without it by marker and dashes.

Colours are Okabe and Ito's (2008), made for the colour-blind; style.css has them for light and
dark. 7 colours, 8 markers and 5 dashes have no common divisor: 280 lines differ, and any 40 in a
row in black and white.
"""

from __future__ import annotations

from dataclasses import dataclass

from posbench.report.comparing.comparison import Report

COLOURS = 7
MARKERS = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",  # disc
    "M-3.3-3.3h6.6v6.6h-6.6z",  # square
    "M0-4.6L4.4 3.2h-8.8z",  # triangle
    "M0-4.8L4.8 0 0 4.8-4.8 0z",  # diamond
    "M0 4.6L4.4-3.2h-8.8z",  # triangle on its tip
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # plus
    "M-4.4 0a4.4 4.4 0 1 0 8.8 0a4.4 4.4 0 1 0-8.8 0z"
    "M-2.2 0a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0-4.4 0z",  # ring
    "M-4.2-4.2L4.2 4.2v-8.4L-4.2 4.2z",  # bow tie
)
DASHES = ("", "7 3.5", "2 3", "10 3 2 3", "16 5")


@dataclass(frozen=True)
class Mark:
    """Colour, marker and dashes of the index-th line of a report."""

    index: int

    @property
    def colour(self) -> str:
        """The class that has the colour."""
        return f"colour-{self.index % COLOURS}"

    @property
    def marker(self) -> str:
        return MARKERS[self.index % len(MARKERS)]

    @property
    def stroke(self) -> dict[str, str]:
        dashes = DASHES[self.index % len(DASHES)]
        return {"stroke-dasharray": dashes} if dashes else {}


def of_report(report: Report) -> dict[str, Mark]:
    """Row name -> Mark, one for all charts of a report."""
    names = [row.name for comparison in report.comparisons for row in comparison.rows]
    names += [row.name for table in report.probes for row in table.rows]
    return {name: Mark(index) for index, name in enumerate(dict.fromkeys(names))}
