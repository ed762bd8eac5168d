"""Whether what was read from a file is of the types that are due."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any


def require(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise ValueError for a value of another type, or for a number that is no count or size."""
    for key, wanted in types.items():
        if key in values and not is_a(values[key], wanted):
            raise ValueError(f"{key}={values[key]!r} where {wanted} is due")


def is_a(value: object, wanted: Any) -> bool:
    """Numbers must lie in 0 .. 2^63; a whole one may stand for a float, a boolean for none."""
    if typing.get_origin(wanted) is list:
        (each,) = typing.get_args(wanted)
        return isinstance(value, list) and all(is_a(part, each) for part in value)
    if typing.get_origin(wanted) is dict:
        _, each = typing.get_args(wanted)
        return isinstance(value, dict) and all(is_a(part, each) for part in value.values())
    kinds = typing.get_args(wanted) or (wanted,)
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float) and not 0 <= value < 2**63:
        return False
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))
