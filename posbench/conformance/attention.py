"""Checks of one layer's attention under the encoding, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from posbench.conformance.subject import (
    Broken,
    Inputs,
    NotApplicable,
    Subject,
    attend,
    difference,
    require,
)
from posbench.encodings import Encoding, Span

EXACT = 1e-9  # float64
SINGLE = 2e-4  # float32
HALF = 0.05  # bfloat16 inputs: their own rounding, 2^-8, through two products and a softmax
SIZES = [(1, 1), (2, 2), (7, 7), (1, 7), (150, 150), (5, 40), (130, 140)]  # queries, keys
MOVED = 1000  # tokens that a window is shifted by


def _each_layer(
    subject: Subject, queries: int, keys: int, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[int, Encoding, Inputs, Span]]:
    encoding, inputs = subject.encoding(dtype), subject.inputs(queries, keys, dtype)
    for layer in subject.layers:
        yield layer, encoding, inputs, subject.span(encoding, layer, queries, keys)


def _sizes(subject: Subject) -> list[tuple[int, int]]:
    limit = subject.encoding().max_length
    return [size for size in SIZES if limit is None or size[1] <= limit]


def _gradients(out: Tensor, inputs: Inputs, encoding: Encoding) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    leaves = [*inputs, *encoding.parameters()]
    found = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
    pairs = zip(leaves, found, strict=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in pairs]


def _all(kernel: str, inputs: Inputs, encoding: Encoding, layer: int, span: Span) -> list[Tensor]:
    """A kernel's output, then its gradients."""
    out = attend(kernel, inputs, encoding, layer, span)
    return [out, *_gradients(out, inputs, encoding)]


def kernels_agree(subject: Subject) -> str:
    """Every kernel gives the reference's values and gradients, in float64 if it can."""
    worst: dict[str, float] = {}
    for queries, keys in _sizes(subject):
        for layer, encoding, inputs, span in _each_layer(subject, queries, keys):
            expected = _all("reference", inputs, encoding, layer, span)
            exact = subject.kernels(layer, encoding)
            for kernel in subject.kernels(layer, encoding, torch.float32)[1:]:
                given, tolerance = (inputs, encoding), EXACT
                if kernel not in exact:
                    single = torch.float32
                    given = subject.inputs(queries, keys, single), subject.encoding(single)
                    tolerance = SINGLE
                pairs = zip(_all(kernel, *given, layer, span), expected, strict=True)
                here = max(difference(actual, wanted) for actual, wanted in pairs)
                require(here, tolerance, f"{kernel}, {queries} queries over {keys} keys")
                worst[kernel] = max(worst.get(kernel, 0.0), here)
    return "; ".join(f"{kernel}: to {worst[kernel]:.0e}" for kernel in sorted(worst))


def single_precision(subject: Subject) -> str:
    """float32 gives float64's values up to rounding."""
    worst = 0.0
    for queries, keys in _sizes(subject):
        exact = list(_each_layer(subject, queries, keys))
        single = list(_each_layer(subject, queries, keys, torch.float32))
        for (layer, encoding, inputs, span), (_, rounded, inputs32, _) in zip(
            exact, single, strict=True
        ):
            expected = attend("reference", inputs, encoding, layer, span)
            for kernel in subject.kernels(layer, encoding, torch.float32):
                here = difference(attend(kernel, inputs32, rounded, layer, span), expected)
                require(here, SINGLE, f"{kernel}, {queries} queries over {keys} keys")
                worst = max(worst, here)
    return f"to {worst:.0e}"


@torch.no_grad()  # with gradients a CPU makes short windows float32
def half_precision(subject: Subject) -> str:
    """Under bfloat16 autocast positions and logits keep float32; inputs alone are rounded."""
    worst = 0.0
    kind = subject.device.type
    for queries, keys in [size for size in _sizes(subject) if size[1] < 100]:
        for layer, encoding, inputs, span in _each_layer(subject, queries, keys, torch.float32):
            rounded = inputs.to(torch.bfloat16)
            for kernel in subject.kernels(layer, encoding, torch.float32):
                expected = attend(kernel, inputs, encoding, layer, span)
                coarse = attend(kernel, rounded.to(torch.float32), encoding, layer, span)
                with torch.autocast(kind, torch.bfloat16):
                    untouched = attend(kernel, inputs, encoding, layer, span)
                    out = attend(kernel, rounded, encoding, layer, span)
                if not torch.equal(untouched, expected):
                    raise Broken(f"{kernel}: autocast changes a float32 result: rounded positions")
                here = difference(out, coarse)
                require(here, HALF, f"{kernel}, {queries} queries over {keys} keys")
                worst = max(worst, here)
    return f"to {worst:.0e}"


def blocks_do_not_show(subject: Subject) -> str:
    """Attention of a few queries at a time equals attention of all at once."""
    queries, keys = _sizes(subject)[-1]
    worst = 0.0
    for layer, encoding, inputs, span in _each_layer(subject, queries, keys):
        for kernel in subject.kernels(layer, encoding):
            whole = attend(kernel, inputs, encoding, layer, span)
            for first in range(0, queries, max(1, queries // 3)):
                last = min(first + max(1, queries // 3), queries)
                block = span.rows(first, last)
                seen = len(block.keys)
                q, k, v, x = inputs
                part = Inputs(q[:, :, first:last], k[:, :, :seen], v[:, :, :seen], x[:, :seen])
                out = attend(kernel, part, encoding, layer, block)
                here = difference(out, whole[:, :, first:last])
                require(here, EXACT, f"{kernel}, queries {first} to {last}")
                worst = max(worst, here)
    return f"to {worst:.0e}"


def window_is_kept(subject: Subject) -> str:
    """Keys outside the encoding's window have no influence, keys inside it do."""
    keys = min(subject.length, 150)
    windows = []
    for layer, encoding, inputs, span in _each_layer(subject, keys, keys):
        window = encoding.at(layer)[0].window
        if window is None or window >= keys:
            continue
        windows.append(window)
        q, k, v, x = inputs
        old = keys - window  # the first keys, which the last query must not see
        changed = Inputs(q, k.clone(), v.clone(), x)
        changed.k[:, :, :old] += 1
        changed.v[:, :, :old] += 1
        for kernel in subject.kernels(layer, encoding):
            before, after = (attend(kernel, i, encoding, layer, span) for i in (inputs, changed))
            require(difference(after[:, :, -1], before[:, :, -1]), EXACT, f"{kernel}, {window}")
            if difference(after[:, :, -2], before[:, :, -2]) == 0:
                raise Broken(f"{kernel}: the window is shorter than the {window} declared")
    if not windows:
        raise NotApplicable("no window")
    return ", ".join(str(window) for window in sorted(set(windows)))


def translation(subject: Subject) -> str:
    """Shifting a window changes nothing if translation_equivariant, and something if not."""
    encoding = subject.encoding()
    limit = encoding.max_length
    if limit == 1:
        raise NotApplicable("one position")
    size = 16 if limit is None else min(16, limit // 2)
    moved = MOVED if limit is None else min(MOVED, limit - size)
    inputs = subject.inputs(size, size)
    here = Span.window(size, device=subject.device)
    there = Span.window(size, device=subject.device, start=moved)
    x, worst = torch.zeros_like(inputs.x), 0.0
    for layer in subject.layers:
        part, number = encoding.at(layer)
        pairs = [(part.embed(x, there.queries), part.embed(x, here.queries))]
        for kernel in subject.kernels(layer, encoding):
            after, before = (attend(kernel, inputs, part, number, s) for s in (there, here))
            pairs.append((after, before))
        worst = max(worst, *(difference(*pair) for pair in pairs))
    if encoding.translation_equivariant:
        require(worst, EXACT, f"moved by {moved} (claimed: no change)")
        return f"claimed: moved by {moved:,}, the same to {worst:.0e}"
    if worst < EXACT:
        raise Broken("translation_equivariant = False, but nothing changes")
    return f"not claimed: moved by {moved:,}, it changes by {worst:.1g}"
