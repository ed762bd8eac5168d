"""Checkpoints: folders <run>/checkpoints/step-000123, whole or absent; nothing in them unpickles.

model.safetensors holds the weights, training.safetensors the optimizer's and the trainer's
tensors, state.json the step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posbench.errors import UserError
from posbench.files import replacing_folder

KEEP = 2  # the newest, and one before it


def save(
    run: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Tensor],
) -> Path:
    """Write a checkpoint after `step` optimizer steps; older ones beyond KEEP are removed."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    training = {f"extra.{key}": value.contiguous() for key, value in extra.items()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            training[f"optimizer.{names[parameter]}.{key}"] = value.contiguous()
    with replacing_folder(folder) as temporary:
        save_file(_contiguous(model.state_dict()), temporary / "model.safetensors")
        save_file(training, temporary / "training.safetensors")
        (temporary / "state.json").write_text(json.dumps({"step": step}))
    for old in _all(run)[:-KEEP]:
        shutil.rmtree(old)
    return folder


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    return next(reversed(_all(run)), None)


def load_model(folder: Path, model: nn.Module) -> None:
    """Weights into model. Raises UserError for a damaged checkpoint or one of another model."""
    weights = _read(folder, "model.safetensors")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(f"{folder}: not a checkpoint of this model: {first}") from error


def load_training(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Tensor]]:
    """Optimizer state into optimizer; the step and the extra tensors that save was given."""
    extra: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters())
    for name, value in _read(folder, "training.safetensors").items():
        kind, _, rest = name.partition(".")
        if kind == "extra":
            extra[rest] = value
            continue
        owner, _, key = rest.rpartition(".")
        parameter = parameters[owner]
        optimizer.state[parameter][key] = value.to(parameter.device)
    return step_of(folder), extra


def step_of(folder: Path) -> int:
    """How many optimizer steps went into a checkpoint."""
    try:
        return int(json.loads((folder / "state.json").read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, "state.json", error) from error


def _all(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))


def _contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    try:
        return load_file(folder / name)
    except (SafetensorError, OSError) as error:
        raise _damaged(folder, name, error) from error


def _damaged(folder: Path, name: str, error: Exception) -> UserError:
    return UserError(
        f"{folder / name}: damaged or missing ({str(error).splitlines()[0]}); "
        f"remove the folder {folder} to go on from the checkpoint before it, if any"
    )
