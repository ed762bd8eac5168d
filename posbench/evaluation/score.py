"""Perplexity by length, under the protocols of protocols.py.

One sum of negative log likelihoods in float64 and one count for each protocol and length; never
a mean of batch means. The model runs in float32, logits are made for the scored tokens only. Where
a loss is not finite the length has a reason instead. "Memory" is a model's segment memory, but for
peak_memory, which is RAM.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.config import EvalConfig
from posbench.evaluation.masked import Pass
from posbench.evaluation.protocols import protocol
from posbench.evaluation.results import Result
from posbench.evaluation.windows import Documents, EvaluationProtocol, Window
from posbench.machine.distributed import ALONE, World
from posbench.machine.runtime import peak_memory, reset_peak_memory
from posbench.model.transformer import Transformer

log = logging.getLogger("posbench")

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
    """Yield each Result with its windows and the loss in nats of every token scored in them.

    byte_lengths [V] are the bytes a token stands for, words the number of words that begin in
    each token of each document, where the corpus has words. A masked model's losses give no
    perplexity of words: those of a word's tokens do not multiply to its probability.
    """
    words = None if model.shape.two_sided else words
    for name in config.protocols:
        chosen = protocol(name, config, model.shape.two_sided)
        for length in config.lengths:
            yield _evaluate(
                model, documents, byte_lengths, config, device, words, world, chosen, length
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
    limit = model.max_length
    if limit is not None and length > limit:
        reason = f"no position past {limit}"
        return Result(protocol.label, length, reason=reason, targets=targets), windows, None
    reset_peak_memory(device)
    started = time.perf_counter()
    losses = score(model, documents, windows, config.batch_tokens, device, world)
    seconds = time.perf_counter() - started
    if not np.isfinite(losses).all():
        with world.together():
            reason = _not_finite(model, documents, windows, losses, device)
        if world.leads:
            log.warning("%s at length %s: %s", protocol.label, f"{length:,}", reason)
        return Result(protocol.label, length, reason=reason, targets=targets), windows, None
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


def _not_finite(
    model: Transformer,
    documents: Documents,
    windows: Sequence[Window],
    losses: np.ndarray,
    device: torch.device,
) -> str:
    """In how many windows a loss is no number, and from which position on."""
    parts = np.split(losses, np.cumsum([window.scored for window in windows])[:-1])
    bad = {w: ~np.isfinite(part) for w, part in zip(windows, parts, strict=True)}
    broken = {window: int(part.argmax()) for window, part in bad.items() if part.any()}
    if model.shape.two_sided:  # each token sees all others: no position is the first to break
        return f"the loss is no number in {len(broken):,} of {len(windows):,} windows"
    first = _first_broken(model, documents, windows, broken, device)
    counted = f"{len(broken):,} of {len(windows):,} windows"
    return f"the loss is no number in {counted} from position {first:,}"


def _first_broken(
    model: Transformer,
    documents: Documents,
    windows: Sequence[Window],
    broken: Mapping[Window, int],
    device: torch.device,
) -> int:
    """The first position whose loss is no number whatever comes after it.

    Positions are as encodings count them: from 0, at a window's first token or its memory's.
    broken says of windows which of their scored tokens is the first without a number. That may be
    too early: later keys get no attention, but zero times no number is no number. So each window
    is cut short, to where it breaks by itself, if that is before all others.
    """
    first = max(window.memory + window.length for window in broken)
    met = set[int]()
    for window, spoiled in broken.items():
        if window.document in met and any(w.memory for w in windows):
            continue  # the window before may have handed it on
        met.add(window.document)
        before = [[w] for w in windows if window.memory and _precedes(w, window)]
        start = window.memory + window.length - window.scored
        low, high = spoiled + 1, min(window.scored, first - start)  # scored tokens, to be enough

        def breaks(scored: int, last: Window = window, past: Unit = before) -> bool:
            missing = last.scored - scored
            cut = dataclasses.replace(last, length=last.length - missing, scored=scored)
            return not _finite(model, documents, [*past, [cut]], device)

        if low > high or (high < window.scored and not breaks(high)):
            continue
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if breaks(middle) else (middle + 1, high)
        first = start + high - 1
    return first


def _precedes(one: Window, other: Window) -> bool:
    return one.document == other.document and one.start < other.start


def _finite(model: Transformer, documents: Documents, unit: Unit, device: torch.device) -> bool:
    """Whether the losses of a unit's last batch are numbers."""
    with measuring(model):
        *_, (states, targets) = _states(model, documents, unit, device)
        losses = F.cross_entropy(model.logits(states).float(), targets, reduction="none")
        return bool(losses.isfinite().all())


@contextmanager
def measuring(model: Transformer) -> Iterator[None]:
    """A model in evaluation mode, without gradients; then each part in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def score(
    model: Transformer,
    documents: Documents,
    windows: Sequence[Window],
    batch_tokens: int,
    device: torch.device,
    world: World = ALONE,
) -> np.ndarray:
    """The negative log likelihood of every scored token, in nats, float64, in order of windows.

    All processes of world take part, and all get the array. Up to the rounding of logits it does
    not depend on their number: processes share out whole batches, and logits are computed for
    chunks of one size, but a token's place in its chunk may differ.
    """
    units = _units(windows, batch_tokens)
    rows = min(LOGIT_ROWS, sum(window.scored for window in windows))
    with measuring(model):
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
        if model.shape.two_sided:
            yield _masked_states(model, documents, batch, device)
            continue
        rows = [documents[w.document][w.start : w.start + w.length + 1] for w in batch]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
        recalled = [past[w.document] for w in batch if w.document in past]
        before = [torch.stack(layer) for layer in zip(*recalled, strict=True)] or None
        states, after = model(tokens[:, :-1], before, keep=memory)
        for row, window in enumerate(batch if memory else []):
            past[window.document] = [layer[row] for layer in after]
        scored = batch[0].scored
        yield states[:, -scored:].flatten(0, 1), tokens[:, -scored:].flatten()


def _masked_states(
    model: Transformer, documents: Documents, batch: Sequence[Window], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Final states [N, D] and targets [N] of the scored tokens of a batch of passes."""
    mask = model.tokens.num_embeddings - 1
    inputs, targets, rows, states_at = [], [], [], []
    for row, window in enumerate(batch):
        assert isinstance(window, Pass)
        document, places = documents[window.document], window.targets()
        inputs.append(window.tokens(document, mask))
        targets.append(document[places])
        states_at.append(places - window.start)
        rows.append(np.full(len(places), row))
    states, _ = model(torch.from_numpy(np.stack(inputs).astype(np.int64)).to(device))
    at = (torch.from_numpy(np.concatenate(each)).to(device) for each in (rows, states_at))
    wanted = torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device)
    return states[tuple(at)], wanted


def _chunks(parts: Iterable[tuple[Tensor, Tensor]], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Regroup parts into chunks of `rows` rows: a product's last bits depend on its shape."""
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
    """One batch a unit; with memory, a unit holds the windows of as many documents as fit."""
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
    before: tuple[int, int] | None = None
    for window in windows:
        shape = (window.length, window.scored if type(window) is Window else 0)
        full = len(batch) >= max(1, batch_tokens // (memory + window.length))
        if batch and (full or shape != before):
            yield batch
            batch = []
        batch.append(window)
        before = shape
    if batch:
        yield batch


def _hash(windows: Sequence[Window], ids: np.ndarray) -> str:
    """Sixteen hex digits that name the scored tokens: where they stand and what they are."""
    told = [(window.document, at) for window in windows for at in window.places()]
    places = np.array(told, dtype=np.int64)
    order = np.lexsort(places.T[::-1])  # a masked model's passes take them in another
    digest = hashlib.sha256(places[order].tobytes())
    digest.update(ids[order].astype(np.int64).tobytes())
    return digest.hexdigest()[:16]
