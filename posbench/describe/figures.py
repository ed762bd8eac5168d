"""Pictures of an encoding as PNG and SVG files. Importing this imports matplotlib."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from matplotlib import colormaps, style
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from posbench.describe import captions
from posbench.describe.characters import DEEP
from posbench.describe.probe import Picture

STYLE: Any = {
    "svg.hashsalt": "posbench",  # ids that are the same in every run
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
METADATA = {"png": {"Software": None}, "svg": {"Date": None}}
COLUMNS = 4  # heads in a row of matrices


def write(pictures: list[Picture], name: str, folder: Path, alike: bool) -> list[Path]:
    """<folder>/<name>-distance and <name>-matrix, each as PNG and SVG; the paths.

    The same pictures give the same files. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style.context(["default", STYLE]):  # whatever a user's matplotlibrc says
        drawn = {"distance": _distances(pictures, name), "matrix": _matrices(pictures, name)}
        for kind, figure in drawn.items():
            shown = kind == "matrix" or any(picture.measured for picture in pictures)
            told = captions.contents(alike) if shown else captions.BIAS
            figure.supxlabel(textwrap.fill(told, 90), fontsize=7)
            for suffix, metadata in METADATA.items():
                paths.append(folder / f"{name}-{kind}.{suffix}")
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


def _distances(pictures: list[Picture], name: str) -> Figure:
    """A panel for each encoding at work, a line for each head; keys ahead are left of 0."""
    figure = Figure(figsize=(6.4, 0.4 + 3.2 * len(pictures)), layout="constrained")
    panels = figure.subplots(len(pictures), squeeze=False)
    for axes, picture in zip(panels[:, 0], pictures, strict=True):
        heads = len(picture.curves)
        for head, curve in enumerate(picture.curves.tolist()):
            colour = colormaps["viridis"](head / heads)
            axes.plot(curve, label=f"head {head}", linewidth=1.2, color=colour)
            if picture.ahead is not None:
                ahead = picture.ahead[head].tolist()
                axes.plot(range(0, -len(ahead), -1), ahead, linewidth=1.2, color=colour)
        axes.set(xlabel="distance in tokens", ylabel=captions.unit(picture))
        axes.set_title(f"{name}: {captions.heading(picture)}")
        axes.legend(frameon=False, fontsize=7, ncols=1 + heads // 6)
    return figure


def _matrices(pictures: list[Picture], name: str) -> Figure:
    """A panel for each head, on one scale."""
    rows = [(p, first) for p in pictures for first in range(0, len(p.matrix), COLUMNS)]
    figure = Figure(figsize=(1.9 * COLUMNS, 0.9 + 2.1 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), COLUMNS, squeeze=False)
    most = max(float(p.relative.nan_to_num(0, 1, 1).max()) for p in pictures)
    norm = LogNorm(most * math.exp(-DEEP), most, clip=True)
    for line, (picture, first) in zip(panels, rows, strict=True):
        for head, axes in enumerate(line, first):
            axes.set_axis_off()
            if head < len(picture.relative):
                axes.imshow(picture.relative[head].numpy(), cmap="Greys", norm=norm)
                axes.set_title(f"layer {picture.layer}, head {head}", fontsize=8)
    figure.colorbar(ScalarMappable(norm, "Greys"), ax=panels, shrink=0.6)
    figure.suptitle(f"{name}: attention weights\n{captions.RELATIVE}", fontsize=9)
    return figure
