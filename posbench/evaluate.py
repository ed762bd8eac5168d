"""Perplexity by length. A protocol decides which tokens are scored and what context each has.

One sum of negative log likelihoods in float64 and one count for each protocol and length; never
a mean of batch means. The model runs in float32, logits are made for the scored tokens only.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.config import EvalConfig
from posbench.errors import UserError
from posbench.model import Transformer
from posbench.results import Result
from posbench.runtime import peak_memory, reset_peak_memory

Documents = Sequence[np.ndarray]  # each: BOS and the document's tokens
LOGIT_ROWS = 4096  # rows of [V] logits at a time


@dataclass(frozen=True)
class Window:
    """Inputs document[start : start + length]; the last `scored` next tokens count."""

    document: int
    start: int
    length: int
    scored: int

    def targets(self) -> slice:
        """Where the scored tokens stand in the document."""
        end = self.start + self.length + 1
        return slice(end - self.scored, end)


class EvaluationProtocol(Protocol):
    """Which targets, which context. Raises UserError where the documents are too short."""

    def __init__(self, config: EvalConfig) -> None: ...

    def windows(self, documents: Documents, length: int) -> list[Window]: ...


class FixedTargets:
    """The same target tokens at every length; only the context to their left grows.

    Blocks of `targets` tokens, spread evenly over all places of all documents where the longest
    window fits. A window of length L predicts each target from at least L - targets + 1 tokens.
    """

    def __init__(self, config: EvalConfig) -> None:
        self.size, self.blocks = config.targets, config.blocks
        self.longest, self.shortest = max(config.lengths), min(config.lengths)
        if not 0 < self.size <= self.shortest:
            raise UserError(
                f"eval.targets={self.size} must lie between 1 and the shortest of eval.lengths, "
                f"{self.shortest}"
            )
        if self.blocks < 1:
            raise UserError(f"eval.blocks={self.blocks} must be at least 1")

    def windows(self, documents: Documents, length: int) -> list[Window]:
        ends = [
            (number, end)
            for number, document in enumerate(documents)
            for end in range(self.longest + 1, len(document) + 1, self.size)
        ]
        if not ends:
            raise _too_short(documents, self.longest)
        chosen = np.unique(np.linspace(0, len(ends) - 1, self.blocks).round().astype(int))
        return [
            Window(number, end - 1 - length, length, self.size)
            for number, end in (ends[index] for index in chosen)
        ]


class Nonoverlapping:
    """Consecutive windows, every token but BOS scored once; what most published tables use.

    Documents long enough for the longest window, in order, up to `tokens` tokens in all. The last
    window of a document may be short.
    """

    def __init__(self, config: EvalConfig) -> None:
        self.tokens, self.longest = config.tokens, max(config.lengths)
        if self.tokens <= self.longest:
            raise UserError(
                f"eval.tokens={self.tokens} must exceed the longest of eval.lengths, "
                f"{self.longest}"
            )

    def windows(self, documents: Documents, length: int) -> list[Window]:
        windows, left = [], self.tokens
        for number, document in enumerate(documents):
            if len(document) <= self.longest or left <= 0:
                continue
            scored = min(len(document) - 1, left)
            left -= scored
            for start in range(0, scored, length):
                count = min(length, scored - start)
                windows.append(Window(number, start, count, count))
        if not windows:
            raise _too_short(documents, self.longest)
        return windows


PROTOCOLS: dict[str, type[EvaluationProtocol]] = {
    "fixed_targets": FixedTargets,
    "nonoverlapping": Nonoverlapping,
}


def _too_short(documents: Documents, longest: int) -> UserError:
    tokens = max((len(document) for document in documents), default=0)
    return UserError(
        f"eval.lengths: {longest} needs a test document of {longest + 1} tokens, but the corpus's "
        f"longest has {tokens}; give shorter eval.lengths or longer documents"
    )


def check(config: EvalConfig, documents: Documents) -> None:
    """Raise UserError now for what would fail after training."""
    if not config.lengths or min(config.lengths) < 1:
        raise UserError(f"eval.lengths={config.lengths} must name lengths of at least 1")
    if len(set(config.lengths)) < len(config.lengths):
        raise UserError(f"eval.lengths={config.lengths} names a length twice")
    if config.batch_tokens < 1:
        raise UserError(f"eval.batch_tokens={config.batch_tokens} must be at least 1")
    if not config.protocols:
        raise UserError(f"eval.protocols=[]: name at least one of {', '.join(PROTOCOLS)}")
    for name in config.protocols:
        if name not in PROTOCOLS:
            raise UserError(f"eval.protocols: {name} is unknown; choose {', '.join(PROTOCOLS)}")
        PROTOCOLS[name](config).windows(documents, max(config.lengths))


def evaluate(
    model: Transformer,
    documents: Documents,
    byte_lengths: np.ndarray,
    config: EvalConfig,
    device: torch.device,
) -> Iterator[tuple[Result, list[Window], np.ndarray | None]]:
    """Each result in turn, with its windows and the loss of every token scored in them, in nats.

    byte_lengths [V] are the bytes a token stands for. Raises UserError for a loss that is no
    number.
    """
    for name in config.protocols:
        protocol = PROTOCOLS[name](config)
        for length in config.lengths:
            windows = protocol.windows(documents, length)
            ids = np.concatenate([documents[w.document][w.targets()] for w in windows])
            targets = _hash(windows, ids)
            limit = model.encoding.max_length
            if limit is not None and length > limit:
                reason = f"no position past {limit}"
                yield Result(name, length, reason=reason, targets=targets), windows, None
                continue
            reset_peak_memory(device)
            started = time.perf_counter()
            losses = score(model, documents, windows, config.batch_tokens, device)
            seconds = time.perf_counter() - started
            if not np.isfinite(losses).all():
                raise UserError(f"{name} at length {length}: the model's loss is not a number")
            yield (
                Result(
                    name,
                    length,
                    nll=float(losses.sum()),
                    tokens=len(losses),
                    bytes=int(byte_lengths[ids].sum()),
                    documents=len({w.document for w in windows}),
                    targets=targets,
                    tokens_per_second=sum(w.length for w in windows) / seconds,
                    peak_memory=peak_memory(device),
                ),
                windows,
                losses,
            )


@torch.no_grad()
def score(
    model: Transformer,
    documents: Documents,
    windows: Sequence[Window],
    batch_tokens: int,
    device: torch.device,
) -> np.ndarray:
    """The negative log likelihood of every scored token, in nats, float64, in order of windows."""
    model.eval()
    losses: list[Tensor] = []
    for batch in _batches(windows, batch_tokens):
        length, scored = batch[0].length, batch[0].scored
        rows = [documents[w.document][w.start : w.start + length + 1] for w in batch]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
        states, _ = model(tokens[:, :-1])
        states, targets = states[:, -scored:].flatten(0, 1), tokens[:, -scored:].flatten()
        for some, wanted in zip(states.split(LOGIT_ROWS), targets.split(LOGIT_ROWS), strict=True):
            nll = F.cross_entropy(model.logits(some).float(), wanted, reduction="none")
            losses.append(nll.double().cpu())
    return torch.cat(losses).numpy()


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Neighbouring windows of one shape, as many as batch_tokens allows, at least one."""
    batch: list[Window] = []
    for window in windows:
        shape = (window.length, window.scored)
        full = len(batch) >= max(1, batch_tokens // window.length)
        if batch and (full or shape != (batch[0].length, batch[0].scored)):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _hash(windows: Sequence[Window], ids: np.ndarray) -> str:
    """Sixteen hex digits that name the scored tokens: where they stand and what they are."""
    slices = [(window.document, window.targets()) for window in windows]
    places = [(document, at) for document, s in slices for at in range(s.start, s.stop)]
    digest = hashlib.sha256(np.array(places, dtype=np.int64).tobytes())
    digest.update(ids.astype(np.int64).tobytes())
    return digest.hexdigest()[:16]
