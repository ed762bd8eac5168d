"""Masked evaluation: the same targets at every length, each masked once, context on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from posbench.config import EvalConfig
from posbench.encodings import Shape
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.errors import UserError
from posbench.evaluation import masked
from posbench.evaluation.masked import Pass, folds_of
from posbench.evaluation.protocols import MASKED, check, protocol
from posbench.evaluation.score import evaluate, score
from posbench.evaluation.windows import Window
from posbench.model.transformer import Transformer, build
from tests.helpers.tolerance import SINGLE

VOCABULARY = 60  # words, BOS, MASK
BOS, MASK = VOCABULARY - 2, VOCABULARY - 1
LENGTHS = [8, 16, 40]


def settings(**changed: object) -> EvalConfig:
    told = {
        "protocols": ["fixed_targets"],
        "lengths": LENGTHS,
        "targets": 8,
        "blocks": 5,
        "tokens": 200,
        "stride": 4,
        "segment": 4,
        "folds": 3,
        "probes": [],
        "probe_distances": [],
        "probe_trials": 1,
        "batch_tokens": 64,
    }
    return EvalConfig(**(told | changed))  # type: ignore[arg-type]


def documents(sizes: tuple[int, ...] = (90, 41, 120)) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, BOS, size) for size in sizes]
    for document in drawn:
        document[0] = BOS
    return drawn


def model(encoding: type = RoPE) -> Transformer:
    shape = Shape(16, 2, 2, two_sided=True)
    return build(shape, VOCABULARY, encoding, seed=0, feed_forward=24, special=1).eval()


def chosen(name: str, length: int, **changed: object) -> list[Pass]:
    made = protocol(name, settings(**changed), two_sided=True).windows(documents(), length)
    assert all(isinstance(each, Pass) for each in made)
    return made  # type: ignore[return-value]


each_protocol = pytest.mark.parametrize("name", MASKED)


@each_protocol
def test_each_target_is_scored_once_and_the_same_at_every_length(name: str) -> None:
    scored = []
    for length in LENGTHS:
        places = [(w.document, at) for w in chosen(name, length) for at in w.places()]
        assert len(set(places)) == len(places)
        scored.append(sorted(places))
    assert scored[0] == scored[1] == scored[2]
    assert all(at > 0 for _, at in scored[0]), "BOS is no target"


@each_protocol
def test_what_is_mask_in_a_window_is_what_is_scored_in_its_part(name: str) -> None:
    texts = documents()
    for length in LENGTHS:
        for window in chosen(name, length):
            tokens = window.tokens(texts[window.document], MASK)
            assert len(tokens) == window.length <= length
            assert window.start > 0, "BOS is in no window"
            hidden = np.flatnonzero(tokens == MASK) + window.start
            inside = [at for at in hidden if window.first <= at < window.last]
            assert inside == list(window.places())
            there = texts[window.document][window.start : window.start + window.length]
            assert np.array_equal(tokens[tokens != MASK], there[tokens != MASK])


def test_a_longer_window_holds_the_shorter_ones_masks() -> None:
    """And its context grows on both sides."""
    texts = documents()
    for short, long in zip(chosen("fixed_targets", 16), chosen("fixed_targets", 40), strict=True):
        assert long.start < short.start
        assert long.start + long.length > short.start + short.length
        inside = slice(short.start - long.start, short.start - long.start + short.length)
        text = texts[short.document]
        assert np.array_equal(long.tokens(text, MASK)[inside], short.tokens(text, MASK))


def test_one_token_in_so_many_is_mask_and_folds_are_by_place_alone() -> None:
    folds = folds_of(3, 100, 7)
    groups = folds[:98].reshape(-1, 7)
    assert (np.sort(groups) == np.arange(7)).all()
    assert len({tuple(group) for group in groups}) > 5, "drawn anew in each group"
    assert np.array_equal(folds_of(3, 100, 7), folds)
    assert not np.array_equal(folds_of(4, 100, 7), folds)


def test_a_loss_is_that_of_the_masked_token_from_both_sides() -> None:
    """One window after another, one token after another."""
    made: Any = model()
    texts = documents()
    windows = chosen("fixed_targets", 16)
    expected = []
    with torch.no_grad():
        for window in windows:
            text = texts[window.document]
            inputs = text[window.start : window.start + window.length].copy()
            for at in range(window.start, window.start + window.length):
                if folds_of(window.document, len(text), 3)[at] == window.fold:
                    inputs[at - window.start] = MASK
            states, _ = made(torch.from_numpy(inputs)[None])
            for at in window.places():
                logits = made.logits(states[0, at - window.start])
                expected.append(F.cross_entropy(logits, torch.tensor(text[at])).item())
    found = score(made, texts, windows, 64, torch.device("cpu"))
    assert found == pytest.approx(expected, rel=SINGLE)


def test_a_model_without_context_has_one_number_at_every_length() -> None:
    made: Any = model(NoPE)
    with torch.no_grad():  # values that are nothing: only the token itself is left
        for layer in made.layers:
            layer.attention_out.weight.zero_()
    bytes_of = np.ones(VOCABULARY, dtype=np.int64)
    asked = settings(protocols=list(MASKED))
    words = [np.ones(len(document), dtype=np.int64) for document in documents()]
    found = evaluate(made, documents(), bytes_of, asked, torch.device("cpu"), words)
    results = [result for result, _, _ in found]
    assert {result.words for result in results} == {None}, "no perplexity of words"
    labels = [result.protocol for result in results[::3]]
    assert labels == ["masked fixed_targets 1/3", "masked nonoverlapping 1/3"]
    for three in (results[:3], results[3:]):
        assert len({result.targets for result in three}) == 1
        sums = [result.nll for result in three]
        assert sums == pytest.approx([sums[0]] * 3, rel=SINGLE)


def test_causal_protocols_are_refused() -> None:
    for name in ("sliding", "stream"):
        with pytest.raises(UserError, match="a masked one has fixed_targets"):
            check(settings(protocols=[name]), documents(), two_sided=True)
    for folds in (0, 1, -3, 2000):
        with pytest.raises(UserError, match=r"eval\.folds"):
            check(settings(folds=folds), documents(), two_sided=True)
    with pytest.raises(UserError, match=r"eval\.lengths: 500"):
        check(settings(lengths=[500], tokens=900), documents(), two_sided=True)


def test_a_pass_without_a_target_is_none() -> None:
    made = masked.passes(Window(0, 1, 20, 0), 5, 6, 90, 7)
    assert len(made) == 1
