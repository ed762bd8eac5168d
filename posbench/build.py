"""From a configuration to the things it names."""

from __future__ import annotations

import inspect
from typing import Any

import hydra.utils
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench import config as schemas
from posbench import corpus as corpora
from posbench import model as models
from posbench.config import Config, PositionalGroup
from posbench.corpus import Corpus
from posbench.encodings import Encoding, Shape
from posbench.errors import UserError
from posbench.explain import nearest, one_line


def shape(config: Config) -> Shape:
    """Raises UserError where heads do not divide the width, or a size is not positive."""
    sizes = {
        "width": config.model.width,
        "heads": config.model.heads,
        "layers": config.model.layers,
    }
    sizes["feed_forward"] = config.model.feed_forward
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"model.{name}={size} must be at least 1")
    if not 0 <= config.model.dropout < 1:
        raise UserError(f"model.dropout={config.model.dropout} must lie in [0, 1)")
    try:
        return Shape(config.model.width, config.model.heads, config.model.layers)
    except ValueError as error:
        raise UserError(str(error)) from error


def encoding(settings: dict[str, Any], model: Shape) -> Encoding:
    """The encoding that `_target_` names, with the other keys as its constructor's arguments.

    Raises UserError for a class that cannot be imported or is no Encoding, a key that its
    constructor does not have, and a value that it refuses.
    """
    target = settings.get("_target_")
    arguments = {k: v for k, v in settings.items() if k not in ("_target_", "optim")}
    if not isinstance(target, str):
        raise UserError("encoding._target_ must name a class, e.g. posbench.encodings.alibi.ALiBi")
    try:
        made = hydra.utils.get_class(target)
    except Exception as error:
        raise UserError(f"encoding._target_={target}: {_short(error)}") from error
    if not issubclass(made, Encoding):
        raise UserError(f"encoding._target_={target} is not a subclass of posbench's Encoding")
    known = list(inspect.signature(made).parameters)[1:]
    for key in arguments:
        if key not in known:
            hint = nearest(key, known) + (f" ({', '.join(known)})" if known else "")
            raise UserError(f"encoding.{key}: {made.__name__} has no such parameter{hint}")
    try:
        return made(model, **arguments)
    except (ValueError, TypeError) as error:
        raise UserError(f"encoding ({made.__name__}): {error}") from error


def positional(config: Config) -> PositionalGroup:
    """The optimizer group that the encoding's yaml declares under `optim`. Raises UserError."""
    try:
        group = schemas.load(OmegaConf.create(config.encoding.get("optim", {})), PositionalGroup)
    except OmegaConfBaseException as error:
        known = ", ".join(schemas.known_keys(PositionalGroup))
        raise UserError(f"encoding.optim.{one_line(error)} ({known})") from error
    if group.lr_multiplier < 0 or group.weight_decay < 0:
        raise UserError(f"encoding.optim: {group} must not be negative")
    return group


def model(config: Config, vocabulary: int) -> models.Transformer:
    """The model of a configuration, initialised from its seed. Raises UserError."""
    try:
        return models.build(
            shape(config),
            vocabulary,
            lambda model: encoding(config.encoding, model),
            seed=config.seed,
            feed_forward=config.model.feed_forward,
            dropout=config.model.dropout,
            attention=config.model.attention,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def corpus(config: Config) -> Corpus:
    """The tokenized corpus, from the cache or made now. Raises UserError."""
    try:
        source = hydra.utils.instantiate(config.corpus)
        tokenizer = hydra.utils.instantiate(config.tokenizer)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise cause if isinstance(cause, UserError) else UserError(_short(cause)) from error
    return corpora.prepare(source, tokenizer)


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
