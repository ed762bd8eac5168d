"""Perplexity by length, under the protocols of protocols.py.

One sum of negative log likelihoods in float64 and one count for each protocol and length; never
a mean of batch means. The model runs in float32, logits are made for the scored tokens only.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.config import EvalConfig
from posbench.errors import UserError
from posbench.model import Transformer
from posbench.protocols import PROTOCOLS, Documents, EvaluationProtocol, Window
from posbench.results import Result
from posbench.runtime import peak_memory, reset_peak_memory

LOGIT_ROWS = 4096  # rows of [V] logits at a time

Scored = tuple[Result, list[Window], np.ndarray | None]


def evaluate(
    model: Transformer,
    documents: Documents,
    byte_lengths: np.ndarray,
    config: EvalConfig,
    device: torch.device,
    words: Sequence[np.ndarray] | None = None,
) -> Iterator[Scored]:
    """Each result in turn, with its windows and the loss of every token scored in them, in nats.

    byte_lengths [V] are the bytes a token stands for, words the number of words that begin in
    each token of each document, where the corpus has words. Raises UserError for a loss that is
    no number.
    """
    for name in config.protocols:
        protocol = PROTOCOLS[name](config)
        for length in config.lengths:
            yield _evaluate(
                model, documents, byte_lengths, config, device, words, protocol, length
            )


def _evaluate(
    model: Transformer,
    documents: Documents,
    byte_lengths: np.ndarray,
    config: EvalConfig,
    device: torch.device,
    words: Sequence[np.ndarray] | None,
    protocol: EvaluationProtocol,
    length: int,
) -> Scored:
    windows = protocol.windows(documents, length)
    ids = np.concatenate([documents[w.document][w.targets()] for w in windows])
    targets = _hash(windows, ids)
    limit = model.encoding.max_length
    if limit is not None and length > limit:
        reason = f"no position past {limit}"
        return Result(protocol.label, length, reason=reason, targets=targets), windows, None
    reset_peak_memory(device)
    started = time.perf_counter()
    losses = score(model, documents, windows, config.batch_tokens, device)
    seconds = time.perf_counter() - started
    if not np.isfinite(losses).all():
        raise UserError(f"{protocol.label} at length {length}: the model's loss is not a number")
    counted = None if words is None else [words[w.document][w.targets()].sum() for w in windows]
    result = Result(
        protocol.label,
        length,
        nll=float(losses.sum()),
        tokens=len(losses),
        bytes=int(byte_lengths[ids].sum()),
        words=None if counted is None else int(sum(counted)),
        documents=len({w.document for w in windows}),
        targets=targets,
        tokens_per_second=sum(w.length for w in windows) / seconds,
        seconds=seconds,
        peak_memory=peak_memory(device),
    )
    return result, windows, losses


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
    order: list[Window] = []
    losses = []
    for states, targets in _chunks(
        _states(model, documents, windows, batch_tokens, device, order)
    ):
        nll = F.cross_entropy(model.logits(states).float(), targets, reduction="none")
        losses.append(nll.double().cpu())
    each = torch.cat(losses).split([window.scored for window in order])
    found = dict(zip(order, each, strict=True))
    return torch.cat([found[window] for window in windows]).numpy()


def _states(
    model: Transformer,
    documents: Documents,
    windows: Sequence[Window],
    batch_tokens: int,
    device: torch.device,
    order: list[Window],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Final states [N, D] and targets [N] of a batch's scored tokens; order gets its windows.

    With memory, each document goes on with its own beside the others' windows of its turn.
    """
    memory = max(window.memory for window in windows)
    past: dict[int, list[Tensor]] = {}  # document -> each layer's [M, D]
    for turn in _turns(windows) if memory else [windows]:
        for batch in _batches(turn, batch_tokens, memory):
            rows = [documents[w.document][w.start : w.start + w.length + 1] for w in batch]
            tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
            recalled = [past[w.document] for w in batch if w.document in past]
            before = [torch.stack(layer) for layer in zip(*recalled, strict=True)] or None
            states, after = model(tokens[:, :-1], before, keep=memory)
            for row, window in enumerate(batch if memory else []):
                past[window.document] = [layer[row] for layer in after]
            order += batch
            scored = batch[0].scored
            yield states[:, -scored:].flatten(0, 1), tokens[:, -scored:].flatten()


def _chunks(parts: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows, LOGIT_ROWS at a time: a matrix product's last bits depend on its shape."""
    states: list[Tensor] = []
    targets: list[Tensor] = []
    for part in parts:
        for some, ids in zip(part[0].split(LOGIT_ROWS), part[1].split(LOGIT_ROWS), strict=True):
            states.append(some)
            targets.append(ids)
            if sum(map(len, targets)) >= LOGIT_ROWS:
                whole, wanted = torch.cat(states), torch.cat(targets)
                yield whole[:LOGIT_ROWS], wanted[:LOGIT_ROWS]
                states, targets = [whole[LOGIT_ROWS:]], [wanted[LOGIT_ROWS:]]
    if any(map(len, targets)):
        yield torch.cat(states), torch.cat(targets)


def _turns(windows: Sequence[Window]) -> list[list[Window]]:
    """Every document's first window, then every document's second, ..."""
    turns: list[list[Window]] = []
    taken: Counter[int] = Counter()
    for window in windows:
        if (turn := taken[window.document]) == len(turns):
            turns.append([])
        turns[turn].append(window)
        taken[window.document] += 1
    return turns


def _batches(
    windows: Sequence[Window], batch_tokens: int, memory: int = 0
) -> Iterator[list[Window]]:
    """Neighbouring windows of one shape, as many as batch_tokens allows, at least one."""
    batch: list[Window] = []
    for window in windows:
        shape = (window.length, window.scored)
        full = len(batch) >= max(1, batch_tokens // (memory + window.length))
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
