"""What moves which parameters, and how fast: AdamW in groups, and its schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import nn

from posbench.config import OptimConfig, ParameterGroup
from posbench.model import Transformer


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
            plain = parameter.dim() < 2 or name.startswith("tokens.")
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
