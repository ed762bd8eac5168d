"""Errors in the user's words: what, where, and what would be right, in one line."""

from __future__ import annotations

import difflib
import errno
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from posbench import torchrun
from posbench.confidential import redacted
from posbench.config import SCHEMAS, known_keys
from posbench.errors import SweepFailed, UserError
from posbench.launcher import EXTRAS

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, largest file

LONGEST = 2000  # characters of a line


def complain(line: str, details: Sequence[str] = ()) -> None:
    """One red line on stderr, and plain ones, whatever the number of processes."""
    if not _first_to_say():
        return
    from rich.console import Console

    said = redacted(printable(line))
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]} ..."
    Console(stderr=True, soft_wrap=True).print(
        "error:", said, style="red", markup=False, highlight=False
    )
    for detail in details:
        print(redacted(detail), file=sys.stderr)


def _first_to_say() -> bool:
    if torchrun.processes() == 1:
        return True
    from posbench import distributed  # takes torch's seconds

    return distributed.first_to_say()


def counts(remarks: Mapping[str, int]) -> str:
    """How much of each kind, in one line."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in remarks.items())


def is_users(error: BaseException) -> bool:
    """Whether an error is about what was asked, so that a traceback would not help."""
    kinds = (UserError, HydraException, OmegaConfBaseException, OSError, yaml.YAMLError)
    return isinstance(error, kinds) or is_out_of_memory(error) or _unimportable(error) is not None


def _unimportable(error: BaseException) -> str | None:
    """The library in whose import this was raised, as for a variable that it cannot read."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = _modules(error)
    ours = [n for n, module in enumerate(modules) if module.partition(".")[0] == "posbench"]
    after = ours[-1] + 1 if ours else len(frames)
    if after < len(frames) and frames[after].f_code.co_name == "<module>":
        return modules[after].partition(".")[0]
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch's own class, not imported here, is for devices; on a CPU it raises RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in str(error) for words in ("can't allocate memory", "std::bad_alloc"))
    )


def printable(text: str) -> str:
    """On one line, and nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def one_line(error: BaseException) -> str:
    """An error as one line, with the nearest name where a name was not found."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_choice(error)
    if isinstance(error, OmegaConfBaseException):
        return _config_value(error)
    if isinstance(error, HydraException):
        cause = error.__cause__
        if (key := re.search(r"Could not override '(.+?)'", str(error))) is not None:
            return _missing_key(key[1], cause)
        if (word := re.match(r"Ambiguous value for argument '(.*)'\n", str(error))) is not None:
            return f"{word[1]}: commas sweep, with -m; a list is in brackets; {_as_text(word[1])}"
        hint = "; --config-dir=FOLDER adds one" if "Primary config" in str(error) else ""
        return _with_cause(error) + hint
    if is_out_of_memory(error) and not isinstance(error, UserError):
        return f"out of memory ({' '.join(str(error).split())}); lower the sizes"
    if (library := _unimportable(error)) is not None:
        said = " ".join(str(error).split())
        return (
            f"{library} cannot be imported ({type(error).__name__}: {said[:300]}); look at its "
            "environment variables, its settings file, and its installation"
        )
    if isinstance(error, OSError) and (place := error.filename or _stream(error)):
        hint = "; make room, then repeat the command" if error.errno in FULL else ""
        return f"{place}: {error.strerror}{hint}"
    return " ".join(str(error).split()) or type(error).__name__


def _stream(error: BaseException) -> str | None:
    """ "standard output" where it is what rich could not write to."""
    modules = _modules(error)
    return "standard output" if modules and modules[-1].startswith("rich.") else None


def _modules(error: BaseException) -> list[str]:
    """Of the frames that it went through, the innermost last."""
    frames = traceback.walk_tb(error.__traceback__)
    return [str(frame.f_globals.get("__name__")) for frame, _ in frames]


def _as_text(word: str) -> str:
    from posbench.words import as_text  # of a command line

    return f"as a text: {as_text(word)}"


def _with_cause(error: BaseException) -> str:
    """Hydra's own words often lack what was wrong."""
    told = (re.sub(":\n", ": ", str(e or "")) for e in (error, error.__cause__))
    said, why = (" ".join(text.split("\n")[0].split()) for text in told)
    return ": ".join(dict.fromkeys(filter(None, (said, why)))) or type(error).__name__


def nearest(name: str, choices: Iterable[str]) -> str:
    """ "; did you mean X?" for the closest choice, or nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _missing_choice(error: MissingConfigException) -> str:
    from posbench.foreign import elsewhere  # which imports this

    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = sorted(str(option) for option in error.options or [])
    if not group or not options:
        said = " ".join(str(error).split())
        return f"{said}; --config-dir=FOLDER adds a folder of yours to posbench's configuration"
    if group == "hydra/launcher" and name in EXTRAS:
        return (
            f"{group}={name}: its plugin is not installed; pip install 'posbench[{EXTRAS[name]}]'"
        )
    if group == "hydra/sweeper":
        return f"{group}={name}: posbench sweeps with Hydra's own, basic; posbench tune searches"
    hint = elsewhere(group, name) or nearest(name, options)
    return f"{group}={name}: there is no such {group}{hint} ({', '.join(options)})"


def _missing_key(key: str, cause: BaseException | None) -> str:
    if key.startswith("hydra."):
        return f"{key}: Hydra has no such key; +{key} adds it where keys are free"
    if cause is not None and "not in struct" not in str(cause):
        return f"{key}: {' '.join(str(cause).split())}"
    if key.startswith("encoding."):
        return f"{key}: this encoding's yaml has no such key; +{key} adds it, in a sweep ++{key}"
    return f"{key}: there is no such key{nearest(key, _others(key))}"


def _others(key: str) -> set[str]:
    """Keys to offer instead: neither this one, of another command, nor the group it is in."""
    return {other for other in _keys() if other != key and not key.startswith(f"{other}.")}


def _keys() -> set[str]:
    return {key for schema in SCHEMAS for key in known_keys(schema)}


def _config_value(error: OmegaConfBaseException) -> str:
    first = str(error.msg or error).splitlines()[0]
    if "is not a ListConfig" in first:
        first = "must be a list, as in [1,2]"
    key = error.full_key or ""
    if "Missing mandatory value" in first or "MissingMandatory" in type(error).__name__:
        return f"{key}: must be given, e.g. {key}=..."
    if "'None' for field" in first or "is not Optional" in first:
        named = key or re.sub("field '(.*)' is not Optional", r"\1", first)
        return f"{named}: must not be null"
    if re.match(r"Key '.*' not in '", first):
        return f"{key}: there is no such key{nearest(key, _others(key))}"
    if "Interpolation key 'hydra." in first:
        first += "; Hydra's own are written ${hydra:...}, with a colon"
    return f"{key}: {first}" if key and key not in first else first


def exit_with(error: BaseException) -> int:
    """Report a user's error in a line; anything else is a defect and shows its traceback."""
    if not is_users(error):
        raise error
    complain(one_line(error), error.details if isinstance(error, SweepFailed) else ())
    return 1


def interrupted(error: KeyboardInterrupt) -> int:
    """Say that a command was stopped, and how far it came if it knows; the exit code."""
    if _first_to_say():
        print(f"\n{str(error) or 'interrupted'}", file=sys.stderr)
    return 130
