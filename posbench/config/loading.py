"""From Hydra's node, or from plain values, to a typed schema."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from posbench.config import checks
from posbench.config.targets import as_of_now
from posbench.machine import paths

T = TypeVar("T")


def load(node: DictConfig, schema: type[T]) -> T:
    """Hydra's composed node, checked against a schema and made typed.

    Raises omegaconf's errors, which name the key, for a value of the wrong type, and UserError for
    one that nothing could use.
    """
    resolved: Any = OmegaConf.to_container(node, resolve=True)  # before types are looked at
    _find_homes(resolved)
    resolved = as_of_now(resolved)
    merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(literal(resolved)))
    typed = OmegaConf.to_object(merged)
    assert isinstance(typed, schema)
    plain = dataclasses.asdict(typed)  # type: ignore[call-overload]
    for key in known_keys(schema):
        checks.require_flat(key, functools.reduce(operator.getitem, key.split("."), plain))
    checks.require_usable(plain)
    return typed


def _find_homes(tree: Any) -> None:
    """Expand ~ in the paths of a command's configuration, in place. Raises UserError."""
    run = tree.get("run")  # of posbench eval and repro it is itself a path
    inside = (run, "root", "run.root") if isinstance(run, dict) else (tree, "run", "run")
    for group, key, name in (inside, (tree, "folder", "folder")):
        if isinstance(group.get(key), str):
            group[key] = paths.expanded(name, group[key])


def plain(values: Any, schema: type[T]) -> T:
    """`load` for plain values: ${...} in them stays text."""
    return load(OmegaConf.create(literal(values)), schema)


def literal(value: Any) -> Any:
    """Plain values with every ${...} escaped, which OmegaConf would interpolate."""
    if isinstance(value, dict):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [literal(each) for each in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def known_keys(schema: type) -> Iterator[str]:
    """Every dotted key of a schema, groups included."""
    return (key for key, _ in known_types(schema))


def known_types(schema: type) -> Iterator[tuple[str, Any]]:
    """Every dotted key of a schema with its type."""
    for name, kind in typing.get_type_hints(schema).items():
        yield name, kind
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from ((f"{name}.{key}", inner) for key, inner in known_types(kind))
