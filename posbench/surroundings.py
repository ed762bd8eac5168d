"""What the machine brings along: streams, environment variables, the user's home. Without torch.

`enter` puts it in order once, before anything is imported that reads it. `changing` is what of
it could change a number, for a run's provenance.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import unicodedata
import warnings
from pathlib import Path

from posbench import paths
from posbench.errors import UserError

# For a terminal or a file that cannot take a character. Letters become escapes.
SIGNS = (
    "×x ≈~ ∼~ →-> ←<- ↑^ ↓v …. ·. –- —- −- ±+- ≥>= ≤<= ≠!= √sqrt ∞inf ∈in ●* ‘' ’' “\" ”\" µu °deg"
)
SUBSTITUTES = {
    **{pair[0]: pair[1:] for pair in SIGNS.split()},
    **dict(zip("▁▂▃▄▅▆▇█░▒▓", "_.:-=+*#:+%", strict=True)),
    **dict(zip("─━│┃", "--||", strict=True)),
}
ERRORS = "posbench.substitutes"  # the name of the codecs' error handler

# Variables by which libraries compute otherwise: kernels, instructions, rounding, order of sums.
CHANGING = re.compile(
    "(ATEN|BLIS|CUBLAS|CUBLASLT|CUDNN|DNNL|GOMP|KMP|MKL|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTORCH|TORCH"
    "|TORCHDYNAMO|TORCHINDUCTOR|TRITON)_.+|NCCL_(ALGO|PROTO)|DISABLE_ADDMM_CUDA_LT"
)
# Of these: what is recorded already, names places, or only says more.
HARMLESS = re.compile(
    "NVIDIA_(?!TF32)|TORCH_NCCL_|.*(NUM_THREADS|DIR|FILE|HOME|PATH|ROOT|VERSION|LOGS?|LEVEL|VERBOSE"
    "|DEBUG|TRACE|STACKTRACES)$"
)


def enter() -> None:
    """Once in a process that the user started."""
    _open_streams()
    substitute()
    # Figures are drawn without a screen, hold no time, and no warning is an error.
    os.environ["MPLBACKEND"] = "agg"
    for name in ("SOURCE_DATE_EPOCH", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    warnings.filters[:] = [each for each in warnings.filters if each[0] != "error"]  # type: ignore[index]
    if os.environ.get("POSBENCH_CACHE"):
        _settle_libraries()


def _settle_libraries() -> None:
    """Where the user's home takes no files, those of libraries go to POSBENCH_CACHE too."""
    try:
        cache = os.path.abspath(paths.typed("POSBENCH_CACHE", os.environ["POSBENCH_CACHE"]))
    except (UserError, OSError):  # said where the cache is used
        return
    there = home()
    if there is None or not there.is_dir():
        os.environ["HOME"] = cache
        return
    usual = there / ".cache"
    if not os.access(usual if usual.exists() else there, os.W_OK):
        os.environ.setdefault("HF_TOKEN_PATH", str(usual / "huggingface" / "token"))
        os.environ.setdefault("XDG_CACHE_HOME", cache)


def _open_streams() -> None:
    """A closed one is the null device: else the next file would get its number."""
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
    """Have what is printed in characters that the stream's encoding has. Harmless if repeated."""
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
    """End where standard output takes no more: quietly if nobody reads it; the exit code."""
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            print(f"error: standard output: {error.strerror}", file=sys.stderr)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what is still to be written when Python ends
    os.close(null)
    return 1


def home() -> Path | None:
    """The user's, or None: a user without an entry in passwd has none where HOME is not set."""
    found = os.path.expanduser("~")
    return Path(found) if os.environ.get("HOME") != "" and os.path.isabs(found) else None


def changing() -> dict[str, str]:
    """The variables that are set and could change a number: name -> value."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if CHANGING.fullmatch(name) and not HARMLESS.match(name)
    }


def without_git() -> dict[str, str]:
    """The environment without Git's variables, which name another repository inside a hook."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
