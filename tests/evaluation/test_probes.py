"""What a recall is: a planted token, named more often than by chance only if it was looked up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from posbench.encodings.alibi import ALiBi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.errors import UserError
from posbench.evaluation import probes
from posbench.evaluation import results as kept
from posbench.evaluation.probes import CANDIDATES, LEAD, POOL, PROBES, check, plant, probe
from posbench.evaluation.results import ProbeResult
from posbench.model.transformer import Transformer, build

CPU = torch.device("cpu")
V = 300
NAMES = ["passkey", "copy"]
DISTANCES = [16, 40, 90]


def documents(*sizes: int, seed: int = 0) -> list[np.ndarray]:
    """BOS (299), then text that is mostly of few tokens."""
    generator = np.random.default_rng(seed)
    texts = [(V - 1) * generator.random(size) ** 4 for size in sizes]
    return [np.concatenate(([V - 1], text.astype(int))).astype(np.uint16) for text in texts]


TEXTS = documents(400, 110, 60, 700)


class Toy:
    """A model whose states are already its logits after each window; `expect` makes them."""

    encoding = SimpleNamespace(max_length=None)

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.prior = 5 * torch.randn(V, generator=self.generator)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        last = torch.stack([self.expect(window) for window in tokens])
        return F.pad(last[:, None], (0, 0, tokens.shape[1] - 1, 0)), []

    def expect(self, window: Tensor) -> Tensor:
        """[T] -> [V]"""
        return self.prior

    def logits(self, states: Tensor) -> Tensor:
        return states

    def eval(self) -> None:
        pass

    def modules(self) -> list[Any]:
        return []


class Near(Toy):
    """Sees the last `sight` tokens: a logit of its own after each such end."""

    sight = 12

    def expect(self, window: Tensor) -> Tensor:
        table = torch.Generator().manual_seed(hash(tuple(window[-self.sight :].tolist())) % 2**60)
        return torch.randn(V, generator=table)


class Uniform(Toy):
    def expect(self, window: Tensor) -> Tensor:
        return torch.zeros(V)


class LooksUp(Toy):
    """Finds where the last two tokens stood before, and expects what followed there."""

    def expect(self, window: Tensor) -> Tensor:
        pairs = window.unfold(0, 2, 1)
        found = (pairs[:-2] == window[-2:]).all(1).nonzero().flatten() + 2
        return self.weight * F.one_hot(window[found], V).sum(0) + self.prior

    weight = 1e4


class Hints(LooksUp):
    """The same, drowned by what it expects anyway."""

    weight = 1e-3


def run(
    model: Any, texts: list[np.ndarray] = TEXTS, names: list[str] = NAMES, trials: int = 32
) -> list[ProbeResult]:
    return list(probe(model, texts, V, names, DISTANCES, trials, 512, CPU))


def tiny(encoding: type[Encoding] = NoPE, **arguments: int) -> Transformer:
    shape = Shape(width=16, heads=2, layers=2)
    return build(shape, V, lambda s: encoding(s, **arguments), seed=0, feed_forward=32)


@pytest.mark.parametrize("model", [Toy(), Uniform(), Near()], ids=lambda m: type(m).__name__)
def test_a_model_that_does_not_see_the_plant_recalls_by_chance(model: Toy) -> None:
    for result in run(model, trials=600):
        for hits in (result.hits, result.lifts):
            assert hits is not None
            assert stats.binomtest(hits, result.trials, 1 / CANDIDATES).pvalue > 0.001


@pytest.mark.parametrize("name", NAMES)
def test_what_a_model_without_the_plant_expects_does_not_depend_on_the_answer(name: str) -> None:
    """Chance is exact: over all answers a trial could have, such a model names one once."""
    for trial in plant(name, TEXTS, V, 90, 8):
        seen, named = set(), 0
        for answer in range(CANDIDATES):
            planted, plain = dataclasses.replace(trial, answer=answer).windows(16)
            where = LEAD + len(trial.passage)
            assert planted[where] == trial.candidates[answer]
            planted[where] = plain[where]
            seen.add(planted.tobytes())
            logits = Near().expect(torch.from_numpy(planted))[trial.candidates]
            named += int(logits.argmax()) == answer
        assert (len(seen), named) == (1, 1)


def test_answers_are_drawn_evenly() -> None:
    answers = [trial.answer for trial in plant("copy", TEXTS, V, 90, 3000)]
    assert stats.chisquare(np.bincount(answers, minlength=CANDIDATES)).pvalue > 0.001


def test_a_model_that_looks_it_up_recalls_everything() -> None:
    for result in run(LooksUp()):
        assert result.recall == 1
        assert result.hits == result.lifts == result.trials == 32
        assert (result.candidates, result.documents) == (CANDIDATES, 2)  # 60 tokens are too few


def test_lifts_see_a_recall_that_expectations_drown() -> None:
    for result in run(Hints()):
        assert result.lifts == result.trials
        assert result.recall is not None
        assert result.recall < 0.4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_what_is_planted_stands_where_it_should(name: str, distance: int) -> None:
    size = PROBES[name].size
    for trial in plant(name, TEXTS, V, 90, 20):
        planted, plain = trial.windows(distance)
        answer = trial.candidates[trial.answer]
        assert len(planted) == len(plain) == LEAD + size + distance
        assert len(planted) - distance == LEAD + size == (planted == answer).nonzero()[0].item()
        assert set(trial.candidates) & set(planted) == {answer}
        assert not set(trial.candidates) & set(plain)
        assert len(set(trial.candidates)) == CANDIDATES
        for start in (LEAD, distance + LEAD):
            np.testing.assert_array_equal(planted[start : start + size], trial.passage)
        changed = (planted != plain).nonzero()[0]
        assert LEAD <= changed.min() <= changed.max() == LEAD + size
        text = trial.text[-len(plain) :]
        assert bytes(text) in bytes(TEXTS[trial.document].astype(np.int64))
        np.testing.assert_array_equal(plain[:-size], text[:-size])
        if name == "passkey":
            assert all((planted == token).sum() == 2 for token in trial.passage)
        else:
            np.testing.assert_array_equal(plain, text)


def test_tokens_are_drawn_from_the_most_frequent_that_the_text_lacks() -> None:
    counts = np.bincount(np.concatenate(TEXTS), minlength=V)
    for trial in plant("passkey", TEXTS, V, 90, 20):
        drawn = np.concatenate((trial.candidates, trial.passage))
        free = np.setdiff1d(np.arange(V - 1), trial.text)
        assert set(drawn) <= set(free)
        assert (counts[free] > counts[drawn].min()).sum() < POOL


def test_all_encodings_and_distances_get_the_same_trials() -> None:
    first, second = run(tiny(NoPE)), run(tiny(ALiBi))
    identities = [(r.probe, r.trials_hash, [row[::3] for row in r.by_document]) for r in first]
    assert identities == [
        (r.probe, r.trials_hash, [row[::3] for row in r.by_document]) for r in second
    ]
    assert len({r.trials_hash for r in first}) == len(NAMES)
    ((near, _), (far, _)) = (plant("copy", TEXTS, V, 90, 1)[0].windows(d) for d in (16, 90))
    np.testing.assert_array_equal(near[-15:], far[-15:])


def test_the_hash_changes_with_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(texts: list[np.ndarray] = TEXTS, longest: int = 90, trials: int = 32) -> str:
        made = probe(Toy(), texts, V, ["copy"], [16, longest], trials, 512, CPU)  # type: ignore[arg-type]
        return next(made).trials_hash

    other = documents(400, 110, 60, 700, seed=1)
    found = [identity(), identity(other), identity(longest=91), identity(trials=33)]
    for name, value in (("SEED", 1), ("LEAD", 17), ("CANDIDATES", 15), ("POOL", 32)):
        with monkeypatch.context() as patch:
            patch.setattr(probes, name, value)
            found.append(identity())
    assert len(set(found)) == len(found)
    assert identity() == found[0]


def test_by_document_adds_up() -> None:
    for result in run(tiny(ALiBi)):
        numbers, *sums = zip(*result.by_document, strict=True)
        assert numbers == (0, 3)
        assert [sum(column) for column in sums] == [result.hits, result.lifts, result.trials]


def test_the_number_does_not_depend_on_the_batch() -> None:
    first, second = (
        list(probe(tiny(ALiBi), TEXTS, V, NAMES, DISTANCES, 32, tokens, CPU))
        for tokens in (1, 10_000)
    )
    assert [r.hits for r in first] == [r.hits for r in second]


def test_a_distance_past_the_table_is_na_with_a_reason() -> None:
    results = run(tiny(Learned, max_length=16 + LEAD + PROBES["copy"].size), names=["copy"])
    assert [result.recall is None for result in results] == [False, True, True]
    assert results[1].reason == "no position past 40"
    assert results[0].trials_hash == results[1].trials_hash


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_logit_that_is_no_number_is_neither_a_hit_nor_a_miss(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A distance in which a window is without number has a reason, the others their hits."""

    class Breaks(Toy):
        def expect(self, window: Tensor) -> Tensor:
            bad = len(window) > 50 and int(window[0]) % 2 == 0
            return self.prior * value if bad else self.prior

    trials = plant("passkey", TEXTS, V, 90, 20)
    odd = [int(trial.windows(40)[0][0]) % 2 for trial in trials]
    assert 0 < sum(odd) < 20
    results = run(Breaks(), names=["passkey"], trials=20)
    assert [result.reason is None for result in results] == [True, False, False]
    assert results[1].reason == f"a logit is no number in {20 - sum(odd)} of 20 trials"
    assert (results[1].hits, results[1].lifts, results[1].by_document) == (None, None, [])
    assert results[1].trials_hash == results[0].trials_hash
    assert f"passkey at distance 40: {results[1].reason}" in caplog.messages


def test_results_come_back_the_latest_of_each(tmp_path: Path) -> None:
    assert kept.read_probes(tmp_path) == []
    results = run(tiny(Learned, max_length=64))
    extended = dataclasses.replace(results[0], extension="yarn x8")
    renewed = dataclasses.replace(results[0], hits=7)
    for result in [*results, extended, renewed]:
        kept.append_probe(tmp_path, result)
    assert kept.read_probes(tmp_path) == [renewed, *results[1:], extended]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"names": ["passkeys"]}, "passkeys is unknown; choose passkey, copy"),
        ({"names": ["copy", "copy"]}, "twice"),
        ({"distances": [16, 16]}, "twice"),
        ({"distances": []}, "eval.probe_distances="),
        ({"distances": [8, 32]}, "8 must exceed copy's 8 tokens"),
        ({"distances": [16, 677]}, "701 tokens"),
        ({"trials": 0}, "eval.probe_trials=0"),
        ({"vocabulary": 32, "documents": [np.arange(400) % 20]}, "copy needs 24"),
    ],
)
def test_what_cannot_be_probed_is_said_before_training(
    changes: dict[str, Any], named: str
) -> None:
    settings = {"documents": documents(675), "vocabulary": V, "names": ["copy"], "trials": 4}
    with pytest.raises(UserError, match=named):
        check(**{**settings, "distances": [16], **changes})


def test_what_can_be_probed_is_not_refused() -> None:
    check(documents(675), V, ["copy"], [9, 652], 4)  # of 676 tokens, BOS with them
    check(TEXTS, V, [], [], 0)
