"""The standard streams: opened if they were closed, and characters replaced that they lack."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import unicodedata

# For a terminal or a file that cannot take a character. Letters become escapes.
SIGNS = (
    "×x ≈~ ∼~ →-> ←<- ↑^ ↓v …. ·. –- —- −- ±+- ≥>= ≤<= ≠!= √sqrt ∞inf ∈in ●* ○o ‘' ’' "
    '“" ”" µu °deg'
)
SUBSTITUTES = {
    **{pair[0]: pair[1:] for pair in SIGNS.split()},
    **dict(zip("▁▂▃▄▅▆▇█░▒▓", "_.:-=+*#:+%", strict=True)),
    **dict(zip("─━│┃", "--||", strict=True)),
}
ERRORS = "posbench.substitutes"  # the name of the codecs' error handler


def prepare() -> None:
    """To be called once in a process, before anything is printed."""
    _open_streams()
    substitute()


def _open_streams() -> None:
    """Open the null device for a closed stream: the next file would get its number otherwise."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def substitute() -> None:
    """Print a substitute for each character that a stream's encoding lacks. May be repeated."""
    codecs.register_error(ERRORS, _substitutes)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


def _substitutes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(_substitute, characters, " " + characters)), error.end


def _substitute(character: str, before: str) -> str:
    if character in SUBSTITUTES:
        return SUBSTITUTES[character]
    kind, _, plain = unicodedata.decomposition(character).partition(" ")
    if kind in ("<super>", "<sub>"):  # 10⁻⁶ is 10^-6
        begins = not unicodedata.decomposition(before).startswith(kind)
        mark = "^" if kind == "<super>" else "_"
        digit = chr(int(plain.split()[0], 16))
        return mark * begins + SUBSTITUTES.get(digit, digit)
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, ""))
    if greek is not None:
        return greek[2].lower() if greek[1] == "SMALL" else greek[2].title()
    return character.encode("ascii", "backslashreplace").decode()


def lost(error: OSError) -> int:
    """Close standard output after it failed, quietly if its reader has gone; the exit code."""
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            print(f"error: standard output: {error.strerror}", file=sys.stderr)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what is still to be written when Python ends
    os.close(null)
    return 1


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
