"""Checks of a whole model with the encoding in it. "Memory" is a model's segment memory."""

from __future__ import annotations

import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.conformance.subject import (
    VOCABULARY,
    Broken,
    NotApplicable,
    Subject,
    difference,
    require,
)
from posbench.model.transformer import Transformer

LONGER = 16  # times the training length


def _states(model: Transformer, tokens: Tensor) -> Tensor:
    """Final hidden states, in evaluation mode; tokens [B, T] -> [B, T, D]."""
    with torch.no_grad():
        return model.eval()(tokens)[0]


def _lively(subject: Subject) -> Transformer:
    """A model whose positional parameters are far from their initial values."""
    model = subject.model()
    model.encoding.load_state_dict(subject.encoding(torch.float32).state_dict())
    return model


def causality(subject: Subject) -> str:
    """Changing the token at t changes no output before t, not even in the last bit; in a two-sided
    model it changes them.

    Both windows are computed here, so their matrix products have the same shapes.
    """
    model = _lively(subject)
    length = min(300, model.max_length or 300)
    tokens = subject.tokens(length)
    chosen = model.kernels
    for kernels in (chosen, ["reference"] * len(chosen)):
        kernel, model.kernels = ", ".join(sorted(set(kernels))), kernels
        before = _states(model, tokens)
        for t in {1, length // 2, length - 1}:
            changed = tokens.clone()
            changed[:, t] = (changed[:, t] + 1) % VOCABULARY
            after = _states(model, changed)
            if subject.shape.two_sided:
                if t and torch.equal(after[:, t - 1], before[:, t - 1]):
                    raise Broken(f"{kernel}: another token at {t} changes nothing at {t - 1}")
                continue
            if not torch.equal(after[:, :t], before[:, :t]):
                first = int((after != before).any(-1).any(0).nonzero()[0])
                raise Broken(f"{kernel}: another token at {t} changes the output at {first}")
            if torch.equal(after[:, t], before[:, t]):
                raise Broken(f"{kernel}: another token at {t} changes nothing there")
    return f"{length} tokens{', both sides seen' if subject.shape.two_sided else ''}"


def gradients(subject: Subject) -> str:
    """Every parameter has a gradient that is finite and not zero everywhere."""
    model = _lively(subject).train()  # a factor that starts at zero would hide the others
    tokens = subject.tokens(subject.length + 1)
    states, _ = model(tokens[:, :-1])
    F.cross_entropy(model.logits(states).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    count = 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None or not bool(gradient.isfinite().all()):
            raise Broken(f"{name}: {'no' if gradient is None else 'an infinite'} gradient")
        if not bool(gradient.any()):
            raise Broken(f"{name}: the gradient is zero")
        count += name.startswith("encoding.")
    return f"{count} positional tensors"


def short_then_long(subject: Subject) -> str:
    """A window of 16 training lengths runs or is refused, and no window influences the next."""
    length = LONGER * subject.length
    limit = subject.model().max_length
    short = subject.tokens(min(subject.length, 100))
    long = subject.tokens(length)[:1]
    model, fresh = _lively(subject), _states(_lively(subject), short)
    _states(model, short)
    try:
        expected = _states(_lively(subject), long)
    except ValueError as error:
        if limit is None or limit >= length:
            raise Broken(f"{length:,} tokens: {error}, but max_length is {limit}") from error
        return f"refuses {length:,}: the longest is {limit}"
    if limit is not None and limit < length:
        raise Broken(f"max_length is {limit}, but {length:,} tokens are not refused")
    if not bool(expected.isfinite().all()):
        raise Broken(f"{length:,} tokens: the output is not finite")
    if not torch.equal(_states(model, long), expected):
        raise Broken(f"a short window changes the next, of {length:,}: something was kept")
    if not torch.equal(_states(model, short), fresh):
        raise Broken(f"a window of {length:,} changes the next, short one: something was kept")
    return f"{length:,} tokens"


def round_trip(subject: Subject) -> str:
    """Saved weights, loaded into a model from another seed, give the same outputs."""
    first, second = _lively(subject), subject.model(seed=2)
    saved = {name: tensor.contiguous() for name, tensor in first.state_dict().items()}
    second.load_state_dict(safetensors.torch.load(safetensors.torch.save(saved)))
    tokens = subject.tokens(min(subject.length, 50))
    if not torch.equal(_states(first, tokens), _states(second, tokens)):
        raise Broken("the outputs differ: something that matters is not a parameter")
    return "safetensors"


def memory(subject: Subject) -> str:
    """Two segments, the second with the first as memory, equal one window."""
    model = _lively(subject).double().eval()
    kept = {model.encoding.at(layer)[0].memory_length for layer in subject.layers}
    if kept == {0}:
        raise NotApplicable("keeps none")
    if 0 in kept:
        raise NotApplicable("some layers keep none")
    size = min(*kept, 24) if len(kept) > 1 else min(kept.pop(), 24)
    tokens = subject.tokens(2 * size)
    whole = _states(model, tokens)
    with torch.no_grad():
        first, past = model(tokens[:, :size])
        second, _ = model(tokens[:, size:], past)
    require(difference(torch.cat((first, second), 1), whole), 1e-9, f"two segments of {size}")
    return f"two segments of {size}"
