"""Words that begin in a token: what `bytes.split` makes of the text, wherever tokens are cut."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from posbench.corpus import prepare
from posbench.sources import Files
from posbench.tokenizer import BPE, Bytes, Tokenizer
from tests.toy import WORDS, write_text


@pytest.mark.parametrize("make", [Bytes, lambda: BPE(300)], ids=["bytes", "bpe"])
def test_the_words_of_a_text_are_those_of_split(make: type[Tokenizer]) -> None:
    tokenizer = make()
    if not tokenizer.trained:
        tokenizer = tokenizer.train([" ".join(WORDS) * 20])
    generator = random.Random(0)
    for _ in range(50):
        text = "".join(
            generator.choice(["a", "the ", " of", "\n", "\t\t", "é", "国", "  "])
            for _ in range(60)
        )
        ids = np.array([tokenizer.bos, *tokenizer.encode(text)])
        counts = tokenizer.words(ids)
        assert counts[0] == 0
        assert counts.sum() == len(text.encode().split())
        cut = generator.randrange(1, len(ids))  # what comes later changes nothing before
        np.testing.assert_array_equal(tokenizer.words(ids[:cut]), counts[:cut])


def test_a_corpus_without_words_has_none(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    for has in (True, False):
        source = Files(str(text), "text", "mine", words=has)
        corpus = prepare(source, Bytes(), tmp_path / "cache")
        assert (corpus.words("test") is not None) == has
    assert len(list((tmp_path / "cache" / "corpora").glob("*/meta.json"))) == 1  # one entry
