"""What a perplexity is: one sum over known targets, whatever the batching."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from posbench.attention import ON_CPU
from posbench.config import EvalConfig
from posbench.encodings.alibi import ALiBi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.errors import UserError
from posbench.evaluation.causal import FixedTargets, Nonoverlapping
from posbench.evaluation.probes import probe
from posbench.evaluation.protocols import PROTOCOLS, check
from posbench.evaluation.results import Result
from posbench.evaluation.score import evaluate, score
from posbench.model.transformer import Transformer, build
from tests.helpers.marks import a_few
from tests.helpers.tolerance import close, of_model

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


def tiny(encoding: type[Encoding] = NoPE, **arguments: float) -> Transformer:
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
    monkeypatch.setattr("posbench.evaluation.score.LOGIT_ROWS", 3)
    found = score(model, texts, windows, 64, CPU)
    close(found, whole, torch.float32, of_model(model, 16))


def test_a_length_past_the_table_is_na_with_a_reason() -> None:
    model = tiny(Learned, max_length=16)
    results = [r for r, *_ in evaluate(model, documents(80), BYTES, settings(), CPU)]
    assert [result.perplexity is None for result in results] == [False, False, True]
    assert "past 16" in str(results[2].reason)


class Breaking(Encoding):
    """The first `heads` heads have no number for distances from `past` on."""

    def __init__(self, shape: Shape, past: int, heads: int = 1, value: float = math.nan) -> None:
        super().__init__(shape)
        self.past, self.heads, self.value = past, heads, value

    def distance_bias(self, distance: Tensor, layer: int) -> Tensor:
        bias = torch.zeros(self.shape.heads, len(distance))
        bias[: self.heads, distance >= self.past] = self.value
        return bias


@pytest.mark.parametrize("kernel", a_few([*ON_CPU], 1))
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_length_without_a_number_is_a_row_with_its_reason(
    name: str, value: float, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two layers: zero times a later position's nan spoils earlier ones, and is not told."""
    config = settings(protocols=[name, "fixed_targets"], lengths=[8, 32, 16], stride=3, tokens=110)
    config.protocols = list(dict.fromkeys(config.protocols))
    model, texts = tiny(Breaking, past=21, value=value), documents(80, 61)
    model.kernels = [kernel] * 2
    found = list(evaluate(model, texts, BYTES, config, CPU))
    assert [result.perplexity is None for result, *_ in found[:3]] == [False, True, False]
    assert len(found) == 3 * len(config.protocols)
    result, windows, losses = found[1]
    positions = [range(end - w.scored, end) for w in windows for end in [w.memory + w.length]]
    broken = [p for p in positions if p.stop > 21]
    first = max(21, min(p.start for p in broken))
    assert result.reason == (
        f"the loss is no number in {len(broken)} of {len(windows)} windows from position {first}"
    )
    assert losses is None
    assert dataclasses.replace(result, reason=None, targets=None) == Result(result.protocol, 32)
    assert result.targets == found[0][0].targets
    assert f"{result.protocol} at length 32: {result.reason}" in caplog.messages


def test_the_first_position_is_that_of_all_windows() -> None:
    """A token of one kind has no number, and stands at another place in each text."""
    texts, places = documents(50, 50, 50), (29, 20, 26)
    for text, place in zip(texts, places, strict=True):
        text[text == 40] = 41
        text[place] = 40
    model = tiny(ALiBi)
    readout = model.tokens.weight.detach().clone()
    with torch.no_grad():
        model.tokens.weight[40] = math.nan
    model.logits = lambda states: states @ readout.T
    config = settings(protocols=["nonoverlapping"], lengths=[32], tokens=140)
    ((result, windows, _),) = evaluate(model, texts, BYTES, config, CPU)
    found = [places[w.document] - w.start for w in windows]
    inside = [at for at, w in zip(found, windows, strict=True) if 0 <= at < w.length]
    assert len(inside) == 3
    wanted = f"in 3 of {len(windows)} windows from position {min(inside)}"
    assert str(result.reason).endswith(wanted)


@pytest.mark.parametrize("fails", [False, True])
def test_evaluation_leaves_all_as_it_was(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes, a frozen part's too; gradients; random numbers; also where it breaks off."""
    model, texts = tiny(Breaking, past=21).train(), documents(80)
    model.layers[1].eval()
    config = settings(lengths=[8, 32], protocols=[*PROTOCOLS])
    if fails:
        monkeypatch.setattr(model, "logits", lambda states: 1 / 0)
    modes = {name: module.training for name, module in model.named_modules()}
    before = _settings_of_torch()
    if fails:
        with pytest.raises(ZeroDivisionError):
            list(evaluate(model, texts, BYTES, config, CPU))
        with pytest.raises(ZeroDivisionError):
            list(probe(model, documents(200), 50, ["copy"], [9], 2, 64, CPU))
    else:
        for _ in evaluate(model, texts, BYTES, config, CPU):
            assert torch.is_grad_enabled()  # between two results, too
        assert list(probe(model, documents(200), 50, ["copy"], [9], 2, 64, CPU))
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert _settings_of_torch() == before


def _settings_of_torch() -> list[object]:
    return [
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        str(np.random.get_state()),
        random.getstate(),
    ]


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
