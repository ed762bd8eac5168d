"""Tokenizers lose nothing, know no BOS in text, and are the same for the same texts."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import posbench.corpus.tokenizer as module
from posbench.corpus.tokenizer import BPE, Bytes, Tokenizer
from posbench.errors import UserError
from tests.helpers.places import ROOT

TEXTS = [
    "The state of the union is strong, and the people of the states are strong.\n" * 20,
    "第一条 为了加强海上交通管理，维护海上交通秩序。\n\n  if x == y:\n\treturn z\r\n" * 5,
]
HARD = [
    "",
    " ",
    "\n\n \t\r\n\x00\x1c\x85\u2028\ufeff",
    "<|bos|>",
    "a<|bos|>b <|bos|> <|endoftext|>",
    "naïve café 😀👩‍👩‍👧‍👦 \u0301\u0301 e\u0301",
    "海上交通安全法、１２３　四",
    "'s 's's I'll  can't   x",
    "\U0010ffff\ufffd\ufffe",
]
TRAINED: list[Tokenizer] = [Bytes(), BPE(320).train(TEXTS)]


def random_texts(count: int) -> list[str]:
    """Strings of characters from all of Unicode and from the corners that break tokenizers."""
    draw = random.Random(0)
    corners = " \n\t\r'sd0é海😀<|bos|>\u0301\u200d\x00"

    def character() -> str:
        if draw.random() < 0.7:
            return draw.choice(corners)
        point = draw.randrange(0x110000 - 0x800)
        return chr(point if point < 0xD800 else point + 0x800)

    return ["".join(character() for _ in range(draw.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize("tokenizer", TRAINED, ids=["bytes", "bpe"])
def test_lossless(tokenizer: Tokenizer) -> None:
    texts = TEXTS + HARD + random_texts(500)
    lengths = tokenizer.byte_lengths()
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text) == ids
        assert lengths[ids].sum() == len(text.encode())
        assert all(0 <= i < tokenizer.bos for i in ids)


@pytest.mark.parametrize("tokenizer", TRAINED, ids=["bytes", "bpe"])
def test_bos_is_the_last_id_and_stands_for_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos == tokenizer.vocabulary - 1
    assert tokenizer.byte_lengths().shape == (tokenizer.vocabulary,)
    assert tokenizer.byte_lengths()[tokenizer.bos] == 0
    assert (tokenizer.byte_lengths()[:-1] > 0).all()
    assert tokenizer.decode([tokenizer.bos, *tokenizer.encode("a"), tokenizer.bos]) == "a"


def test_bytes_are_utf8() -> None:
    assert Bytes().encode("aé") == [97, 0xC3, 0xA9]
    assert (Bytes().vocabulary, Bytes().bos) == (257, 256)


def test_bpe_has_the_vocabulary_asked_for_and_merges_what_is_frequent() -> None:
    bpe = TRAINED[1]
    assert bpe.vocabulary == 320
    pieces = bpe.pieces()
    assert set(pieces) >= {bytes([i]) for i in range(256)}
    assert len(set(pieces)) == 320
    assert b" strong" in pieces
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 3


def test_text_too_small_for_the_vocabulary_gives_what_there_is() -> None:
    bpe = BPE(1024).train(["ab"])
    assert bpe.vocabulary == 258  # 256 bytes, "ab", BOS
    assert bpe.decode(bpe.encode("abc 海")) == "abc 海"


def test_train_leaves_the_recipe_alone() -> None:
    recipe = BPE(300)
    before = recipe.hash
    trained = recipe.train(TEXTS)
    assert not recipe.trained
    assert recipe.hash == before != trained.hash
    assert recipe.train(TEXTS[:1]).hash != trained.hash
    assert BPE(301).hash != before


def test_training_is_the_same_in_another_process() -> None:
    code = "from tests.corpus.test_tokenizer import *; print(BPE(320).train(TEXTS).hash)"
    command = [sys.executable, "-c", code]
    root = ROOT
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [TRAINED[1].hash]


@pytest.mark.parametrize("tokenizer", TRAINED, ids=["bytes", "bpe"])
def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "t.json")
    again = type(tokenizer).load(tmp_path / "t.json")
    assert (again.hash, again.vocabulary) == (tokenizer.hash, tokenizer.vocabulary)
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    np.testing.assert_array_equal(again.byte_lengths(), tokenizer.byte_lengths())
    other = Bytes if isinstance(tokenizer, BPE) else BPE
    with pytest.raises(ValueError, match="kind"):
        other.load(tmp_path / "t.json")


def test_long_texts_in_pieces_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    bpe = TRAINED[1]
    draw = random.Random(1)
    parts = ["\n", "\n\n", " \n", "\n ", "\r\n", "the", " union", "\x1c\n", "\n\x85", "海", "."]
    texts = ["".join(draw.choice(parts) for _ in range(400)) for _ in range(50)]
    whole = bpe.encode_batch(texts)
    monkeypatch.setattr(module, "LONG", 100)
    assert all(len(list(module._cut(text))) > 3 for text in texts)
    assert bpe.encode_batch(texts) == whole


@pytest.mark.parametrize("vocabulary", [256, 0, -1])
def test_vocabulary_without_room_for_bytes(vocabulary: int) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocabulary=.*257"):
        BPE(vocabulary)
