"""Checkpoints: folders <run>/checkpoints/step-000123, written atomically, without pickles.

model.safetensors holds the weights, training.safetensors the optimizer's and the trainer's
tensors, state.json the step and the sha256 of both.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posbench.errors import UserError
from posbench.machine.files import remove_folder, replacing_folder

KEEP = 2  # the newest, and one before it
FILES = ("model.safetensors", "training.safetensors")


class Damaged(UserError):
    """A checkpoint that is not what was written."""


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
        _write(_contiguous(model.state_dict()), temporary / "model.safetensors")
        _write(training, temporary / "training.safetensors")
        digests = {name: _digest(temporary / name) for name in FILES}
        state = {"step": step, "sha256": digests}
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    prune(run)
    return folder


def prune(run: Path) -> None:
    """Remove the checkpoints beyond KEEP."""
    for old in _all(run)[:-KEEP]:
        remove_folder(old)


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    return next(newest_first(run), None)


def newest_first(run: Path) -> Iterator[Path]:
    """The checkpoints of a run folder."""
    return reversed(_all(run))


def load_model(folder: Path, model: nn.Module) -> None:
    """Load weights into model. Raises Damaged, and UserError for a checkpoint of another model."""
    weights = _read(folder, "model.safetensors")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise UserError(f"{folder}: not a checkpoint of this model: {first}") from error


def load_training(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Tensor]]:
    """Optimizer state into optimizer; the step and the extra tensors that save was given.

    Raises Damaged.
    """
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
    """How many optimizer steps went into a checkpoint. Raises Damaged."""
    try:
        return int(_state(folder)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, "state.json", error) from error


def _all(run: Path) -> list[Path]:
    found = {
        path: path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*")
    }
    return sorted((p for p, n in found.items() if n.isdecimal()), key=lambda p: int(found[p]))


def _contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors. Raises OSError."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        number = int(code[1]) if code is not None else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    try:
        digest = _state(folder).get("sha256", {}).get(name)  # a version before had none
        if digest is not None and digest != _digest(folder / name):
            raise Damaged(f"{folder / name}: damaged (not what was written)")
        return load_file(folder / name)
    except (SafetensorError, OSError) as error:
        raise _damaged(folder, name, error) from error


def _state(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(folder, "state.json", error) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(folder: Path, name: str, error: Exception) -> Damaged:
    return Damaged(f"{folder / name}: damaged or missing ({str(error).splitlines()[0]})")
