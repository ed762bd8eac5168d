"""Whether bytes are plain text, and what they look like if they are not."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from posbench.errors import UserError

HEAD = 4096  # bytes looked at for an encoding
RARE = 100  # in text at most one byte of so many is a control character
# ASCII has these for terminals and lines; backspace, tab, \n, \v, \f, \r, escape, \x1c to \x1f.
CONTROL = bytes({*range(1, 0x20), 0x7F} - {*range(8, 14), *range(0x1B, 0x20)})
BINARY = "has NUL or other control characters, like binary data"
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"} | {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
PAGES = {b"%PDF-": "PDF", b"{\\rtf": "RTF", b"%!PS": "PostScript"}  # may be ASCII all the same
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip (or docx, xlsx, epub)", b"BZh": "bzip2"} | {
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
}
OTHERS = {b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image"} | {
    b"RIFF": "a WebP image or sound",
    b"PAR1": "Parquet: read it with corpus=hub",
    b"ARROW1": "Arrow: read it with corpus=hub",
    b"\x89HDF": "HDF5",
    b"SQLite format 3": "an SQLite database",
    b"\x7fELF": "a program",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"\x93NUMPY": "a NumPy array",
}


def plain(data: bytes, place: str) -> str:
    """The text of UTF-8 bytes, line ends as they are, without a byte order mark.

    Raises UserError for any other: place, byte, what it looks like and what would be right.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise _not_text(data, place, error.start, "ends within a character") from error
        if control(data) is not None:
            raise _not_text(data, place, error.start, BINARY) from error
        look = "looks like Latin-1, Windows-1252, GBK or the like"
        raise _not_text(data, place, error.start, look, "convert it to UTF-8") from error
    if (byte := control(data)) is not None:
        raise _not_text(data, place, byte, BINARY)
    if any(_starts(data, PAGES)):
        raise _not_text(data, place, 0, "")
    return text.removeprefix("\ufeff")


def control(data: bytes) -> int | None:
    """Where the first control character is, if it is NUL or too many are there for a text."""
    if (nul := data.find(b"\0")) >= 0:
        return nul
    if (len(data) - len(data.translate(None, CONTROL))) * RARE <= len(data):
        return None
    return next(n for n, byte in enumerate(data) if byte in CONTROL)


def _not_text(data: bytes, place: str, byte: int, look: str, right: str = "") -> UserError:
    """An error with the closest guess; `look` and what would be `right` where there is none."""
    for mark in _starts(data, MARKS):
        byte, look, right = 0, f"has the mark of {mark}", _convert(mark)
        break
    else:
        if packed := [*_starts(data, PACKED)]:
            look, right = f"looks like {packed[0]}", "unpack it"
        elif page := [*_starts(data, PAGES)]:
            look, right = f"looks like {page[0]}", "extract its text"
        elif other := [*_starts(data, OTHERS)]:
            look, right = f"looks like {other[0]}", ""
        elif wide := _wide(data[:HEAD]):
            look, right = f"looks like {wide} without a mark", _convert(wide)
    right = f"{right} or leave" if right else "leave"
    return UserError(
        f"{place}: not UTF-8 text, at byte {byte}: it {look}; {right} it out by a glob"
    )


def _convert(encoding: str) -> str:
    return f"convert it (iconv -f {encoding} -t UTF-8)"


def _starts(data: bytes, kinds: dict[bytes, str]) -> Iterator[str]:
    return (kind for start, kind in kinds.items() if data.startswith(start))


def _wide(head: bytes) -> str | None:
    """UTF-16 or UTF-32, the one that makes most letters of ASCII of these bytes.

    None for a text in which a NUL has strayed.
    """
    found = {}
    odd = len(head) - len(head.translate(None, CONTROL + b"\0"))
    if odd * 20 < len(head) and "\ufffd" not in head.decode("utf-8", "replace")[:-1]:
        return None
    for name in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(head)  # may end in a character
        except UnicodeDecodeError:
            continue
        if not any(ord(c) < 0x20 and c not in "\t\n\r\f" for c in text):
            found[name] = sum(c < "\x7f" for c in text)
    best = max(found, key=found.__getitem__, default=None)
    return best if best and found[best] else None
