"""AdamW with its parameter groups, and the learning-rate schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from posbench.config import Config, OptimConfig, ParameterGroup, known_keys, plain, targets
from posbench.errors import UserError, one_line
from posbench.model.transformer import Transformer


def optimizer(
    model: Transformer, config: OptimConfig, positional: Mapping[str, ParameterGroup]
) -> torch.optim.AdamW:
    """AdamW over matrices, norms with token embeddings, and positional groups by name prefix."""
    rules = {
        "matrix": ParameterGroup(weight_decay=config.weight_decay),
        "plain": ParameterGroup(),
        **positional,
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in rules}
    for name, parameter in model.named_parameters():
        if name.startswith("encoding."):
            group = max((p for p in positional if name.startswith(p)), key=len)
        else:
            plain = parameter.dim() < 2 or name.startswith(("tokens.", "decoder."))
            group = "plain" if plain else "matrix"
        members[group].append(parameter)
    groups = [
        {"params": parameters, **dataclasses.asdict(rules[name])}
        for name, parameters in members.items()
        if parameters
    ]
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=(config.betas[0], config.betas[1]), fused=True
    )


def schedule(step: int, steps: int, config: OptimConfig) -> float:
    """The learning rate of step 0 .. steps - 1: linear warm-up, then cosine to lr * final_lr."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, steps - 1 - config.warmup)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.final_lr + (1 - config.final_lr) * cosine)


def positional(config: Config) -> dict[str, ParameterGroup]:
    """The optimizer groups of positional parameters, by the prefix of the parameters' names.

    Declared under `optim` in the encoding's yaml, and in that of each part of a mix. Raises
    UserError.
    """
    return dict(_positional(config.encoding, "encoding"))


def _positional(settings: dict[str, Any], path: str) -> Iterator[tuple[str, ParameterGroup]]:
    try:
        group = plain(settings.get("optim") or {}, ParameterGroup)
    except (OmegaConfBaseException, TypeError) as error:
        known = ", ".join(known_keys(ParameterGroup))
        raise UserError(f"{path}.optim.{one_line(error)} ({known})") from error
    if group.lr_multiplier < 0 or group.weight_decay < 0:
        raise UserError(f"{path}.optim: {group} must not be negative")
    yield f"{path}.", group
    for key, value in settings.items():
        if targets.are_targets(value):
            for name, part in value.items():
                if "optim" in part:  # else its parameters are in the group around it
                    yield from _positional(part, f"{path}.{key}.{name}")
