"""Checks of an encoding alone: its settings and what its methods return."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from posbench.config import NOT_ARGUMENTS, targets
from posbench.conformance.subject import BATCH, Broken, NotApplicable, Subject, attend
from posbench.encodings import Encoding
from posbench.model import from_config
from posbench.training.optim import positional

HOOKS = {  # methods that take distances, and the shapes they return
    "distance_bias": ("H", "M"),
    "distance_keys": ("H", "M", "d"),
    "distance_queries": ("H", "M", "d"),
    "distance_values": ("H", "M", "d"),
}
BEYOND = 2048  # at most so many distances past a clip are compared
SAME = 1e-6  # tolerance, relative and absolute


def keys_are_the_constructors(subject: Subject) -> str:
    """The yaml's keys are the constructor's parameters, all of them."""
    return ", ".join(_keys(subject.config.encoding)) or "no parameters"


def _keys(settings: dict[str, Any]) -> list[str]:
    made = targets.find_class(dict(settings), "encoding")
    parameters = list(inspect.signature(made).parameters)[1:]
    keys = [key for key in settings if key not in ("_target_", *NOT_ARGUMENTS)]
    if missing := [name for name in parameters if name not in keys]:
        raise Broken(f"{made.__name__}: {', '.join(missing)} not in the yaml")
    if unknown := [key for key in keys if key not in parameters]:
        raise Broken(f"{made.__name__} has no parameter {', '.join(unknown)}")
    for value in settings.values():
        if isinstance(value, dict):
            for part in value.values():
                if isinstance(part, dict) and "_target_" in part:
                    _keys(part)
    return keys


def shapes_and_dtypes(subject: Subject) -> str:
    """Methods by distance return the documented shapes, at least float32; outputs are like v."""
    encoding = subject.encoding(torch.float32)
    sizes = {"H": subject.shape.heads, "M": 5, "d": subject.shape.head_width}
    first = -2 if subject.shape.two_sided else 0
    distance = torch.arange(first, first + 5, device=subject.device)
    for layer in subject.layers:
        part, number = encoding.at(layer)
        for name, expected in HOOKS.items():
            found = getattr(part, name)(distance, number)
            if found is None:
                continue
            wanted = tuple(sizes[size] for size in expected)
            if tuple(found.shape) != wanted:
                raise Broken(f"{name} returns {tuple(found.shape)}, not [{', '.join(expected)}]")
            if torch.finfo(found.dtype).bits < 32:
                raise Broken(f"{name} returns {found.dtype}: positions need float32 at least")
    _outputs(subject)
    return "float32, float64 and bfloat16"


def _outputs(subject: Subject) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        wide = torch.float32 if dtype is torch.bfloat16 else dtype
        encoding = subject.encoding(wide)
        inputs = subject.inputs(5, 7).to(dtype)
        x = torch.zeros(BATCH, 5, subject.shape.width, dtype=wide, device=subject.device)
        for layer in subject.layers:
            span = subject.span(encoding, layer, 5, 7)
            embedded = encoding.at(layer)[0].embed(x, span.queries)
            if embedded.shape != x.shape or embedded.dtype != wide:
                raise Broken(f"embed returns {embedded.dtype} {tuple(embedded.shape)}")
            for kernel in subject.kernels(layer, encoding, dtype):
                out = attend(kernel, inputs, encoding, layer, span)
                if out.shape != inputs.q.shape or out.dtype != dtype:
                    raise Broken(f"{kernel} of {dtype} gives {out.dtype} {tuple(out.shape)}")


def clip_is_kept(subject: Subject) -> str:
    """Beyond the declared clip, each method by distance returns what it returns at the clip."""
    encoding = subject.encoding()
    clips = set()
    for layer in subject.layers:
        part, number = encoding.at(layer)
        if part.clip is None:
            continue
        if type(part.clip) is not int or part.clip < 0:
            raise Broken(f"clip = {part.clip}: a distance is a whole number of at least 0")
        clips.add(part.clip)
        for sign in (1, -1) if subject.shape.two_sided else (1,):
            _check_clip(part, number, part.clip, sign, subject)
    if not clips:
        raise NotApplicable("no clip")
    return ", ".join(str(clip) for clip in sorted(clips))


def _check_clip(part: Encoding, number: int, clip: int, sign: int, subject: Subject) -> None:
    count = min(4 * clip + 9, clip + BEYOND, part.max_length or clip + BEYOND)
    distance = sign * torch.arange(count, device=subject.device)
    for name in HOOKS:
        found = getattr(part, name)(distance, number)
        if found is None or count <= clip:
            continue
        same = torch.isclose(found[:, clip:], found[:, clip, None], rtol=SAME, atol=SAME)
        changed = ~same.transpose(0, 1).flatten(1).all(1)
        if bool(changed.any()):
            first = clip + int(changed.nonzero()[0])
            raise Broken(f"clip = {clip}, but {name} changes at distance {sign * first}")


def same_seed_same_bits(subject: Subject) -> str:
    """A model built twice from one seed is the same; building leaves the global RNG alone."""
    before = torch.get_rng_state()
    first, second = subject.model().state_dict(), subject.model().state_dict()
    if not torch.equal(before, torch.get_rng_state()):
        raise Broken("building the model moves the global random state")
    for name, tensor in first.items():
        if not torch.equal(tensor, second[name]):
            raise Broken(f"{name} differs")
    return f"{len(first)} tensors"


def shared_weights_are_nopes(subject: Subject) -> str:
    """Weights outside `encoding.` do not depend on the encoding."""
    model = subject.model()
    mine = model.state_dict()
    theirs = subject.model(encoding={"_target_": "posbench.encodings.nope.NoPE"}).state_dict()
    for name, tensor in theirs.items():
        expected = tensor
        if name.endswith(".query.weight"):
            layer = int(name.split(".")[1])
            expected = tensor * model.encoding.at(layer)[0].query_gain
        if not torch.equal(mine[name], expected):
            raise Broken(f"{name} differs from NoPE's")
    gains = {model.encoding.at(layer)[0].query_gain for layer in subject.layers}
    return "equal" if gains == {1.0} else "equal, but for the declared query_gain"


def optimizer_group(subject: Subject) -> str:
    """The yaml's `optim` group can be read."""
    groups = positional(subject.config)
    said = [
        f"{prefix.removesuffix('.')} lr x{group.lr_multiplier:g}"
        for prefix, group in groups.items()
        if group.lr_multiplier != 1
    ]
    return ", ".join(said) or "common learning rate"


def only_parameters(subject: Subject) -> str:
    """The encoding has no buffers: a stored table would be too short for longer windows."""
    encoding = from_config.encoding(subject.config.encoding, subject.shape)
    buffers = [name for name, _ in encoding.named_buffers()]
    if buffers:
        raise Broken(f"buffers {', '.join(buffers)} are stored with the weights: compute them")
    return f"{sum(p.numel() for p in encoding.parameters()):,} parameters"
