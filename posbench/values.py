"""Values that nothing here could use, whatever their key."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from posbench import confidential
from posbench.errors import UserError

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
        if (name := confidential.within(value)) is not None:
            raise UserError(f"{key} holds the secret in {name}, and it would be written down")


def require_flat(key: str, value: object) -> None:
    """Raise UserError for a list in a list, of which omegaconf does not look at the types."""
    if isinstance(value, list) and any(isinstance(each, (list, dict)) for each in value):
        raise UserError(f"{key}={value} must be a list of plain values, as in [1,2]")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values, and the keys of dictionaries as values too."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield path or "a key", key
            yield from _leaves(each, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, path)
    else:
        yield path, value
