"""The claims about the enhanced mask decoder: the property, and measurements on made-up runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from posbench.claims import decoder, texts
from posbench.claims.verdict import FAILS, HOLDS, NOT_MEASURED
from posbench.encodings import Encoding
from posbench.encodings.learned import Learned
from posbench.evaluation import results
from posbench.evaluation.windows import Window
from posbench.model import decoder as built
from tests.claims.test_measured import verdict, write_run

OBJECTIVE = {
    "_target_": "posbench.objectives.Masked",
    "share": 0.15,
    "decoder": "enhanced",
    "passes": 2,
    "query": "positions",
    "max_length": 128,
    "beyond": "refuse",
}
PROTOCOL = "masked fixed_targets 1/7"


def write(
    root: Path,
    positions: str | None,
    near: float,
    far: float | None,
    apart: float,
    query: str = "positions",
) -> None:
    """Three seeds; apart: how much harder one of the two documents is than the other, in nats."""
    objective = {**OBJECTIVE, "positions": positions or "learned", "query": query}
    if positions is None:
        objective["decoder"] = "plain"
    for seed in (1, 2, 3):
        folder = write_run(
            root,
            "deberta",
            {128: near, 2048: far},
            name=f"{'decoder' if query == 'positions' else query}-{positions}",
            seed=seed,
            protocol=PROTOCOL,
            objective=objective,
        )
        losses = math.log(near) + apart * np.repeat([-0.5, 0.5], 5)
        windows = [Window(document, 0, 128, 5) for document in (0, 1)]
        (row,) = (row for row in results.read(folder) if row.length == 128)
        results.save_losses(folder, row, windows, losses)


def test_it_is_needed_only_beyond_the_interval(tmp_path: Path) -> None:
    write(tmp_path, "learned", 90.0, None, 0.1)
    assert verdict(tmp_path, texts.DECODER_NEEDED).verdict == NOT_MEASURED
    write(tmp_path, None, 99.0, 99.0, 0.1)
    assert verdict(tmp_path, texts.DECODER_NEEDED).verdict == NOT_MEASURED, "another depth"
    write(tmp_path, "none", 95.0, 95.0, 0.1)
    found = verdict(tmp_path, texts.DECODER_NEEDED)
    assert found.verdict == HOLDS
    assert "decoder-learned 90.00 at 128" in found.figure
    assert "without positions 95.00" in found.figure
    assert "without decoder 99.00" in found.figure
    assert len(found.runs) == 9


def test_a_difference_that_documents_do_not_share_is_none(tmp_path: Path) -> None:
    write(tmp_path, "learned", 90.0, None, 0.1)
    write(tmp_path, "none", 95.0, 95.0, 0.9)
    assert verdict(tmp_path, texts.DECODER_NEEDED).verdict == FAILS


def test_of_several_decoders_the_one_that_predicts_best_decides(tmp_path: Path) -> None:
    write(tmp_path, "learned", 390.0, None, 0.1)
    write(tmp_path, "none", 210.0, 210.0, 0.1)
    assert verdict(tmp_path, texts.DECODER_NEEDED).verdict == FAILS
    write(tmp_path, "learned", 12.0, None, 0.1, query="both")
    write(tmp_path, "none", 13.0, 13.0, 0.1, query="both")
    found = verdict(tmp_path, texts.DECODER_NEEDED)
    assert found.verdict == HOLDS
    assert "both-learned 12.00 at 128" in found.figure
    assert "both-learned 12.00 at 128" in verdict(tmp_path, texts.DECODER_FAR).figure


def test_a_table_that_ends_does_not_extrapolate(tmp_path: Path) -> None:
    assert verdict(tmp_path, texts.DECODER_FAR).verdict == NOT_MEASURED
    write(tmp_path, "sinusoidal", 90.0, 91.0, 0.1)
    assert verdict(tmp_path, texts.DECODER_FAR).verdict == HOLDS
    write(tmp_path, None, 99.0, 99.0, 0.1)
    assert "without decoder" in verdict(tmp_path, texts.DECODER_FAR).figure
    write(tmp_path, "learned", 90.0, None, 0.1)
    found = verdict(tmp_path, texts.DECODER_FAR)
    assert found.verdict == FAILS
    assert "n/a at 2,048: no position past 128" in found.figure


def test_causal_claims_are_not_about_masked_models(tmp_path: Path) -> None:
    write(tmp_path, None, 99.0, 99.0, 0.1)
    assert verdict(tmp_path, texts.DEBERTA_NEEDS).verdict == NOT_MEASURED


class Blind(Learned):
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table.mean(0)


def test_a_decoder_without_its_table_does_not_re_inject(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(*args: object) -> Encoding:
        made = absolute(*args)  # type: ignore[arg-type]
        if isinstance(made, Learned):
            made.__class__ = Blind
        return made

    absolute = built._absolute
    monkeypatch.setattr(built, "_absolute", blind)
    assert not decoder.reinjects().holds
