"""From a configuration to the things it names."""

from __future__ import annotations

import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from posbench import config as schemas
from posbench import corpus as corpora
from posbench import memory
from posbench import model as models
from posbench.config import Config, ParameterGroup
from posbench.corpus import Corpus
from posbench.encodings import Encoding, Shape
from posbench.errors import UserError
from posbench.explain import nearest, one_line
from posbench.tokenizer import Tokenizer


def shape(config: Config) -> Shape:
    """Raises UserError where heads do not divide the width, or a size is not positive, or there is
    not even memory for a model without a vocabulary."""
    for name in ("width", "heads", "layers", "feed_forward"):
        if (size := getattr(config.model, name)) < 1:
            raise UserError(f"model.{name}={size} must be at least 1")
    if not 0 <= config.model.dropout < 1:
        raise UserError(f"model.dropout={config.model.dropout} must lie in [0, 1)")
    memory.require_model(config.model, vocabulary=0)
    try:
        return Shape(config.model.width, config.model.heads, config.model.layers)
    except ValueError as error:
        raise UserError(str(error)) from error


def encoding(settings: dict[str, Any], model: Shape) -> Encoding:
    """The encoding that `_target_` names, with the other keys as its constructor's arguments.

    A group of encodings among the arguments (encoding.parts) becomes one of functions from a
    Shape to an Encoding. Raises UserError for a class that cannot be imported or is no Encoding, a
    key that its constructor does not have, and a value that it refuses.
    """
    return _maker(settings, "encoding")(model)


def learns(config: Config) -> bool:
    """Whether the encoding has parameters. Raises UserError as encoding and shape do."""
    return any(True for _ in encoding(config.encoding, shape(config)).parameters())


def extended(config: Config, extension: dict[str, Any]) -> dict[str, Any]:
    """The settings of a trained run's encoding under an extension of its context.

    Raises UserError where the extension is of another encoding, or of another training length.
    """
    trained = _class(dict(config.encoding), "encoding")
    asked = dict(extension)
    made = _class(asked, "extension")
    if not issubclass(made, trained) or made is trained:
        raise UserError(
            f"extension: {made.__name__} does not extend {trained.__name__}, which the run was "
            "trained with"
        )
    if asked.get("original_length", 0) is None:
        asked["original_length"] = config.train.length
    _check_arguments(made, asked, "extension", given=1)
    for key, value in asked.items():
        if key in config.encoding and config.encoding[key] != value:
            raise UserError(f"extension.{key}={value}: the run has {key}={config.encoding[key]}")
    length = asked.get("original_length", config.train.length)
    if length != config.train.length:
        raise UserError(
            f"extension.original_length={length}: the run was trained at {config.train.length}"
        )
    return {**config.encoding, **asked, "_target_": extension["_target_"]}


def _maker(settings: dict[str, Any], path: str) -> Callable[[Shape], Encoding]:
    """What makes the encoding at a dotted path, its settings checked."""
    arguments = {key: value for key, value in settings.items() if key not in schemas.NOT_ARGUMENTS}
    made = _class(arguments, path)
    if not issubclass(made, Encoding):
        raise UserError(f"{path}._target_={_name(made)} is not a subclass of posbench's Encoding")
    _check_arguments(made, arguments, path, given=1)
    for key, group in arguments.items():
        if _are_encodings(group):
            arguments[key] = {n: _maker(s, f"{path}.{key}.{n}") for n, s in group.items()}

    def make(model: Shape) -> Encoding:
        with _making(made, path):
            memory.require_module(f"{path} ({made.__name__})", lambda: made(model, **arguments))
            return made(model, **arguments)

    return make


def _are_encodings(value: object) -> bool:
    """Whether a value is a group of encodings: name -> settings with a `_target_`."""
    groups = value.values() if isinstance(value, dict) and value else [None]
    return all(isinstance(settings, dict) and "_target_" in settings for settings in groups)


def _class(settings: dict[str, Any], group: str) -> type:
    """The class that `_target_`, which is taken out, names. Raises UserError."""
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


def _check_arguments(made: type, arguments: dict[str, Any], group: str, given: int = 0) -> None:
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
    """X, and whether None is allowed too, from X or X | None."""
    inner = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    optional = type(None) in typing.get_args(annotation)
    return (inner[0] if optional and len(inner) == 1 else annotation), optional


def _is_a(value: object, wanted: type) -> bool:
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def positional(config: Config) -> dict[str, ParameterGroup]:
    """The optimizer groups of positional parameters, by the prefix of the names that each serves.

    Declared under `optim` in the encoding's yaml, and in that of each part of a mix. Raises
    UserError.
    """
    return dict(_positional(config.encoding, "encoding"))


def _positional(settings: dict[str, Any], path: str) -> Iterator[tuple[str, ParameterGroup]]:
    try:
        group = schemas.plain(settings.get("optim") or {}, ParameterGroup)
    except (OmegaConfBaseException, TypeError) as error:
        known = ", ".join(schemas.known_keys(ParameterGroup))
        raise UserError(f"{path}.optim.{one_line(error)} ({known})") from error
    if group.lr_multiplier < 0 or group.weight_decay < 0:
        raise UserError(f"{path}.optim: {group} must not be negative")
    yield f"{path}.", group
    for key, value in settings.items():
        if _are_encodings(value):
            for name, part in value.items():
                if "optim" in part:  # else its parameters are in the group around it
                    yield from _positional(part, f"{path}.{key}.{name}")


def model(config: Config, vocabulary: int) -> models.Transformer:
    """The model of a configuration, initialised from its seed. Raises UserError."""
    sizes = shape(config)
    memory.require_model(config.model, vocabulary)
    try:
        return models.build(
            sizes,
            vocabulary,
            lambda model: encoding(config.encoding, model),
            seed=config.seed,
            feed_forward=config.model.feed_forward,
            dropout=config.model.dropout,
            attention=config.model.attention,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def corpus(config: Config, say: Callable[[str], None] = lambda what: None) -> Corpus:
    """The tokenized corpus, from the cache or made now, which `say` is told. Raises UserError."""
    source, tokenizer = _make(config.corpus, "corpus"), _make(config.tokenizer, "tokenizer")
    return corpora.prepare(source, tokenizer, say=say)


def _make(settings: dict[str, Any], group: str) -> Any:
    arguments = dict(settings)
    made = _class(arguments, group)
    if not _is_source(made) if group == "corpus" else not issubclass(made, Tokenizer):
        raise UserError(f"{group}._target_={_name(made)} is not a {group} that posbench can use")
    _check_arguments(made, arguments, group)
    with _making(made, group):
        return made(**arguments)


def _is_source(made: type) -> bool:
    return all(callable(getattr(made, method, None)) for method in ("identity", "load"))


@contextmanager
def _making(made: type, path: str) -> Iterator[None]:
    """Raise UserError where a constructor refuses its arguments."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise UserError(f"{path} ({made.__name__}): {_short(error)}") from error


def _name(made: type) -> str:
    return f"{made.__module__}.{made.__qualname__}"


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
