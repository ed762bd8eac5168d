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
from posbench.distributed import ALONE, World
from posbench.errors import UserError
from posbench.model import Transformer
from posbench.protocols import PROTOCOLS, Documents, EvaluationProtocol, Window
from posbench.results import Result
from posbench.runtime import peak_memory, reset_peak_memory

LOGIT_ROWS = 4096  # rows of [V] logits at a time

Scored = tuple[Result, list[Window], np.ndarray | None]
Unit = list[list[Window]]  # batches in order, which depend on no other unit


def evaluate(
    model: Transformer,
    documents: Documents,
    byte_lengths: np.ndarray,
    config: EvalConfig,
    device: torch.device,
    words: Sequence[np.ndarray] | None = None,
    world: World = ALONE,
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
                model, documents, byte_lengths, config, device, words, world, protocol, length
            )


def _evaluate(
    model: Transformer,
    documents: Documents,
    byte_lengths: np.ndarray,
    config: EvalConfig,
    device: torch.device,
    words: Sequence[np.ndarray] | None,
    world: World,
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
    losses = score(model, documents, windows, config.batch_tokens, device, world)
    seconds = time.perf_counter() - started
    with world.together():
        if not np.isfinite(losses).all():
            raise UserError(f"{protocol.label} at length {length}: the model's loss is no number")
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
    world: World = ALONE,
) -> np.ndarray:
    """The negative log likelihood of every scored token, in nats, float64, in order of windows.

    All processes of world take part, and all get it. It is the same for any number of them, to the
    rounding of logits: what they share out are whole batches, and logits are made for a number of
    tokens that depends on all windows, but a token stands at another place among them.
    """
    model.eval()
    units = _units(windows, batch_tokens)
    rows = min(LOGIT_ROWS, sum(window.scored for window in windows))
    each = world.spread(units, lambda own: _losses(model, documents, own, rows, device))
    order = [window for unit in units for batch in unit for window in batch]
    ends = np.cumsum([window.scored for window in order])
    found = dict(zip(order, np.split(np.concatenate(each), ends[:-1]), strict=True))
    return np.concatenate([found[window] for window in windows])


def _losses(
    model: Transformer,
    documents: Documents,
    units: Sequence[Unit],
    rows: int,
    device: torch.device,
) -> list[np.ndarray]:
    """Of each unit, the loss of the tokens scored in it."""
    parts = (part for unit in units for part in _states(model, documents, unit, device))
    losses = []
    for states, targets in _chunks(parts, rows):
        missing = rows - len(targets)
        logits = model.logits(F.pad(states, (0, 0, 0, missing)))[: len(targets)]
        losses.append(F.cross_entropy(logits.float(), targets, reduction="none").double().cpu())
    if not losses:
        return []
    sizes = [sum(window.scored for batch in unit for window in batch) for unit in units]
    return [part.numpy() for part in torch.cat(losses).split(sizes)]


def _states(
    model: Transformer, documents: Documents, unit: Unit, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Final states [N, D] and targets [N] of each batch's scored tokens.

    With memory, each document goes on with its own beside the others' windows of its turn.
    """
    memory = max(window.memory for batch in unit for window in batch)
    past: dict[int, list[Tensor]] = {}  # document -> each layer's [M, D]
    for batch in unit:
        rows = [documents[w.document][w.start : w.start + w.length + 1] for w in batch]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
        recalled = [past[w.document] for w in batch if w.document in past]
        before = [torch.stack(layer) for layer in zip(*recalled, strict=True)] or None
        states, after = model(tokens[:, :-1], before, keep=memory)
        for row, window in enumerate(batch if memory else []):
            past[window.document] = [layer[row] for layer in after]
        scored = batch[0].scored
        yield states[:, -scored:].flatten(0, 1), tokens[:, -scored:].flatten()


def _chunks(parts: Iterable[tuple[Tensor, Tensor]], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows, so many at a time: a matrix product's last bits depend on its shape."""
    states: list[Tensor] = []
    targets: list[Tensor] = []
    for part in parts:
        for some, ids in zip(part[0].split(rows), part[1].split(rows), strict=True):
            states.append(some)
            targets.append(ids)
            if sum(map(len, targets)) >= rows:
                whole, wanted = torch.cat(states), torch.cat(targets)
                yield whole[:rows], wanted[:rows]
                states, targets = [whole[rows:]], [wanted[rows:]]
    if any(map(len, targets)):
        yield torch.cat(states), torch.cat(targets)


def _units(windows: Sequence[Window], batch_tokens: int) -> list[Unit]:
    """A batch each; with memory, as many documents as make a batch, turn by turn."""
    memory = max(window.memory for window in windows)
    if not memory:
        return [[batch] for batch in _batches(windows, batch_tokens)]
    together = max(1, batch_tokens // (memory + max(window.length for window in windows)))
    numbers = list(dict.fromkeys(window.document for window in windows))
    units = []
    for first in range(0, len(numbers), together):
        some = {*numbers[first : first + together]}
        turns = _turns([window for window in windows if window.document in some])
        units.append([b for turn in turns for b in _batches(turn, batch_tokens, memory)])
    return units


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
