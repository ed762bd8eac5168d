"""The command line rewritten so that Hydra's grammar reads what the user meant.

Hydra's grammar takes 1e3 for a number, [1] for a list, a comma for a sweep and many characters for
a mistake. A key that takes a text (run.name, folder, ...) gets the characters as they stand, but
for what asks for more: quotes, ${...}, a list of values under -m, choice(...) and its like.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from importlib import resources
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError

from posbench.config import SCHEMAS, known_keys, known_types, literal
from posbench.errors import UserError
from posbench.machine import paths

TAKES = {"eval": "run", "repro": "run", "report": "runs", "claims": "runs"}  # words without a key
TEXTS = {"corpus.path", "corpus.name"}  # and what a schema has as text
OPTIONAL = ("experiment", "scale", "extension")  # groups of which there may be no choice
SEARCHED = "hydra.searchpath"


def readable(command: str, rest: list[str]) -> list[str]:
    """The arguments to give to Hydra: flags, one word each, then overrides.

    Raises UserError for a word that cannot be used, with the way to write it.
    """
    flags, words = _apart(rest)
    if "--shell-completion" in flags:
        return rest
    many = "--multirun" in flags or "hydra.mode=MULTIRUN" in words
    runs = [word for word in words if command in TAKES and _names_a_run(word)]
    overrides = [_override(word, many) for word in words if word not in runs]
    if runs:
        overrides.append(_taking(command, runs))
    return [*flags, *overrides]


def _apart(rest: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into flags, as --name or --name=value, and all other words."""
    parser = get_args_parser()
    parser.error = _no_flag  # type: ignore[method-assign]
    try:
        found = vars(parser.parse_intermixed_args(rest))
    except argparse.ArgumentError as error:  # of Python 3.12
        _no_flag(str(error))
    words = found.pop("overrides") or []
    if found["experimental_rerun"] is not None:
        raise UserError("--experimental-rerun: repeat the command; a run goes on where it stopped")
    if (folder := found["config_dir"]) is not None:
        found["config_dir"] = _folder("--config-dir", folder)
    given = {name.replace("_", "-"): value for name, value in found.items() if value}
    flags = [f"--{name}" + ("" if value is True else f"={value}") for name, value in given.items()]
    return flags, words


def _no_flag(message: str) -> NoReturn:
    about = "; --help tells of flags, and a folder called -x is written ./-x"
    raise UserError(message + about)


def _folder(key: str, typed: str) -> str:
    """A folder that must be there. Raises UserError."""
    if not os.path.isdir(path := paths.expanded(key, typed)):
        raise UserError(f"{key}={typed}: there is no such folder")
    return path


def _names_a_run(word: str) -> bool:
    """Whether a word is a run folder or a glob of some, and no override."""
    key, equals, _ = word.partition("=")
    name, known = key.lstrip("+~"), _keys() | _groups()
    if equals and (name in known or name.startswith("hydra/")):
        return False
    if os.path.lexists(word) or "/" in name or not (equals or word[:1] in ("+", "~", "")):
        return True
    if word.startswith("~"):  # a home folder, else a key to delete
        return not equals and name not in known and "." not in name
    return bool(paths.matching("runs", word))


def _taking(command: str, runs: list[str]) -> str:
    """The override `run=` or `runs=` made of words that name run folders."""
    key, values = TAKES[command], [quoted(literal(run)) for run in runs]
    if key == "runs":
        return f"runs=[{','.join(values)}]"
    if len(runs) > 1:
        raise UserError(f"{command} takes one run folder: {', '.join(runs)}")
    return f"{key}={values[0]}"


def quoted(text: str, quote: Quote = Quote.single) -> str:
    """A text as a value in Hydra's grammar; ${...} in it stays what it is in OmegaConf."""
    return QuotedString(text=text, quote=quote).with_quotes()


def _override(word: str, many: bool) -> str:
    key, equals, value = word.partition("=")
    name = key.lstrip("+~")
    if equals and not name:
        raise UserError(f"{word}: there is no key before the =")
    if name in _groups():
        key = key.lstrip("+")  # each has a default choice already
        if key.startswith("~") or value.strip().lower() == "null":
            if name not in OPTIONAL:
                raise UserError(f"{word}: there must be a choice of {name}; --help lists them")
            return f"~{name}"
    elif equals and name == SEARCHED:
        value = _searched(value)
    elif equals and name == "runs":
        listed = value.lstrip()[:1] == "[" or many or value.lower() == "null"
        value = value if listed else f"[{_text(value, many)}]"
        value = value if _is_readable(value) else _list(value)
    elif equals and name in _texts():
        value = _text(value, many)
    made = f"{key}{equals}{value}"
    try:
        _parsed(made)
        OmegaConf.create({"x": value})
    except HydraException as error:
        raise UserError(_how_to_write(word, error)) from error
    except GrammarParseError as error:
        raise UserError(
            f"{word}: ${{ begins the name of another key, and }} ends it; as a text: "
            f"{as_text(literal(word))}"
        ) from error
    return made


def _text(value: str, many: bool) -> str:
    """The value of a key that takes a text."""
    try:
        found = _parsed(f"x={value}")
    except HydraException:
        found = None
    simple = found is None or found.value_type is ValueType.SIMPLE_CHOICE_SWEEP
    if "," in value and simple:
        if os.path.exists(os.path.expanduser(value)) or (found is None and not many):
            return quoted(value)
        pieces = [value] if set(value) & set("'\"[{(") else value.split(",")
        return ",".join(_text(piece, many) for piece in pieces) if len(pieces) > 1 else value
    if found is None:
        return quoted(value)
    if found.value_type is not ValueType.ELEMENT or isinstance(found.value(), str | None):
        return value
    return value if str(found.value()) == value and value[0] not in "[{" else quoted(value)


def _searched(value: str) -> str:
    """The folders of hydra.searchpath, home folders for ~; each must be there."""
    inside = value.strip().removeprefix("[").removesuffix("]")
    places = [each.strip(" '\"").removeprefix("file://") for each in inside.split(",")]
    found = [each if "://" in each else _folder(SEARCHED, each) for each in places if each]
    return f"[{','.join(map(quoted, found))}]"


def _list(value: str) -> str:
    """A list in Hydra's grammar, with quotes around each part that needs them."""
    parts = [part.strip() for part in value.strip()[1:-1].split(",")]
    made = (part if _is_readable(part) else quoted(part, Quote.double) for part in parts)
    return f"[{','.join(made)}]"


def as_text(word: str) -> str:
    """An override quoted for Hydra and for a shell, so that its value is taken as plain text."""
    key, _, value = word.partition("=")
    listed = value[:1] == "[" and value[-1:] == "]"
    return shlex.quote(f"{key}={_list(value) if listed else quoted(value, Quote.double)}")


def _how_to_write(word: str, error: HydraException) -> str:
    """Why Hydra's grammar does not take a word: where it stops, and what to type instead."""
    key, equals, _ = word.partition("=")
    place = _place(error)
    if not equals:
        return f"{word}: neither a flag nor key=value"
    if place is not None and place < len(key):
        return f"{word}: it is written key=value, and {key!r} is no key"
    if place is not None:
        rest = word[place:]
        why = f"Hydra stops at {paths.shortened(rest)}" if rest.strip() else "something is missing"
    elif (left := re.search("extraneous input '(.*)' expecting", str(error))) is not None:
        why = f"Hydra stops at {left[1]!r}"
    else:
        why = " ".join(str(error.__cause__ or error).split())
    return f"{word}: cannot be read ({why}); as a text: {as_text(word)}"


def _place(error: HydraException) -> int | None:
    """Where in the word Hydra stopped, as far as it says."""
    cause = error.__cause__
    token = getattr(cause, "offendingToken", None)
    start = getattr(cause, "startIndex", None) if token is None else token.start
    return start if isinstance(start, int) else None


def _is_readable(value: str) -> bool:
    try:
        _parsed(f"x={value}")
    except HydraException:
        return False
    return True


def _parsed(word: str) -> Override:
    return OverridesParser.create().parse_override(word)


def _groups() -> set[str]:
    return {each.name for each in resources.files("posbench.conf").iterdir() if each.is_dir()}


def _keys() -> set[str]:
    return {key for schema in SCHEMAS for key in known_keys(schema)}


def _texts() -> set[str]:
    kinds = [each for schema in SCHEMAS for each in known_types(schema)]
    return {key for key, kind in kinds if kind in (str, str | None)} | TEXTS
