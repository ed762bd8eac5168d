"""The table of `posbench speed`: tokens/s beside nope's, measured in turn with it."""

from __future__ import annotations

from functools import partial

import torch

from posbench.speed import record, work
from posbench.speed.measure import measure
from scripts.gpu import common, steps
from scripts.gpu.part import Case, Row, Settings

BASELINE = "nope"


def cases(settings: Settings) -> list[Case]:
    common.shrink(settings)
    return [
        Case(
            " ".join(map(str, one)),
            partial(measured, one, settings),
            extra=one[1:] not in steps.ORDER[:3],
        )
        for one in steps.wanted(settings)
    ]


def measured(one: steps.Wanted, settings: Settings) -> Row:
    """As `posbench speed` records it; not ok where something went wrong rather than short."""
    name, mode, length = one
    device, words = torch.device(settings.device), steps.words(settings)
    subject, baseline = (common.timed(each, settings, *words) for each in (name, BASELINE))
    cell = measure(subject, baseline, mode, length, device)
    torch.cuda.empty_cache()
    config = subject.at(mode, length)
    trained = work.dtype(config, "train", device)
    recorded: Row = record.record(config, [cell], device, trained)
    return {"ok": not any(side.defect for side in cell.sides), "cell": recorded["cells"][0]} | (
        {} if cell.encoding.reason is None else {"error": cell.encoding.reason}
    )
