"""Checks of values, whatever their key: of a configuration, or of rows read from a file."""

from __future__ import annotations

import typing
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from posbench.errors import UserError
from posbench.machine import confidential

UNUSABLE = ("Cc", "Cs")  # of Unicode's categories: control characters, halves of surrogate pairs


def require_usable(tree: Any) -> None:
    """Raise UserError for a number beyond 64 bits, a text with control characters or a secret."""
    for key, value in _leaves(tree, ""):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{key}: a whole number of more than 64 bits")
        if not isinstance(value, str):
            continue
        if any(unicodedata.category(character) in UNUSABLE for character in value):
            raise UserError(f"{key}={value!r} has characters that are no text")
        if (name := confidential.secret_in(value)) is not None:
            raise UserError(f"{key} holds the secret in {name}, and it would be written down")


def require_flat(key: str, value: object) -> None:
    """Raise UserError for a list in a list: omegaconf does not check the types of those."""
    if isinstance(value, list) and any(isinstance(each, (list, dict)) for each in value):
        raise UserError(f"{key}={value} must be a list of plain values, as in [1,2]")


def require_types(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise ValueError for a value that has not the type of its key (see `has_type`)."""
    for key, wanted in types.items():
        if key in values and not has_type(values[key], wanted):
            raise ValueError(f"{key}={values[key]!r} where {wanted} is due")


def has_type(value: object, wanted: Any) -> bool:
    """Whether a value has a type. Numbers must lie in 0 .. 2^63; an int passes for a float, a
    bool for neither."""
    if typing.get_origin(wanted) is list:
        (each,) = typing.get_args(wanted)
        return isinstance(value, list) and all(has_type(part, each) for part in value)
    if typing.get_origin(wanted) is dict:
        _, each = typing.get_args(wanted)
        return isinstance(value, dict) and all(has_type(part, each) for part in value.values())
    kinds = typing.get_args(wanted) or (wanted,)
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float) and not 0 <= value < 2**63:
        return False
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each dotted key with its value; each key of a dictionary comes as a value too."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield path or "a key", key
            yield from _leaves(each, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, path)
    else:
        yield path, value
