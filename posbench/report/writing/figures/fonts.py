"""Fonts for text in any script. Importing this imports matplotlib."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Iterable
from pathlib import Path

from matplotlib import font_manager

FAMILIES = [  # with Chinese letters
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("Noto Sans CJK JP", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "Arial Unicode MS"),
]
BASE = "DejaVu Sans"  # comes with matplotlib
BOXES = "Last Resort High-Efficiency"  # comes with matplotlib, has a box for every letter
log = logging.getLogger("posbench")


def covering(text: str) -> dict[str, str]:
    """Font families, with their files, that have a text's letters; warns where none has one."""
    _add_packaged()
    upright = (font for font in font_manager.fontManager.ttflist if font.style == "normal")
    files = {font.name: font.fname for font in upright if font.weight in (400, "normal")}
    known = [family for family in FAMILIES if family in files]
    missing = {c for c in text if not c.isspace()} - _letters(files[BASE])
    found = {BASE: files[BASE]}
    for family in [*known, *sorted(files.keys() - {*FAMILIES, BOXES})]:
        covered = missing & _letters(files[family]) if missing else set()
        if covered:
            found[family] = files[family]
            missing -= covered
    if missing:
        log.warning(
            "figures: no installed font has %s; they are shown as boxes (for Chinese, install "
            "e.g. Noto Sans CJK)",
            " ".join(sorted(missing)[:20]),
        )
    return found


@functools.cache
def _add_packaged() -> None:
    """The font of the extra `cjk`, where it is installed."""
    found = importlib.util.find_spec("pylopdf_fonts_zh_cn")
    for folder in (found.submodule_search_locations or []) if found else []:
        for font in Path(folder).glob("NotoSans*.otf"):
            font_manager.fontManager.addfont(font)


def embedded(files: Iterable[str]) -> int:
    """The pdf.fonttype: 42, TrueType, as journals want; 3 where a file is not TrueType."""
    return 42 if all(_outlines(file) != b"OTTO" for file in files) else 3


def _outlines(file: str) -> bytes:
    """What a font's first bytes say that it is; of a collection, its first font's."""
    with open(file, "rb") as font:
        if font.read(4) == b"ttcf":
            font.seek(12)
            font.seek(int.from_bytes(font.read(4), "big"))
        else:
            font.seek(0)
        return font.read(4)


def _letters(file: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
