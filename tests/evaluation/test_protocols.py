"""Which targets, which context: every token once, the same at every length, and one sum."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from posbench.encodings.alibi import ALiBi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.transformer_xl import TransformerXL
from posbench.errors import UserError
from posbench.evaluation.causal import Nonoverlapping, Sliding, Stream
from posbench.evaluation.protocols import PROTOCOLS, check
from posbench.evaluation.results import read_losses, save_losses
from posbench.evaluation.score import evaluate, score
from posbench.evaluation.windows import Window
from posbench.model.transformer import Transformer, build
from tests.evaluation.test_score import BYTES, CPU, documents, settings, tiny, unigram
from tests.helpers.tolerance import close, of_model

EVERY_TOKEN = ["nonoverlapping", "sliding", "stream"]
SIZES = (40, 10, 75, 33)  # ragged; two are too short for the longest window or just enough


def places(windows: list[Window]) -> list[tuple[int, int]]:
    return [(w.document, at) for w in windows for at in range(w.targets().start, w.targets().stop)]


@pytest.mark.parametrize("name", EVERY_TOKEN)
@pytest.mark.parametrize("tokens", [1000, 90, 41])
@pytest.mark.parametrize("length", [8, 16, 32])
def test_every_target_once(name: str, tokens: int, length: int) -> None:
    """Of N tokens, BOS first, N - 1 are scored; up to eval.tokens in all, of every document."""
    texts = documents(*SIZES)
    protocol = PROTOCOLS[name](settings(protocols=[name], tokens=tokens, stride=3))
    found = Counter(places(protocol.windows(texts, length)))
    assert set(found.values()) == {1}
    stretches = {n: [at for number, at in found if number == n] for n in {n for n, _ in found}}
    for number, stretch in stretches.items():
        assert stretch == list(range(stretch[0], stretch[0] + len(stretch)))
        assert stretch[0] >= 1
        assert stretch[-1] < SIZES[number]
    wanted = {
        1000: {0: 39, 2: 74, 3: 32},  # 10 tokens are too few for a window of 32
        90: {0: 32, 2: 32, 3: 26},
        41: {0: 32, 2: 9},
    }
    assert {n: len(stretch) for n, stretch in stretches.items()} == wanted[tokens]


@pytest.mark.parametrize("name", [*PROTOCOLS])
def test_the_same_targets_at_every_length(name: str) -> None:
    """A unigram model scores the same, whatever the protocol: to the last bit where every length
    asks for the targets in one order, as all but streams do, which go on document by document.
    """
    config = settings(protocols=[name], stride=3, tokens=1000)
    found = [r for r, *_ in evaluate(unigram(), documents(*SIZES), BYTES, config, CPU)]
    assert len(found) == 3
    assert len({result.targets for result in found}) == 1
    if name != "stream":
        assert len({result.nll for result in found}) == 1
    for result in found[1:]:
        close(result.nll, found[0].nll, torch.float32, of_model(unigram(), 32))


@pytest.mark.parametrize("name", [*PROTOCOLS])
def test_no_window_is_longer_than_asked_nor_leaves_its_document(name: str) -> None:
    texts = documents(*SIZES)
    for length in (8, 16, 32):
        windows = PROTOCOLS[name](settings(protocols=[name], stride=5)).windows(texts, length)
        for window in windows:
            assert window.start >= 0
            assert window.start + window.length < len(texts[window.document])
            assert window.memory + window.length <= length
            assert 0 < window.scored <= window.length
            assert window.memory <= window.start


@pytest.mark.parametrize("length", [8, 16, 32])
def test_sliding_by_a_whole_window_is_nonoverlapping(length: int) -> None:
    texts, config = documents(*SIZES), settings(lengths=[length, 32], stride=length)
    config.lengths = [length]
    assert Sliding(config).windows(texts, length) == Nonoverlapping(config).windows(texts, length)


def test_sliding_gives_every_token_the_context_it_says() -> None:
    (text,) = documents(75)
    for window in Sliding(settings(stride=3)).windows([text], 16)[1:]:
        seen_by_the_first = window.length - window.scored + 1
        assert seen_by_the_first >= 16 - 3 + 1
        assert window.scored <= 3


def test_sliding_by_one_is_the_loss_of_each_token_after_its_last_tokens() -> None:
    (text,) = documents(40)
    model, config = tiny(ALiBi), settings(lengths=[8], stride=1, tokens=1000)
    losses = score(model, [text], Sliding(config).windows([text], 8), 64, CPU)
    tokens = torch.from_numpy(text.astype(np.int64))
    for at in range(1, 40):
        context = tokens[max(0, at - 8) : at][None]
        wanted = model.logits(model(context)[0][0, -1]).log_softmax(-1)[tokens[at]]
        close(losses[at - 1], -wanted.item(), torch.float32, of_model(model, 8))


def test_a_stream_of_one_segment_has_no_memory() -> None:
    texts, config = documents(*SIZES), settings(lengths=[8], segment=8)
    assert Stream(config).windows(texts, 8) == Nonoverlapping(config).windows(texts, 8)


ENCODINGS: list[tuple[type[Encoding], dict[str, int]]] = [
    (NoPE, {}),
    (ALiBi, {}),
    (RoPE, {}),
    (Shaw, {"k": 4}),
    (TransformerXL, {"memory_length": 3}),
]


def shallow(kind: type[Encoding], arguments: dict[str, int]) -> Transformer:
    """One layer: a memory of its inputs is as good as the tokens themselves."""
    shape = Shape(width=16, heads=2, layers=1)
    return build(shape, 50, lambda s: kind(s, **arguments), seed=0, feed_forward=32)


@pytest.mark.parametrize(
    ("kind", "arguments"), ENCODINGS, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_stream_whose_memory_holds_all_is_one_long_window(
    kind: type[Encoding], arguments: dict[str, int]
) -> None:
    texts = documents(33, 33, 29)
    config = settings(lengths=[40], segment=8, tokens=1000)
    model = shallow(kind, arguments)
    windows = [
        Window(n, start, min(8, len(text) - 1 - start), min(8, len(text) - 1 - start), start)
        for n, text in enumerate(texts)
        for start in range(0, len(text) - 1, 8)
    ]
    streamed = score(model, texts, windows, config.batch_tokens, CPU)
    whole = [Window(n, 0, len(text) - 1, len(text) - 1) for n, text in enumerate(texts)]
    found = score(model, texts, whole, 64, CPU)
    close(streamed, found, torch.float32, of_model(model, 40))


def test_a_streams_memory_is_the_last_tokens_and_no_more() -> None:
    """One layer without positions: the loss is that of a window over just what may be seen."""
    (text,) = documents(40)
    model = shallow(NoPE, {})
    config = settings(lengths=[12], segment=4, tokens=1000)
    windows = Stream(config).windows([text], 12)
    losses = score(model, [text], windows, 64, CPU)
    tokens = torch.from_numpy(text.astype(np.int64))
    for at in range(1, 40):
        segment = (at - 1) // 4 * 4
        context = tokens[max(0, segment - 8) : at][None]
        wanted = model.logits(model(context)[0][0, -1]).log_softmax(-1)[tokens[at]]
        close(losses[at - 1], -wanted.item(), torch.float32, of_model(model, 12))


def test_memory_is_never_another_documents() -> None:
    texts = documents(40, 40, 40)
    model, config = tiny(ALiBi), settings(lengths=[16], segment=8, tokens=1000)
    windows = Stream(config).windows(texts, 16)
    together = score(model, texts, windows, 10_000, CPU)
    alone = [
        score(model, texts, [w for w in windows if w.document == n], 1, CPU) for n in range(3)
    ]
    close(together, np.concatenate(alone), torch.float32, of_model(model, 16))


def test_an_absolute_encoding_streams_with_positions_that_repeat() -> None:
    config = settings(protocols=["stream"], lengths=[8, 16], segment=8)
    found = [r for r, *_ in evaluate(tiny(Sinusoidal), documents(80), BYTES, config, CPU)]
    assert all(math.isfinite(r.perplexity or math.inf) for r in found)
    found = [
        r for r, *_ in evaluate(tiny(Learned, max_length=8), documents(80), BYTES, config, CPU)
    ]
    assert found[1].reason == "no position past 8"


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_ranks_that_share_the_windows_find_the_same_sum(parts: int) -> None:
    """As 1, 2 or 3 processes would, on windows that they do not divide evenly."""
    texts, model = documents(*SIZES), tiny(ALiBi)
    windows = Sliding(settings(stride=3, tokens=1000)).windows(texts, 16)
    assert len(windows) % 2
    assert len(windows) % 3
    whole = score(model, texts, windows, 64, CPU)
    shares = [score(model, texts, windows[rank::parts], 64, CPU) for rank in range(parts)]
    assert sum(map(len, shares)) == len(whole)
    added = sum(share.sum() for share in shares)
    close(added, whole.sum(), torch.float32, of_model(model, 16))  # batches of other shapes


def test_one_policy_for_bos() -> None:
    """It is the first input of a document, once, and never a target."""
    texts = [
        np.array([49, *range(40)], dtype=np.uint16),
        np.array([49, *range(35)], dtype=np.uint16),
    ]
    for name in PROTOCOLS:
        protocol = PROTOCOLS[name](settings(protocols=[name], tokens=1000))
        targets = places(protocol.windows(texts, 16))
        assert all(at > 0 for _, at in targets)
        assert 49 not in {texts[n][at] for n, at in targets}


def test_the_protocols_number_says_its_stride() -> None:
    config = settings(protocols=["sliding", "stream"], lengths=[16])
    found = [r.protocol for r, *_ in evaluate(tiny(), documents(80), BYTES, config, CPU)]
    assert found == ["sliding stride 4", "stream segment 8"]


def test_losses_know_their_place_and_context(tmp_path: Path) -> None:
    texts = documents(40, 75)
    config = settings(protocols=["stream", "sliding", "fixed_targets"], lengths=[16], stride=3)
    for result, windows, losses in evaluate(tiny(ALiBi), texts, BYTES, config, CPU):
        assert losses is not None
        save_losses(tmp_path, result, windows, losses)
        kept = read_losses(tmp_path, result)
        assert kept is not None
        close(kept.losses, losses, torch.float32, 1)  # as which they are kept
        assert list(zip(kept.documents, kept.distances, strict=True)) == places(windows)
        assert kept.contexts.max() <= 16
        assert (kept.contexts <= kept.distances).all()
        if result.protocol.startswith("stream"):
            first = {n: min(at for m, at in places(windows) if m == n) for n in (0, 1)}
            steps = [at - first[n] for n, at in places(windows)]
            wanted = [step % 8 + 1 + min(8, step // 8 * 8) for step in steps]
            assert kept.contexts.tolist() == wanted


def test_losses_that_were_not_kept_are_none_and_damaged_ones_an_error(tmp_path: Path) -> None:
    ((result, windows, losses),) = evaluate(
        tiny(), documents(80), BYTES, settings(lengths=[16]), CPU
    )
    assert read_losses(tmp_path, result) is None
    assert losses is not None
    save_losses(tmp_path, result, windows, losses)
    (path,) = (tmp_path / "losses").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=path.name):
        read_losses(tmp_path, result)


def test_words_bytes_and_tokens_are_counted_in_the_scored_text_and_share_one_sum() -> None:
    texts = documents(80, 40)
    words = [np.arange(len(text)) for text in texts]
    config = settings(protocols=["sliding"], lengths=[16], tokens=50)
    ((result, windows, losses),) = evaluate(tiny(ALiBi), texts, np.arange(50), config, CPU, words)
    assert losses is not None
    assert result.nll == losses.sum()
    assert result.tokens == 50
    assert result.words == sum(at for _, at in places(windows))
    assert result.bytes == sum(int(texts[n][at]) for n, at in places(windows))
    assert result.word_perplexity == pytest.approx(math.exp(losses.sum() / result.words))
    assert result.perplexity == pytest.approx(math.exp(losses.sum() / 50))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"protocols": ["sliding"], "stride": 0}, "eval.stride=0"),
        ({"protocols": ["sliding"], "stride": 9}, "eval.stride=9"),
        ({"protocols": ["stream"], "segment": 9}, "eval.segment=9"),
        ({"protocols": ["stream"], "segment": 0}, "eval.segment=0"),
        ({"protocols": ["sliding", "sliding"]}, "twice"),
        ({"protocols": ["sliding"], "lengths": [8, 100], "tokens": 1000}, "101 tokens"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_training(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        check(settings(**changes), documents(80))
