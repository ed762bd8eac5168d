"""The least RAM that a model, its training or a forward pass takes, and whether it is there."""

from __future__ import annotations

import torch
from torch import nn

from posbench.config import ModelConfig, TrainConfig
from posbench.machine.memory import require

NUMBER = 4  # bytes: float32
TRAINED = 4  # numbers for each parameter: itself, its gradient, AdamW's two moments
LAYER = 20_000  # bytes of a layer's Python objects, beside its numbers


def weights(model: ModelConfig, vocabulary: int) -> int:
    """Parameters outside the encoding: the tokens' vectors, matrices and norms."""
    width = model.width
    layer = width * (4 * width + 2 * model.feed_forward + 4)
    return vocabulary * width + model.layers * layer + 2 * width


def require_model(model: ModelConfig, vocabulary: int) -> None:
    """Raise NotEnough where the weights alone would not fit, before any of them is made."""
    needed = NUMBER * weights(model, vocabulary) + LAYER * model.layers
    require(f"model (width {model.width}, {model.layers} layers)", needed)


def require_training(
    model: nn.Module, sizes: ModelConfig, train: TrainConfig, device: torch.device, bytes_: int
) -> None:
    """Raise NotEnough where optimizer and activations, of `bytes_` bytes a number, do not fit.

    For each token and layer at least the inputs of two norms, three projections, the attention,
    its output and both sides of the feed-forward's GELU are kept for backward.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    there = parameters if device.type == "cpu" else 0  # made already
    tokens = train.batch * train.length
    kept = tokens * sizes.layers * (8 * sizes.width + 2 * sizes.feed_forward)
    needed = NUMBER * (TRAINED * parameters - there) + bytes_ * kept
    asked = f"train.batch={train.batch}, train.length={train.length}"
    require(f"training ({parameters:,} parameters, {asked})", needed, device)


def require_pass(
    what: str,
    tokens: int,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> None:
    """Raise NotEnough where one layer could not hand so many tokens to the next."""
    require(what, dtype.itemsize * tokens * model.width, device)
