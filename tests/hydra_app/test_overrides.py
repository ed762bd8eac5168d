"""Words that begin in a token: what `str.split` makes of the text, wherever tokens are cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posbench.corpus.cache import prepare
from posbench.corpus.sources import Files
from posbench.corpus.tokenizer import BPE, Bytes, Tokenizer
from tests.helpers.toy import WORDS, write_text

SPACES = [chr(code) for code in range(0x10000) if chr(code).isspace()]
TRAINED: list[Tokenizer] = [
    Bytes(),
    BPE(400).train([" ".join(WORDS) * 20, "".join(f"{s}{s}a{s}国" for s in SPACES) * 9]),
]
PIECES = [*SPACES, "a", "the ", "é", "国", "\u200b", "\ufeff", "\u0300", "😀", "'s", "\x00"]


@pytest.mark.parametrize("tokenizer", TRAINED, ids=["bytes", "bpe"])
@given(parts=st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), max_size=40))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
def test_the_words_of_a_text_are_those_of_split(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = np.array([tokenizer.bos, *tokenizer.encode(text)])
    counts = tokenizer.words(ids)
    assert counts.shape == ids.shape
    assert counts[0] == 0
    assert counts.sum() == len(text.split())
    head = len(tokenizer.encode(text[: len(text) // 2]))
    if tokenizer.decode(ids[: head + 1]) == text[: len(text) // 2]:
        np.testing.assert_array_equal(tokenizer.words(ids[: head + 1]), counts[: head + 1])


def test_half_of_the_spaces_may_be_unbreakable() -> None:
    """French as it is typeset: a word begins where the reader sees one."""
    text = "Qui\u00a0parle\u202f? Le\u2009roi\u3000dit\u0085non\u2028ici" * 3
    for tokenizer in TRAINED:
        assert tokenizer.words(np.array(tokenizer.encode(text))).sum() == len(text.split()) == 22


def test_a_corpus_without_words_has_none(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    for has in (True, False):
        source = Files(str(text), "text", "mine", words=has)
        corpus = prepare(source, Bytes(), tmp_path / "cache")
        assert (corpus.words("test") is not None) == has
    assert len(list((tmp_path / "cache" / "corpora").glob("*/meta.json"))) == 1  # one entry
