"""Reading a run's config.yaml, which may come from a stranger, as plain data.

Interpolations are not resolved (`${oc.env:...}` stays text), and a class is imported only if
trusted_classes.py allows it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench import config as schemas
from posbench.config import targets
from posbench.config.checks import require_usable
from posbench.errors import UserError, one_line
from posbench.runs import trusted_classes

LARGEST = 2**20  # bytes; a run's has some thousand
PLAIN = (str, int, float, bool, type(None))


def read(path: Path) -> dict[str, Any]:
    """The plain values of a YAML file. Raises UserError for one that holds anything else."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: more than {LARGEST:,} bytes: not a run's configuration")
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(loaded, dict) or not _is_plain(loaded):
        raise UserError(f"{path}: not a run's configuration")
    return targets.as_of_now({str(key): value for key, value in loaded.items()})


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses tags, which make objects, and references, a few of which can fill the RAM."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(problem="a reference (*) to another part of it")
        return super().compose_node(parent, index)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, PLAIN) and _is_plain(each) for key, each in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, PLAIN)


def require_types(path: Path, values: Mapping[str, Any]) -> None:
    """Raise UserError for a value of another type than the schema's; keys may be more or fewer."""
    _merge(path, _known(values, schemas.Config))


def typed(path: Path) -> schemas.Config:
    """The typed configuration of a run, with every class in it checked by trusted_classes.py.

    Keys that an earlier version did not have get the value that it used, or today's default.
    Raises UserError.
    """
    values = {"tuned": "false", **read(path)}
    defaults = resources.files("posbench.conf") / "eval" / "default.yaml"
    known = yaml.safe_load(defaults.read_text(encoding="utf-8"))
    values["eval"] = {**known, **values["eval"]} if isinstance(values.get("eval"), dict) else known
    try:
        made = OmegaConf.to_object(_merge(path, values))
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {one_line(error)}") from error
    assert isinstance(made, schemas.Config)
    try:
        require_usable(dataclasses.asdict(made))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    for key, settings in _targets(made):
        trusted_classes.require(f"{path}: {key}", settings.get("_target_"))
    return made


def _targets(config: schemas.Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every group of settings that names a class."""
    groups = [
        (name, getattr(config, name)) for name in ("corpus", "tokenizer", "encoding", "objective")
    ]
    yield from groups
    while groups:
        path, settings = groups.pop()
        inner = [(f"{path}.{k}", v) for k, v in settings.items() if isinstance(v, dict)]
        yield from ((key, group) for key, group in inner if "_target_" in group)
        groups += inner


def _merge(path: Path, values: Mapping[str, Any]) -> Any:
    try:
        return OmegaConf.merge(
            OmegaConf.structured(schemas.Config), OmegaConf.create(schemas.literal(dict(values)))
        )
    except (OmegaConfBaseException, RecursionError) as error:
        said = one_line(error) if isinstance(error, OmegaConfBaseException) else "nested too deep"
        raise UserError(f"{path}: {said}") from error


def _known(values: Mapping[str, Any], schema: type) -> dict[str, Any]:
    """The values without keys that the schema does not have."""
    types = typing.get_type_hints(schema)
    kept = {key: value for key, value in values.items() if key in types}
    return {
        key: _known(value, types[key])
        if isinstance(value, dict) and dataclasses.is_dataclass(types[key])
        else value
        for key, value in kept.items()
    }
