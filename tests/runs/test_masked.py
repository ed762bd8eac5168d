"""Runs of masked language models: trained, resumed, scored, reported, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posbench import cli
from posbench.training.trainer import Trainer
from tests.helpers.toy import train

MASKED = (
    "objective=masked tokenizer=bpe tokenizer.vocabulary=300 objective.share=0.3 "
    "model.dropout=0.1 tracking.every=1 eval.protocols=[fixed_targets,nonoverlapping] "
    "eval.tokens=64"
)


def rows(root: Path, name: str, kind: str) -> list[dict[str, Any]]:
    (path,) = root.glob(f"outputs/default/{name}/seed1/{kind}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(root: Path, name: str) -> list[Any]:
    told = [row["loss"] for row in rows(root, name, "metrics")]
    return [*told, *(row["nll"] for row in rows(root, name, "results"))]


@pytest.mark.parametrize("encoding", ["t5", "randomized_rope"])
def test_a_run_that_resumes_equals_one_that_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    words = f"{MASKED} encoding={encoding}"
    assert train(tmp_path, words, "run.name=whole") == 0
    advance = Trainer.advance

    def stopping(trainer: Trainer) -> None:
        if trainer.step == 3:
            raise KeyboardInterrupt
        advance(trainer)

    monkeypatch.setattr(Trainer, "advance", stopping)
    assert train(tmp_path, words, "run.name=stopped") == 130
    monkeypatch.setattr(Trainer, "advance", advance)
    assert train(tmp_path, words, "run.name=stopped") == 0
    assert losses(tmp_path, "stopped") == losses(tmp_path, "whole")


def test_eval_scores_it_again_and_report_keeps_it_apart_from_causal_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, MASKED, "run.name=masked objective.decoder=enhanced") == 0
    assert "masked perplexity by length, fixed_targets 1/7" in " ".join(
        capsys.readouterr().out.split()
    )
    causal = "tokenizer=bpe tokenizer.vocabulary=300 model.dropout=0.1"
    assert train(tmp_path, causal, "run.name=causal") == 0
    folder = tmp_path / "outputs/default/masked/seed1"
    before = [row["nll"] for row in rows(tmp_path, "masked", "results")]
    assert cli.run(["eval", str(folder), "eval.protocols=[fixed_targets,nonoverlapping]"]) == 0
    after = [row["nll"] for row in rows(tmp_path, "masked", "results")][len(before) :]
    assert [nll is None for nll in after] == [False, True, False, True]
    assert after[::2] == pytest.approx(before[::2], rel=1e-5)
    capsys.readouterr()
    assert cli.run(["report", str(tmp_path / "outputs"), f"folder={tmp_path / 'made'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "masked, share 0.3" in said
    assert "enhanced decoder" in said
    assert "is in another table" in said
    (row,) = [row for row in rows(tmp_path, "masked", "results") if row["length"] == 32][:1]
    assert row["reason"] == "no position past 16", "the decoder's table"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("encoding=fox", "FoX is defined for the past alone"),
        ("encoding=transformer_xl", "encoding.memory_length=16"),
        ("eval.protocols=[sliding]", "a masked one has fixed_targets, nonoverlapping"),
        ("eval.probes=[copy] eval.probe_distances=[10]", "eval.probes=['copy']"),
        ("objective.share=0", "objective.share=0.0 must lie between 0 and 1"),
        ("objective.share=-1", "objective.share=-1.0"),
        ("objective.sharp=1", "objective.sharp"),
        ("objective.decoder=big", "choose plain, enhanced"),
        ("eval.folds=1", "eval.folds=1 must lie in 2 .. 1000"),
    ],
)
def test_what_a_masked_model_cannot_have_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert train(tmp_path, MASKED, words) == 1
    told = capfd.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert said in told[0]
    assert not (tmp_path / "outputs").exists()


def test_single_bytes_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "objective=masked") == 1
    assert "a single byte is read off its neighbours" in capfd.readouterr().err
