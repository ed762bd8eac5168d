"""Text to token ids and back, without loss: bytes, and byte-level BPE.

The last id of every vocabulary is BOS, or MASK with BOS before it. No text encodes to them: they
are no entries of the BPE model, so "<|bos|>" in a document is seven characters like any others.
V is the size of the vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers, trainers

from posbench.errors import UserError

BYTES = 256
LARGEST = 2**24  # vocabulary
LONG = 1_000_000  # characters; a longer text is taken in pieces, to bound memory
WORD = 1536  # bytes; merges in a longer run of letters, or of spaces, would take their square


class Tokenizer(ABC):
    """What a corpus needs of a tokenizer; `pieces` is the definition, the rest follows."""

    vocabulary: int
    mask: int | None = None  # the id of MASK, for masked language models

    @abstractmethod
    def pieces(self) -> list[bytes]:
        """The UTF-8 bytes each token stands for, BOS included, which stands for none."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of a text; no BOS is added."""

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """All that determines the ids, as JSON; of an untrained tokenizer, its recipe."""

    @classmethod
    @abstractmethod
    def restore(cls, definition: dict[str, Any]) -> Self:
        """The tokenizer of a definition; ValueError or KeyError if it is of another kind."""

    @property
    def trained(self) -> bool:
        return True

    def with_mask(self) -> Self:
        """The same with MASK as one more id, after all others."""
        made = copy.copy(self)
        made.__dict__.pop("_pieces", None)
        made.mask, made.vocabulary = self.vocabulary, self.vocabulary + 1
        return made

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer fitted to the texts; self where there is nothing to fit."""
        return self

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; BOS is silent, a split character shows as U+FFFD."""
        return b"".join(self._pieces[i] for i in ids).decode("utf-8", errors="replace")

    def byte_lengths(self) -> NDArray[np.int64]:
        """Bytes of UTF-8 text each token stands for [V]; 0 for BOS."""
        return np.array([len(piece) for piece in self._pieces], dtype=np.int64)

    def words(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """How many words begin in each token [N] of a document: those of `str.split`.

        A word begins in the token that holds the first byte of its first character.
        """
        text = b"".join(self._pieces[i] for i in ids)
        ends = np.cumsum(self.byte_lengths()[ids])
        first = [] if _SPACES.match(text) else [0]
        begins = np.array(first + [space.end() for space in _SPACES.finditer(text)], dtype=int)
        holders = np.searchsorted(ends, begins[begins < len(text)], side="right")
        return np.bincount(holders, minlength=len(ids))

    @property
    def bos(self) -> int:
        return self.vocabulary - (1 if self.mask is None else 2)

    @property
    def hash(self) -> str:
        """sha256 of the whole definition."""
        text = json.dumps(self._whole_definition(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the definition as JSON."""
        path.write_text(json.dumps(self._whole_definition()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; ValueError or KeyError if it is not that."""
        definition = json.loads(path.read_text(encoding="utf-8"))
        masks = definition.pop("mask", False)
        return cls.restore(definition).with_mask() if masks else cls.restore(definition)

    def _whole_definition(self) -> dict[str, Any]:
        return self.definition() if self.mask is None else {**self.definition(), "mask": True}

    @cached_property
    def _pieces(self) -> list[bytes]:
        return self.pieces() if self.mask is None else [*self.pieces(), b""]


class Bytes(Tokenizer):
    """One token a byte: 256, and BOS."""

    vocabulary = BYTES + 1

    def pieces(self) -> list[bytes]:
        return [bytes([i]) for i in range(BYTES)] + [b""]

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def definition(self) -> dict[str, Any]:
        return {"kind": "bytes"}

    @classmethod
    def restore(cls, definition: dict[str, Any]) -> Self:
        if definition["kind"] != "bytes":
            raise ValueError(f"not a byte tokenizer: kind {definition['kind']}")
        return cls()


class BPE(Tokenizer):
    """Byte-level byte-pair encoding, BOS included in `vocabulary`.

    Raises UserError below 257. A text too small for so many merges gives fewer tokens;
    `vocabulary` of the trained one is what there is.
    """

    def __init__(self, vocabulary: int) -> None:
        if not BYTES < vocabulary <= LARGEST:
            raise UserError(
                f"tokenizer.vocabulary={vocabulary}: at least 257, 256 bytes and BOS, and at most "
                f"{LARGEST}"
            )
        self.vocabulary = vocabulary
        self._tokens: list[str] = []  # in the order of their ids, each byte as one character
        self._merges: list[tuple[str, str]] = []

    @property
    def trained(self) -> bool:
        return bool(self._tokens)

    def train(self, texts: Iterable[str]) -> BPE:
        """A new BPE with the most frequent merges of these texts; the same for the same texts."""
        texts = list(texts)
        model = tokenizers.Tokenizer(models.BPE())
        model.pre_tokenizer = _splitter(any(map(_has_long_run, texts)))
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary - 1,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        pieces = (piece for text in texts for piece in _cut(text))
        _interruptible(lambda: model.train_from_iterator(pieces, trainer))
        vocabulary = model.get_vocab(with_added_tokens=False)
        merges = json.loads(model.to_str())["model"]["merges"]
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        return self.restore({"kind": "bpe", "tokens": tokens, "merges": merges})

    def definition(self) -> dict[str, Any]:
        if not self.trained:
            library = version("tokenizers")
            return {"kind": "bpe", "vocabulary": self.vocabulary, "tokenizers": library}
        return {"kind": "bpe", "tokens": self._tokens, "merges": self._merges}

    @classmethod
    def restore(cls, definition: dict[str, Any]) -> Self:
        if definition["kind"] != "bpe":
            raise ValueError(f"not a BPE tokenizer: kind {definition['kind']}")
        bpe = cls(len(definition["tokens"]) + 1)
        bpe._tokens = list(definition["tokens"])
        bpe._merges = [(left, right) for left, right in definition["merges"]]
        return bpe

    def pieces(self) -> list[bytes]:
        byte_of = _byte_of_character()
        return [bytes(byte_of[c] for c in token) for token in self._tokens] + [b""]

    def encode(self, text: str) -> list[int]:
        model = self._cutting if _has_long_run(text) else self._model
        return [i for piece in _cut(text) for i in model.encode_batch_fast([piece])[0].ids]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each text, on all cores but for texts that are long or have a long run."""
        at_once = [len(text) <= LONG and not _has_long_run(text) for text in texts]
        short = [text for text, fits in zip(texts, at_once, strict=True) if fits]
        done = iter(self._model.encode_batch_fast(short))
        return [
            next(done).ids if fits else self.encode(text)
            for text, fits in zip(texts, at_once, strict=True)
        ]

    @cached_property
    def _model(self) -> tokenizers.Tokenizer:
        return self._with(_splitter(cutting=False))

    @cached_property
    def _cutting(self) -> tokenizers.Tokenizer:
        """The model with words cut at WORD bytes: the same tokens, slower."""
        return self._with(_splitter(cutting=True))

    def _with(self, splitter: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
        assert self.trained, "train the tokenizer first"
        vocabulary = {token: i for i, token in enumerate(self._tokens)}
        model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=self._merges))
        model.pre_tokenizer = splitter
        return model


def _splitter(cutting: bool) -> pre_tokenizers.PreTokenizer:
    """Into words of letters, digits, others or spaces; `cutting` those longer than WORD bytes."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not cutting:
        return words
    parts = tokenizers.Regex(f"[\\s\\S]{{1,{WORD}}}")
    return pre_tokenizers.Sequence([words, pre_tokenizers.Split(parts, "isolated")])


def _has_long_run(text: str) -> bool:
    """Whether a word may have more than WORD bytes, of at most four to a character."""
    size = WORD // 8  # such a word has a whole one of these pieces in it
    pieces = (text[start : start + size] for start in range(0, len(text) - size + 1, size))
    return any(piece.split(None, 1) in ([], [piece]) for piece in pieces)


def _interruptible(work: Callable[[], object]) -> None:
    """Do work of a library that ignores Ctrl-C in another thread, so that this one can react."""
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=attempt, daemon=True)
    worker.start()
    worker.join()
    if raised:
        raise raised[0]


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes a byte as a character: itself if printable, else 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(BYTES + i): b for i, b in enumerate(hidden)}


def _cut(text: str) -> Iterator[str]:
    """Pieces of about LONG characters, cut where it cannot change the tokens.

    Before a white space with a letter or the like after it: the splitter begins a word there.
    Where there is none for another LONG characters, anywhere.
    """
    start = 0
    while len(text) - start > LONG:
        found = _BREAK.search(text, start + LONG, start + 2 * LONG)
        end = found.start() if found else min(start + 2 * LONG, len(text))
        yield text[start:end]
        start = end
    yield text[start:]


_BREAK = re.compile(r"[^\S\x1c-\x1f](?=\S)")  # for the splitter those four are no white space
_SPACE = "|".join(re.escape(chr(c)) for c in range(0x10000) if chr(c).isspace())
_SPACES = re.compile(f"(?:{_SPACE})+".encode())
