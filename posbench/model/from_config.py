"""From a configuration to the model and the encoding that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posbench.config import NOT_ARGUMENTS, Config, targets
from posbench.encodings import Encoding, Shape
from posbench.errors import UserError
from posbench.machine import memory
from posbench.model import footprint, transformer
from posbench.objectives import objective


def shape(config: Config) -> Shape:
    """The Shape of a configuration's model.

    Raises UserError where heads do not divide the width or a size is not positive, and NotEnough
    where RAM does not suffice even for a model without a vocabulary.
    """
    for name in ("width", "heads", "layers", "feed_forward"):
        if (size := getattr(config.model, name)) < 1:
            raise UserError(f"model.{name}={size} must be at least 1")
    if not 0 <= config.model.dropout < 1:
        raise UserError(f"model.dropout={config.model.dropout} must lie in [0, 1)")
    footprint.require_model(config.model, vocabulary=0)
    try:
        two_sided = objective(config).two_sided
        return Shape(config.model.width, config.model.heads, config.model.layers, two_sided)
    except ValueError as error:
        raise UserError(str(error)) from error


def encoding(settings: dict[str, Any], model: Shape) -> Encoding:
    """The encoding that `_target_` names, with the other keys as its constructor's arguments.

    A group of encodings among the arguments (encoding.parts) becomes one of functions from a
    Shape to an Encoding. Raises UserError for a class that cannot be imported or is no Encoding, a
    key that its constructor does not have, and a value that it refuses.
    """
    made = _maker(settings, "encoding")(model)
    for layer in range(model.layers if model.two_sided else 0):
        _require_two_sided(made.at(layer)[0])
    return made


def _require_two_sided(encoding: Encoding) -> None:
    """Raise UserError for an encoding whose queries must not see the keys after them."""
    name = type(encoding).__name__
    if encoding.directions == "causal":
        raise UserError(
            f"encoding: {name} is defined for the past alone (its attribute `directions`), so no "
            "masked model can have it; use objective=causal or another encoding"
        )
    if encoding.memory_length:
        raise UserError(
            f"encoding.memory_length={encoding.memory_length}: {name}'s memory is of the past, "
            "and a masked model has none; set it to 0"
        )


def encoding_of(config: Config) -> Encoding:
    """The encoding of a configuration's model. Raises UserError as encoding and shape do."""
    return encoding(config.encoding, shape(config))


def learns(config: Config) -> bool:
    """Whether the encoding has parameters. Raises UserError as encoding and shape do."""
    return any(True for _ in encoding_of(config).parameters())


def extended(config: Config, extension: dict[str, Any]) -> dict[str, Any]:
    """The settings of a trained run's encoding under an extension of its context.

    Raises UserError where the extension is of another encoding, or of another training length.
    """
    trained = targets.find_class(dict(config.encoding), "encoding")
    asked = dict(extension)
    made = targets.find_class(asked, "extension")
    if not issubclass(made, trained) or made is trained:
        raise UserError(
            f"extension: {made.__name__} does not extend {trained.__name__}, which the run was "
            "trained with"
        )
    if asked.get("original_length", 0) is None:
        asked["original_length"] = config.train.length
    targets.check_arguments(made, asked, "extension", given=1)
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
    """A function from a Shape to the encoding at a dotted path; checks the settings."""
    arguments = {key: value for key, value in settings.items() if key not in NOT_ARGUMENTS}
    made = targets.find_class(arguments, path)
    if not issubclass(made, Encoding):
        raise UserError(
            f"{path}._target_={targets.class_name(made)} is not a subclass of posbench's Encoding"
        )
    targets.check_arguments(made, arguments, path, given=1)
    for key, group in arguments.items():
        if targets.are_targets(group):
            arguments[key] = {n: _maker(s, f"{path}.{key}.{n}") for n, s in group.items()}

    def make(model: Shape) -> Encoding:
        with targets.making(made, path):
            memory.require_module(f"{path} ({made.__name__})", lambda: made(model, **arguments))
            return made(model, **arguments)

    return make


def model(config: Config, vocabulary: int) -> transformer.Transformer:
    """The model of a configuration, initialised from its seed. Raises UserError."""
    sizes = shape(config)
    footprint.require_model(config.model, vocabulary)
    try:
        return transformer.build(
            sizes,
            vocabulary,
            lambda model: encoding(config.encoding, model),
            seed=config.seed,
            feed_forward=config.model.feed_forward,
            dropout=config.model.dropout,
            attention=config.model.attention,
            special=int(objective(config).masks),
            decoder=objective(config).decoder,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
