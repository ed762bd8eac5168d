"""The comparison with other libraries: every pair is built and checked, and ratios are right."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

from posbench.encodings import Shape
from scripts import compare_peers, peers
from scripts.compare_peers import Case, Timed
from scripts.peer_table import Row, markdown
from scripts.peers import Party, Wanted

WANTED = Wanted(Shape(width=16, heads=2, layers=2), vocabulary=40, length=16)
SHAPE = "--width 16 --layers 2 --heads 2 --vocabulary 40"
TINY = f"{SHAPE} --train-tokens 32 --eval-tokens 32 --lengths 16 --rounds 1 --threads 1".split()


def party(name: str = "fake", **parts: Any) -> Party:
    return dataclasses.replace(peers.posbench("nope", WANTED), name=name, **parts)


def timed(name: str, seconds: list[float]) -> Timed:
    return Timed(party(name, setting=name), lambda: None, seconds)


def row(ratio: float) -> Row:
    return Row("eval", 16, "nope", "fake", "x", (1, 2), (3.0, 4.0), ratio, ratio, ratio)


@pytest.mark.slow
def test_every_pair_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "rows.json"), "--markdown", str(tmp_path / "table.md")]
    compare_peers.main([*TINY, *files])
    made = json.loads((tmp_path / "rows.json").read_text())
    pairs = [(row["mode"], row["encoding"], row["peer"]) for row in made["rows"]]
    x_transformers = "nope sinusoidal learned rope xpos alibi t5 cope fox".split()
    others = {"alibi": "BLOOM", "t5": "T5 decoder", "rope": "GPT-NeoX", "deberta": "DeBERTa-v2"}
    expected = {(e, "x-transformers") for e in x_transformers} | set(others.items())
    assert sorted(pairs) == sorted((m, *pair) for m in ("train", "eval") for pair in expected)
    assert all(row["ratio"] > 0 for row in made["rows"])
    written, shown = (tmp_path / "table.md").read_text(), capsys.readouterr().out
    assert made["environment"]["command"] in written
    for text in (written, shown):
        for _, encoding, peer in pairs:
            assert any(encoding in line and peer in line for line in text.splitlines())


@pytest.mark.parametrize("encoding", peers.PEERS)
def test_the_same_size(encoding: str) -> None:
    """Up to biases and norms: a D x D matrix more or less would show."""
    ours = peers.posbench(encoding, WANTED).parameters
    for make in peers.PEERS[encoding]:
        for each in compare_peers.settings(make, WANTED, encoding)[0]:
            assert abs(each.parameters - ours) < 2 * WANTED.shape.width**2, each.name


def test_only_what_cannot_be_fused_is_refused() -> None:
    refused = [
        line.partition(":")[0]
        for encoding, makers in peers.PEERS.items()
        for make in makers
        for line in compare_peers.settings(make, WANTED, encoding)[1]
    ]
    expected = ["x-transformers, t5", "x-transformers, cope", "BLOOM, alibi"]
    assert sorted(refused) == sorted([*expected, "DeBERTa-v2, deberta"])


def test_the_ratio_is_of_one_rounds_times() -> None:
    slow = timed("slow", [9.0, 9.0, 9.0])
    peer = timed("fast", [4.0, 2.0, 9.0])
    case = Case("eval", 16, "nope", 100, timed("posbench", [2.0, 4.0, 5.0]), [[slow, peer]])
    made = compare_peers.compare(case, case.peers[0])
    assert (made.peer, made.setting) == ("fast", "fast")
    assert made.tokens_per_second == (100 / 4.0, 100 / 4.0)
    assert (made.low, made.ratio, made.high) == (0.5, 1.8, 2.0)
    assert not made.slower


def test_slower_stands_out() -> None:
    lines = markdown([row(0.5), row(2.0)], {"command": "x"}, []).splitlines()
    assert [("**0.50 slower**" in line, "2.00" in line) for line in lines[4:6]] == [
        (True, False),
        (False, True),
    ]


class Leaky(nn.Module):
    """States that know the whole window."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens[..., None].float().expand(-1, -1, WANTED.shape.width)
        return x + x.mean(1, keepdim=True)


def test_a_peer_that_sees_the_future_is_an_error() -> None:
    with pytest.raises(ValueError, match="fake is not causal"):
        peers.check(party(states=Leaky()), WANTED)


def test_a_peer_of_another_depth_is_an_error() -> None:
    with pytest.raises(ValueError, match="fake has 3 layers of width 16"):
        peers.check(party(depth=3), WANTED)


def test_a_training_step_moves_the_weights() -> None:
    tokens = torch.randint(WANTED.vocabulary, (2, 17))
    for make in peers.PEERS["t5"]:
        trained = make(WANTED, False)
        before = [parameter.clone() for parameter in trained.module.parameters()]
        compare_peers.training(trained, tokens[:, :-1], tokens[:, 1:])()
        pairs = zip(before, trained.module.parameters(), strict=True)
        assert not any(torch.equal(old, new) for old, new in pairs), trained.name


def test_nothing_to_do_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare_peers.main(["--modes", "train", "--lengths", "4096"])
    assert "lengths over 512 are not trained" in capsys.readouterr().err
