"""Kernels on the device = the definition in float64: every shipped encoding, values and gradients.

Rounds of cases, the most informative first: each encoding once in float32 at a length that is no
multiple of a block, in bfloat16 under autocast, evaluated at many lengths; then memory, blocks of
queries and other lengths for one encoding of each kind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from posbench.attention import choose, flex_tables
from posbench.attention.cells import CELLS, fills, served
from posbench.attention.flex import refused
from posbench.conformance.subject import Inputs, Subject, attend
from posbench.encodings import Encoding, Span
from scripts.gpu import common
from scripts.gpu.part import Case, Row, Settings
from tests.helpers.cases import with_gradients

MODEL = "model.width=64 model.heads=2 model.layers=6 train.length=512".split()
LENGTHS = (1, 127, 128, 129, 200, 512)
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.03}
"""Of a difference's norm, beside the expected norm or 1 where that is smaller."""
OF_SUMS = {torch.float32: 2e-4, torch.bfloat16: 0.2}
"""Of parameters' gradients: sums over all pairs, most of which cancel."""
OF_ALL = ("out", "q", "k", "v", "x")
LENIENCE = 2.0  # times what the definition itself loses in that dtype is allowed, where more
ENTERING = [cell for cell in CELLS if cell not in ("embed", "rotate")]
"""What enters the kernel, and so what is compiled."""

Round = tuple[str, Callable[["Checked"], Row], list[str], bool]


def cases(settings: Settings) -> list[Case]:
    common.allow_gradients(settings)
    first = common.FIRST[:3] if settings.rehearse else common.FIRST
    names = list(dict.fromkeys([*first, *([] if settings.rehearse else common.ENCODINGS)]))
    subjects = {name: Checked(name, settings) for name in names}
    return [
        Case(f"{name} {what}", partial(run, subjects[name]), subjects[name].kind, extra)
        for what, run, of, extra in rounds(names, first)
        for name in of
    ]


def rounds(names: list[str], first: list[str]) -> list[Round]:
    """What is done with which encodings; True: if there is time."""
    one, half = torch.float32, torch.bfloat16
    others = [(512, half), (1, one), (127, half), (128, one), (512, one)]
    return [
        ("129 float32", lambda e: e.train(129, 129, one), names, False),
        ("200 bfloat16", lambda e: e.train(200, 200, half), names, False),
        ("evaluated", Checked.evaluate, names, False),
        ("memory", lambda e: e.train(129, 300, one, True), first, False),
        ("blocks", Checked.in_blocks, first, True),
        *[
            (
                f"{n} {str(dtype)[6:]}",
                partial(Checked.train, queries=n, keys=n, dtype=dtype),
                first,
                True,
            )
            for n, dtype in others
        ],
    ]


class Checked:
    """One encoding, in every kernel that serves it on the device, beside the definition."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.device = torch.device(settings.device)
        self.subject = Subject(common.composed(f"encoding={name}", *MODEL), self.device)
        encoding = Subject(self.subject.config, torch.device("cpu")).encoding()
        self.layers = [each.layers[-1] for each in served(encoding)]
        cells = [cell for cell in ENTERING if fills(encoding, cell)]
        learned = any(p.requires_grad for p in encoding.parameters())
        self.kind = " ".join([*cells, "learned" if cells and learned else "fixed"])

    def kernels(self, part: Encoding) -> list[str]:
        """Flex where it can be, and what `auto` takes."""
        served = ["flex"] if refused(part) is None else []
        return list(dict.fromkeys([*served, choose(part, "auto", self.device)]))

    def train(self, queries: int, keys: int, dtype: torch.dtype, hidden: bool = False) -> Row:
        """Values and gradients; hidden: one of two rows must not see its memory."""
        found: Row = {}
        for layer, part, span in self._spans(queries, keys):
            if hidden:
                seen = torch.zeros(2, keys, dtype=torch.bool, device=self.device)
                seen[1, : keys - queries] = True
                span = dataclasses.replace(span, hidden=seen)
            for kernel in self.kernels(part):
                found[f"{kernel} layer {layer}"] = self._compare(kernel, layer, span, dtype, True)
        return _judged(found)

    def evaluate(self) -> Row:
        """Values alone, at many lengths, as they come in evaluation."""
        found: Row = {}
        for length in LENGTHS:
            for layer, part, span in self._spans(length, length):
                for kernel in self.kernels(part):
                    name = f"{kernel} layer {layer} at {length}"
                    found[name] = self._compare(kernel, layer, span, torch.float32, False)
        return _judged(found)

    def in_blocks(self) -> Row:
        """Written out for 128 queries at a time, as for long windows."""
        largest, flex_tables.LARGEST = flex_tables.LARGEST, 1
        try:
            return self.train(300, 300, torch.float32)
        finally:
            flex_tables.LARGEST = largest

    def _spans(self, queries: int, keys: int) -> Iterator[tuple[int, Encoding, Span]]:
        encoding = self.subject.encoding()
        for layer in self.layers:
            span = self.subject.span(encoding, layer, queries, keys)
            yield layer, encoding.at(layer)[0], span

    def _compare(
        self, kernel: str, layer: int, span: Span, dtype: torch.dtype, gradients: bool
    ) -> Row:
        exact = torch.promote_types(dtype, torch.float32)
        *qkv, x = self.subject.inputs(len(span.queries), len(span.keys))
        rounded = [*(each.detach().to(dtype) for each in qkv), x.detach().to(exact)]

        def run(name: str, low: torch.dtype, high: torch.dtype) -> list[Tensor]:
            encoding = self.subject.encoding(high)
            dtypes = (low, low, low, high)
            leaves = (x.to(t).requires_grad_() for x, t in zip(rounded, dtypes, strict=True))
            inputs = Inputs._make(leaves)
            half = torch.autocast(self.device.type, torch.bfloat16, enabled=low != high)
            with half, torch.set_grad_enabled(gradients):
                out = attend(name, inputs, encoding, layer, span)
            return with_gradients(out, encoding, inputs) if gradients else [out]

        expected = run("reference", torch.float64, torch.float64)
        found = run(kernel, dtype, exact)
        names = [*OF_ALL, *dict(self.subject.encoding().named_parameters())]
        floors = _differences(run("reference", dtype, exact), expected)
        offs = _differences(found, expected)
        each = {n: (off, floor) for n, off, floor in zip(names, offs, floors, strict=False)}
        pairs = zip(found, expected, strict=True)
        largest = max((a - e).abs().max().item() for a, e in pairs)
        return _compared(each, dtype) | {"absolute": largest}


def _compared(each: dict[str, tuple[float, float]], dtype: torch.dtype) -> Row:
    """From how far a kernel, and the definition in that dtype, are off in each tensor."""

    def allowed(name: str) -> float:
        own = TOLERANCE[dtype] if name in OF_ALL else OF_SUMS[dtype]
        floor = each[name][1]
        return max(own, LENIENCE * floor) if math.isfinite(floor) else own

    worst = max(each, key=lambda name: each[name][0] / allowed(name))
    return {
        "ok": each[worst][0] <= allowed(worst),
        "relative": each[worst][0],
        "worst": worst,
        "allowed": allowed(worst),
        "each": {name: off for name, (off, _) in each.items()},
        "definition": {name: floor for name, (_, floor) in each.items()},
    }


def _differences(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Norms, beside the expected one's or 1; infinite where something is no number."""
    each = []
    for a, e in zip(found, expected, strict=True):
        off = ((a.double() - e).norm() / e.norm().clamp(min=1)).item()
        each.append(off if off == off else float("inf"))
    return each


def _judged(found: Row) -> Row:
    """One row of all comparisons; the error names the worst."""
    bad = [name for name, each in found.items() if not each["ok"]]
    row: Row = {"ok": not bad, "compared": found}
    if found:
        row["relative"] = max(each["relative"] for each in found.values())
    if bad:
        name = max(bad, key=lambda name: found[name]["relative"])
        each = found[name]
        row["error"] = (
            f"{name}: {each['worst']} is off by {each['relative']:.1e}, "
            f"allowed {each['allowed']:.0e}"
        )
    return row
