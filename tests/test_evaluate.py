"""What a perplexity is: one sum over known targets, whatever the batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posbench.config import EvalConfig
from posbench.encodings.alibi import ALiBi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.errors import UserError
from posbench.evaluate import evaluate, score
from posbench.model import Transformer, build
from posbench.protocols import FixedTargets, Nonoverlapping, check
from posbench.results import Result
from tests.tolerance import close, of_model

CPU = torch.device("cpu")
BYTES = np.ones(50, dtype=np.int64)


def settings(**changes: object) -> EvalConfig:
    values: dict[str, object] = {
        "protocols": ["fixed_targets"],
        "lengths": [8, 16, 32],
        "targets": 4,
        "blocks": 6,
        "tokens": 100,
        "stride": 4,
        "segment": 8,
        "probes": [],
        "probe_distances": [],
        "probe_trials": 0,
        "batch_tokens": 64,
    }
    return EvalConfig(**(values | changes))  # type: ignore[arg-type]


def documents(*sizes: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 50, size).astype(np.uint16) for size in sizes]


def tiny(encoding: type[Encoding] = NoPE, **arguments: int) -> Transformer:
    shape = Shape(width=16, heads=2, layers=2)
    return build(shape, 50, lambda s: encoding(s, **arguments), seed=0, feed_forward=32)


def unigram() -> Transformer:
    """A model that ignores position and context."""
    model = tiny()
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


def test_fixed_targets_are_the_same_tokens_with_more_context() -> None:
    texts = documents(40, 33, 32, 100)
    protocol = FixedTargets(settings(blocks=100))
    seen = []
    for length in (8, 16, 32):
        windows = protocol.windows(texts, length)
        seen.append([(w.document, w.targets().start, w.targets().stop) for w in windows])
        for window in windows:
            assert window.start >= 0
            assert window.targets().stop <= len(texts[window.document])
            assert window.length == length
    assert seen[0] == seen[1] == seen[2]
    assert {document for document, *_ in seen[0]} == {0, 1, 3}  # 32 tokens have no window of 32


def test_a_unigram_model_scores_the_same_at_every_length() -> None:
    texts = documents(80, 200)
    results = [r for r, *_ in evaluate(unigram(), texts, BYTES, settings(), CPU)]
    assert len({result.nll for result in results}) == 1
    assert len({result.targets for result in results}) == 1


def test_nonoverlapping_scores_every_token_once_at_every_length() -> None:
    texts = documents(40, 10, 75)
    protocol = Nonoverlapping(settings(tokens=90))
    for length in (8, 16, 32):
        places = [
            (w.document, at)
            for w in protocol.windows(texts, length)
            for at in range(w.targets().start, w.targets().stop)
        ]
        assert len(places) == len(set(places)) == 90
        first = min(n for document, n in places if document == 2)
        assert first > 1  # not how the text begins
        assert set(places) == {(0, n) for n in range(1, 40)} | {
            (2, n) for n in range(first, first + 51)
        }


def test_perplexity_is_one_sum_over_a_ragged_corpus() -> None:
    """Against a window-by-window float64 loop; a mean of batch means would differ."""
    texts = documents(45, 71)
    model = tiny(ALiBi)
    config = settings(protocols=["nonoverlapping"], lengths=[16], tokens=1000)
    ((result, _, losses),) = evaluate(model, texts, BYTES, config, CPU)
    assert losses is not None
    total, count = 0.0, 0
    for text in texts:
        for start in range(0, len(text) - 1, 16):
            piece = torch.from_numpy(text[start : start + 17].astype(np.int64))[None]
            logits = model.logits(model(piece[:, :-1])[0]).double().log_softmax(-1)
            total -= logits.gather(-1, piece[:, 1:, None]).sum().item()
            count += piece.shape[1] - 1
    assert result.tokens == count == 44 + 70
    terms = of_model(model, 16)
    close(result.nll, total, torch.float32, terms)
    close(result.perplexity, math.exp(total / count), torch.float32, terms * total / count)
    close(losses.sum(), total, torch.float32, terms)


@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_the_number_does_not_depend_on_the_batch(batch_tokens: int) -> None:
    texts, model = documents(80, 200), tiny(ALiBi)
    windows = FixedTargets(settings()).windows(texts, 16)
    one_by_one = score(model, texts, windows, 1, CPU)
    found = score(model, texts, windows, batch_tokens, CPU)
    close(found, one_by_one, torch.float32, of_model(model, 16))


def test_more_rows_than_a_chunk_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, model = documents(80, 200), tiny(ALiBi)
    windows = FixedTargets(settings()).windows(texts, 16)
    whole = score(model, texts, windows, 64, CPU)
    monkeypatch.setattr("posbench.evaluate.LOGIT_ROWS", 3)
    found = score(model, texts, windows, 64, CPU)
    close(found, whole, torch.float32, of_model(model, 16))


def test_a_length_past_the_table_is_na_with_a_reason() -> None:
    model = tiny(Learned, max_length=16)
    results = [r for r, *_ in evaluate(model, documents(80), BYTES, settings(), CPU)]
    assert [result.perplexity is None for result in results] == [False, False, True]
    assert "past 16" in str(results[2].reason)


def test_bits_per_byte_counts_the_scored_text_only() -> None:
    lengths = np.arange(50)
    texts = documents(80)
    config = settings(lengths=[8], blocks=1)
    ((result, *_),) = evaluate(tiny(), texts, lengths, config, CPU)
    (window,) = FixedTargets(config).windows(texts, 8)
    scored = int(lengths[texts[0][window.targets()]].sum())
    assert result.bytes == scored
    assert result.nll is not None
    assert result.bits_per_byte == pytest.approx(result.nll / math.log(2) / scored)


def test_perplexity_is_finite_for_the_worst_loss() -> None:
    assert math.isfinite(Result("fixed_targets", 8, nll=1e9, tokens=1).perplexity or math.inf)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lengths": []}, "eval.lengths"),
        ({"lengths": [8, 8]}, "twice"),
        ({"targets": 0}, "eval.targets=0"),
        ({"targets": 9}, "eval.targets=9"),
        ({"blocks": 0}, "eval.blocks=0"),
        ({"protocols": []}, "eval.protocols"),
        ({"protocols": ["slide"]}, "slide"),
        ({"lengths": [8, 100]}, "101 tokens"),
        ({"protocols": ["nonoverlapping"], "tokens": 32}, "eval.tokens=32"),
        ({"batch_tokens": 0}, "eval.batch_tokens=0"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_training(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        check(settings(**changes), documents(80))
