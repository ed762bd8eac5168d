"""Recall of a token planted in natural text, by distance: what perplexity hardly shows.

    LEAD tokens of text | passage, answer | text ... | passage | -> answer?
                                 <-------- distance -------->

The window is LEAD + n + distance tokens of a test document, n of them the passage. The answer
stands exactly `distance` tokens before the place where it is asked for (what attends to it there
is distance - 1 away). It is drawn evenly from C candidates, apart from all else, and written over
the text: a model that does not see the plant names it in one of C trials, whatever it expects.

- copy: the passage is the text's own last n tokens.
- passkey: the passage is drawn for each trial; no part of it stands elsewhere in the window.

A trial has the same place, passage, candidates and answer at all distances, for all encodings.
Candidates and passkeys are drawn, by SEED, from the POOL tokens that are most frequent in the test
documents and not in the text of the longest window. No candidate stands in the window but planted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from posbench.errors import UserError
from posbench.evaluation.results import ProbeResult
from posbench.evaluation.score import measuring
from posbench.evaluation.windows import Documents
from posbench.machine.distributed import ALONE, World
from posbench.model.transformer import Transformer

log = logging.getLogger("posbench")

CANDIDATES = 16  # C
POOL = 64
LEAD = 16  # tokens before the plant
SEED = 0
MOST_TRIALS = 100_000  # they are all in memory

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]  # [trials, C]


@dataclass(frozen=True)
class Probe:
    """A passage of `size` tokens, out of a trial's text and as many tokens that are not in it."""

    size: int
    passage: Callable[[Ids, Ids], Ids]


PROBES = {
    "passkey": Probe(2, lambda text, others: others),
    "copy": Probe(8, lambda text, others: text[-len(others) :]),
}


@dataclass(frozen=True)
class Trial:
    """text: the tokens [LEAD + n + longest distance] before the place that is asked about."""

    document: int
    text: Ids
    passage: Ids  # [n]
    candidates: Ids  # [C]
    answer: int  # which of the candidates

    def windows(self, distance: int) -> tuple[Ids, Ids]:
        """The model's input [LEAD + n + distance], and the same with the text left unplanted."""
        n = len(self.passage)
        plain = self.text[len(self.text) - LEAD - n - distance :].copy()
        plain[-n:] = self.passage
        planted = plain.copy()
        planted[LEAD : LEAD + n] = self.passage
        planted[LEAD + n] = self.candidates[self.answer]
        return planted, plain


def check(
    documents: Documents, vocabulary: int, names: list[str], distances: list[int], trials: int
) -> None:
    """Raise UserError now for what would fail after training."""
    if not names:
        return
    if len({*names}) < len(names) or len({*distances}) < len(distances):
        raise UserError(f"eval.probes={names}, eval.probe_distances={distances}: one stands twice")
    if not distances:
        raise UserError("eval.probe_distances=[]: name the distances of eval.probes")
    if not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"eval.probe_trials={trials} must lie in 1 .. {MOST_TRIALS}")
    for name in names:
        if name not in PROBES:
            raise UserError(f"eval.probes: {name} is unknown; choose {', '.join(PROBES)}")
        if min(distances) <= (size := PROBES[name].size):
            raise UserError(
                f"eval.probe_distances: {min(distances)} must exceed {name}'s {size} tokens"
            )
        plant(name, documents, vocabulary, max(distances), trials)


def plant(
    name: str, documents: Documents, vocabulary: int, longest: int, trials: int
) -> list[Trial]:
    """The trials of a probe, their places spread evenly over all where the longest window fits.

    Raises UserError for documents too short and texts that leave too few tokens to draw from.
    """
    size = PROBES[name].size
    generator = np.random.default_rng(SEED)
    counts = np.bincount(np.concatenate(documents), minlength=vocabulary)
    order = np.argsort(-counts, kind="stable")  # from the most frequent
    order = order[order != documents[0][0]]  # BOS stands at the start of documents alone
    made = []
    for document, text in _texts(documents, LEAD + size + longest, trials):
        free = order[~np.isin(order, text)]
        if len(free) < CANDIDATES + size:
            raise UserError(
                f"eval.probe_distances: a text of {len(text)} tokens leaves {len(free)} of the "
                f"vocabulary, and {name} needs {CANDIDATES + size}; give shorter ones"
            )
        drawn = generator.permutation(free[:POOL])
        candidates, others = drawn[:CANDIDATES], drawn[CANDIDATES : CANDIDATES + size]
        passage = PROBES[name].passage(text, others)
        answer = int(generator.integers(CANDIDATES))
        made.append(Trial(document, text, passage, candidates, answer))
    return made


def _texts(documents: Documents, size: int, count: int) -> Iterator[tuple[int, Ids]]:
    """`count` pieces of `size` tokens, each with the number of its document."""
    rooms = np.array([max(0, len(document) - size + 1) for document in documents])
    ends = rooms.cumsum()
    if not ends[-1]:
        raise UserError(
            f"eval.probe_distances: the longest needs a test document of {size} tokens, but the "
            f"corpus's longest has {max(map(len, documents))}; give a shorter one"
        )
    for place in np.linspace(0, ends[-1] - 1, count).round().astype(int):
        number = int(np.searchsorted(ends, place, side="right"))
        start = place - (ends[number] - rooms[number])
        yield number, documents[number][start : start + size].astype(np.int64)


def probe(
    model: Transformer,
    documents: Documents,
    vocabulary: int,
    names: list[str],
    distances: list[int],
    trials: int,
    batch_tokens: int,
    device: torch.device,
    world: World = ALONE,
) -> Iterator[ProbeResult]:
    """Each probe at each distance, by all processes of world, for all of them.

    Where a logit is no number there are no hits, but a reason. Raises UserError as check does.
    """
    check(documents, vocabulary, names, distances, trials)
    limit = model.encoding.max_length
    for name in names:
        made = plant(name, documents, vocabulary, max(distances), trials)
        candidates = np.stack([trial.candidates for trial in made])
        identity = (trials, CANDIDATES, len({t.document for t in made}), _hash(name, made))
        for distance in distances:
            if limit is not None and LEAD + PROBES[name].size + distance > limit:
                yield ProbeResult(name, distance, None, *identity, f"no position past {limit}")
                continue
            planted, plain = (
                _scores(model, np.stack(windows), candidates, batch_tokens, device, world)
                for windows in zip(*(trial.windows(distance) for trial in made), strict=True)
            )
            if broken := int((~np.isfinite([planted, plain])).any((0, 2)).sum()):
                reason = f"a logit is no number in {broken:,} of {trials:,} trials"
                if world.leads:
                    log.warning("%s at distance %s: %s", name, f"{distance:,}", reason)
                yield ProbeResult(name, distance, None, *identity, reason)
                continue
            rows = _count(made, planted, plain)
            hits, lifts = (sum(row[column] for row in rows) for column in (1, 2))
            yield ProbeResult(name, distance, hits, *identity, lifts=lifts, by_document=rows)


def _count(trials: list[Trial], planted: Scores, plain: Scores) -> list[list[int]]:
    """[document, hits, lifts, trials] of each document."""
    answers = [trial.answer for trial in trials]
    hits = planted.argmax(1) == answers
    lifts = (planted - plain).argmax(1) == answers
    documents = np.array([trial.document for trial in trials])
    parts = [(number, documents == number) for number in np.unique(documents)]
    return [[int(n), *(int(x[own].sum()) for x in (hits, lifts, own))] for n, own in parts]


def _scores(
    model: Transformer,
    windows: Ids,
    candidates: Ids,
    batch_tokens: int,
    device: torch.device,
    world: World,
) -> Scores:
    """The logits of each window's candidates after it: windows [W, T], candidates [W, C]."""
    together = max(1, batch_tokens // windows.shape[1])

    def score(starts: Sequence[int]) -> list[Scores]:
        scores = []
        for start in starts:
            some = slice(start, start + together)
            states, _ = model(torch.from_numpy(windows[some]).to(device))
            logits = model.logits(states[:, -1]).float().cpu().numpy()
            scores.append(np.take_along_axis(logits, candidates[some], 1))
        return scores

    with measuring(model):
        return np.concatenate(world.spread(range(0, len(windows), together), score))


def _hash(name: str, trials: list[Trial]) -> str:
    """Sixteen hex digits that name a probe's trials: where they stand and what was planted."""
    digest = hashlib.sha256(f"{name} {LEAD}".encode())
    for t in trials:
        numbers = np.r_[t.document, t.answer, t.text, t.passage, t.candidates]
        digest.update(numbers.astype(np.int64).tobytes())
    return digest.hexdigest()[:16]
