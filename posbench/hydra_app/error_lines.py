"""Printing a failed command's error as one line on stderr; and how Hydra's errors read."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from posbench.config.omegaconf_errors import no_such_key
from posbench.errors import (
    SweepFailed,
    UserError,
    failed_import,
    is_out_of_memory,
    nearest,
    one_line,
)
from posbench.hydra_app.launcher import EXTRAS
from posbench.hydra_app.overrides import as_text
from posbench.hydra_app.unsupported import misplaced_yaml
from posbench.machine import torchrun
from posbench.machine.confidential import redacted
from posbench.terminal.streams import printable

LONGEST = 2000  # characters of a line


def print_error(line: str, details: Sequence[str] = ()) -> None:
    """Print a red line on stderr and details below it, from one of the processes only."""
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
    from posbench.machine import distributed  # takes torch's seconds

    return distributed.first_to_say()


def is_users(error: BaseException) -> bool:
    """Whether an error is the user's to mend, so that a traceback would not help."""
    kinds = (UserError, HydraException, OmegaConfBaseException, OSError, yaml.YAMLError)
    return isinstance(error, kinds) or is_out_of_memory(error) or failed_import(error) is not None


@one_line.register
def _(error: HydraException) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_choice(error)
    cause = error.__cause__
    if (key := re.search(r"Could not override '(.+?)'", str(error))) is not None:
        return _missing_key(key[1], cause)
    if (word := re.match(r"Ambiguous value for argument '(.*)'\n", str(error))) is not None:
        text = as_text(word[1])
        return f"{word[1]}: commas sweep, with -m; a list is in brackets; as a text: {text}"
    hint = "; --config-dir=FOLDER adds one" if "Primary config" in str(error) else ""
    return _with_cause(error) + hint


def _with_cause(error: BaseException) -> str:
    """Hydra's message and that of its cause, which often says what was wrong."""
    told = (re.sub(":\n", ": ", str(e or "")) for e in (error, error.__cause__))
    said, why = (" ".join(text.split("\n")[0].split()) for text in told)
    return ": ".join(dict.fromkeys(filter(None, (said, why)))) or type(error).__name__


def _missing_choice(error: MissingConfigException) -> str:
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
    hint = misplaced_yaml(group, name) or nearest(name, options)
    return f"{group}={name}: there is no such {group}{hint} ({', '.join(options)})"


def _missing_key(key: str, cause: BaseException | None) -> str:
    if key.startswith("hydra."):
        return f"{key}: Hydra has no such key; +{key} adds it where keys are free"
    if cause is not None and "not in struct" not in str(cause):
        return f"{key}: {' '.join(str(cause).split())}"
    if key.startswith("encoding."):
        return f"{key}: this encoding's yaml has no such key; +{key} adds it, in a sweep ++{key}"
    return no_such_key(key)


def exit_code(error: BaseException) -> int:
    """Print a user's error and return exit code 1. Raises any other error: it is a defect."""
    if not is_users(error):
        raise error
    print_error(one_line(error), error.details if isinstance(error, SweepFailed) else ())
    return 1


def interrupted(error: KeyboardInterrupt) -> int:
    """Print that a command was stopped, and how far it came if known; the exit code."""
    if _first_to_say():
        print(f"\n{str(error) or 'interrupted'}", file=sys.stderr)
    return 130
