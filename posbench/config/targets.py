"""From `_target_` and the keys beside it to a class and its checked arguments."""

from __future__ import annotations

import inspect
import pkgutil
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posbench.config.schemas import EvalConfig
from posbench.errors import UserError, nearest

# Modules of earlier versions, which run folders, tuned records and users' yaml files name.
MOVED = {
    "posbench.sources.": "posbench.corpus.sources.",
    "posbench.tokenizer.": "posbench.corpus.tokenizer.",
}

CAUSAL = "posbench.objectives.Causal"  # what all runs were once

# Keys that these classes were given later, each with the value that they had without it.
ADDED = {
    "posbench.encodings.alibi.ALiBi": {"sides": "symmetric"},
    "posbench.encodings.randomized.RandomizedALiBi": {"sides": "symmetric"},
}


def as_of_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that an earlier version wrote, in today's words: a class that moved is named by the
    module where it is now, and a key that there was not has the value that makes it as it was.

    Groups may be nested, as in a run's configuration, or be in dotted keys, as in a tuned record.
    """
    named: dict[str, Any] = {}
    for key, value in settings.items():
        group, dot, last = str(key).rpartition(".")
        if isinstance(value, dict):
            named[key] = as_of_now(value)
        elif last == "_target_" and isinstance(value, str):
            named[key] = _current_name(value)
            for new, was in ADDED.get(named[key], {}).items():
                named.setdefault(f"{group}{dot}{new}", was)
        else:
            named[key] = value
    if {"protocols", "batch_tokens"} <= settings.keys():
        named.setdefault("folds", EvalConfig.folds)
    if {"encoding", "train"} <= settings.keys():
        named.setdefault("objective", {"_target_": CAUSAL})
    elif {"encoding._target_", "train.length"} <= settings.keys():
        named.setdefault("objective._target_", CAUSAL)
    return named


def _current_name(target: str) -> str:
    for before, now in MOVED.items():
        if target.startswith(before):
            return now + target.removeprefix(before)
    return target


def find_class(settings: dict[str, Any], group: str) -> type:
    """The class that `_target_` names; the key is removed from settings. Raises UserError."""
    target = settings.pop("_target_", None)
    if not isinstance(target, str) or "." not in target:
        raise UserError(f"{group}._target_={target}: name a class, as module.Class")
    try:
        found = pkgutil.resolve_name(target)
    except Exception as error:  # whatever importing the user's module raises
        raise UserError(f"{group}._target_={target}: {_short(error)}") from error
    if not isinstance(found, type):
        raise UserError(f"{group}._target_={target} is no class")
    return found


def check_arguments(made: type, arguments: dict[str, Any], group: str, given: int = 0) -> None:
    """Raise UserError for a key the constructor does not have, or a value of another type.

    The first `given` parameters of the constructor are not the user's.
    """
    known = list(inspect.signature(made).parameters)[given:]
    try:
        types = typing.get_type_hints(made.__init__)  # type: ignore[misc]
    except NameError:  # imported for type checkers alone
        types = {}
    for key, value in arguments.items():
        if key not in known:
            hint = nearest(key, known) + (f" ({', '.join(known)})" if known else "")
            raise UserError(f"{group}.{key}: {made.__name__} has no such parameter{hint}")
        wanted, optional = _type(types.get(key))
        if wanted not in (int, float, bool, str) or (value is None and optional):
            continue
        if not _is_a(value, wanted):
            raise UserError(f"{group}.{key}={value} must be of type {wanted.__name__}")
        arguments[key] = wanted(value)  # 1 where a float is meant


def _type(annotation: Any) -> tuple[Any, bool]:
    """(X, whether None is allowed) for an annotation X or X | None."""
    inner = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    optional = type(None) in typing.get_args(annotation)
    return (inner[0] if optional and len(inner) == 1 else annotation), optional


def _is_a(value: object, wanted: type) -> bool:
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


@contextmanager
def making(made: type, path: str) -> Iterator[None]:
    """Turn an error of a constructor about its arguments into a UserError."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise UserError(f"{path} ({made.__name__}): {_short(error)}") from error


def are_targets(value: object) -> bool:
    """Whether a value is a group of settings that each name a class: name -> settings."""
    groups = value.values() if isinstance(value, dict) and value else [None]
    return all(isinstance(settings, dict) and "_target_" in settings for settings in groups)


def class_name(made: type) -> str:
    return f"{made.__module__}.{made.__qualname__}"


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
