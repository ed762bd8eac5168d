"""What an evaluation found: typed rows in the run folder's results.jsonl, append-only.

Beside them, in losses/, the loss of every scored token, so that figures and intervals can be made
again without the model.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from posbench.config import checks
from posbench.errors import UserError
from posbench.evaluation.windows import Window
from posbench.machine.files import append_row, read_rows, replacing, require_own

DAMAGED = (OSError, EOFError, KeyError, ValueError, TypeError, MemoryError, NotImplementedError)
LARGEST = 1e304  # of perplexities, near the end of float64: what is larger is shown as "> 1e304"


def exponential(nats: float) -> float:
    """exp, up to LARGEST: a perplexity is finite for the worst loss."""
    return min(math.exp(min(nats, 709.0)), LARGEST)


@dataclasses.dataclass(frozen=True)
class Result:
    """One length under one protocol. Where it cannot be had, reason says why and the rest is None.

    extension names what was done to the trained model's context, e.g. "yarn x8"; None: nothing.
    protocol is its label, with stride or segment. nll is the sum over the scored tokens in nats
    (float64), bytes and words the size of the scored text (words None where the corpus has none),
    targets a hash of the scored positions and token ids.
    """

    protocol: str
    length: int
    reason: str | None = None
    nll: float | None = None
    tokens: int | None = None
    bytes: int | None = None
    words: int | None = None
    documents: int | None = None
    targets: str | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    peak_memory: int | None = None
    extension: str | None = None

    @property
    def perplexity(self) -> float | None:
        """exp(sum / count), in the tokenizer's tokens."""
        return self._exp(self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(nll / words), words being those that begin in the scored text."""
        return self._exp(self.words)

    @property
    def bits_per_byte(self) -> float | None:
        """nll in bits over the bytes of the scored text: comparable across tokenizers."""
        return self.nll / math.log(2) / self.bytes if self.nll is not None and self.bytes else None

    def _exp(self, count: int | None) -> float | None:
        return exponential(self.nll / count) if self.nll is not None and count else None


def forget(folder: Path) -> None:
    """Delete all results and probes of a run folder, before a new evaluation."""
    for name in ("results.jsonl", "probes.jsonl"):
        (folder / name).unlink(missing_ok=True)


def append(folder: Path, result: Result) -> None:
    row = dataclasses.asdict(result)
    append_row(folder / "results.jsonl", row | shown(result))


def shown(result: Result) -> dict[str, float | None]:
    """The quantities derived from nll, written beside it for whoever reads the file."""
    names = ("perplexity", "bits_per_byte", "word_perplexity")
    return {name: getattr(result, name) for name in names}


def read(folder: Path) -> list[Result]:
    """All results of a run, the latest of each protocol, length, extension and set of targets."""
    latest: dict[tuple[str, int, str | None, str | None], Result] = {}
    for result in _rows(Result, folder / "results.jsonl"):
        latest[result.protocol, result.length, result.extension, result.targets] = result
    return list(latest.values())


Row = TypeVar("Row", Result, "ProbeResult")  # of results.jsonl, of probes.jsonl


def _rows(kind: type[Row], path: Path) -> Iterator[Row]:
    """Each row of a file. Raises UserError for a value of another type, or one that is missing."""
    types = typing.get_type_hints(kind)
    for row in read_rows(path):
        try:
            checks.require_types(row, types)
            if not row.get("protocol", "probe").strip():
                raise ValueError("protocol is empty")
            yield kind(**{key: value for key, value in row.items() if key in types})
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not a row of results ({error})") from error


@dataclasses.dataclass(frozen=True)
class TokenLosses:
    """The loss of every scored token in nats [N], and where each one stands."""

    losses: np.ndarray
    documents: np.ndarray  # [N] number of the document
    distances: np.ndarray  # [N] tokens from the document's start, BOS is 0
    contexts: np.ndarray  # [N] tokens seen, memory included


def save_losses(
    folder: Path, result: Result, windows: Sequence[Window], losses: np.ndarray | None
) -> None:
    """Write arrays losses [N] and windows [W, 5] for `read_losses`; None deletes earlier ones.

    A window's columns are document, start, length, scored and memory: its losses are the next
    `scored` ones, of the last so many positions of `length`. Of a masked model's windows there are
    arrays of where each token stands instead, as in TokenLosses.
    """
    path = _losses_path(folder, result)
    require_own(path.parent)
    if losses is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        name, array = _where(windows)
        np.savez(file, allow_pickle=False, **{"losses": losses.astype(np.float32), name: array})


def _where(windows: Sequence[Window]) -> tuple[str, np.ndarray]:
    if type(windows[0]) is Window:
        return "windows", np.array([dataclasses.astuple(window) for window in windows])
    told = [(w.document, at, w.length - 1) for w in windows for at in w.places()]
    return "places", np.array(told, dtype=np.int64)


def read_losses(folder: Path, result: Result) -> TokenLosses | None:
    """What `save_losses` kept; None if there is nothing. Raises ValueError for a damaged file."""
    path = _losses_path(folder, result)
    if not path.is_file():
        return None
    try:
        _require_flat(path)
        with np.load(path, allow_pickle=False) as kept:
            losses = kept["losses"].astype(np.float64)
            if "places" in kept:
                return _at_places(losses, kept["places"], result)
            windows = kept["windows"]
        _require_losses(losses, windows, result)
    except (*DAMAGED, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    document, start, length, scored, memory = windows.T
    row = np.repeat(np.arange(len(windows)), scored)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(scored) - scored, scored)
    inside = (length - scored)[row] + nth + 1  # tokens of the window up to the target
    return TokenLosses(
        losses=losses,
        documents=document[row],
        distances=start[row] + inside,
        contexts=inside + memory[row],
    )


def _at_places(losses: np.ndarray, places: np.ndarray, result: Result) -> TokenLosses:
    """Raise ValueError for arrays that are not the losses of a result."""
    if losses.shape != (result.tokens,) or not np.isfinite(losses).all():
        raise ValueError(f"not the losses of {result.tokens} tokens")
    whole = places.shape == (len(losses), 3) and places.dtype == np.int64
    if not whole or (places < 0).any() or (places >= 2**40).any():
        raise ValueError("not the places of these losses")
    order = np.lexsort(places.T[1::-1])  # by document and place, the same at every length
    return TokenLosses(losses[order], *places[order].T)


def _require_flat(path: Path) -> None:
    """Raise ValueError for an archive that is larger than its file, as `np.savez` makes none."""
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise ValueError("compressed, which is none of posbench's")


def _require_losses(losses: np.ndarray, windows: np.ndarray, result: Result) -> None:
    """Raise ValueError for arrays that are not the losses of a result."""
    if losses.shape != (result.tokens,) or not np.isfinite(losses).all():
        raise ValueError(f"not the losses of {result.tokens} tokens")
    whole = windows.ndim == 2 and windows.shape[1] == 5 and windows.dtype == np.int64
    if not whole or (windows < 0).any() or windows[:, 3].sum() != len(losses):
        raise ValueError("not the windows of these losses")
    if (windows[:, 3] > len(losses)).any() or (windows >= 2**40).any():
        raise ValueError("windows that no document has")


def _losses_path(folder: Path, result: Result) -> Path:
    words = [result.protocol, str(result.length), str(result.targets), result.extension or ""]
    name = re.sub(r"[^\w.=+-]+", "-", "-".join(word for word in words if word))
    return folder / "losses" / f"{name}.npz"


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """One distance of one probe. Where it cannot be had, reason says why and there are no hits.

    hits: trials in which the answer has the highest logit of the candidates. lifts: in which it is
    the one whose logit the plant raised most, against the same window without it: what a model
    expects anyway, which drowns a weak recall, cancels out. Chance is 1 / candidates for both.
    by_document holds [document, hits, lifts, trials]; trials_hash is the same at all distances.
    """

    probe: str
    distance: int
    hits: int | None
    trials: int
    candidates: int
    documents: int
    trials_hash: str
    reason: str | None = None
    extension: str | None = None
    lifts: int | None = None
    by_document: list[list[int]] = dataclasses.field(default_factory=list)

    @property
    def recall(self) -> float | None:
        return None if self.hits is None else self.hits / self.trials

    @property
    def lift(self) -> float | None:
        return None if self.lifts is None else self.lifts / self.trials


def append_probe(folder: Path, result: ProbeResult) -> None:
    shown = {"recall": result.recall, "lift": result.lift}
    append_row(folder / "probes.jsonl", dataclasses.asdict(result) | shown)


def read_probes(folder: Path) -> list[ProbeResult]:
    """All probe results of a run, the latest of each probe, distance, extension and trials."""
    latest: dict[tuple[str, int, str | None, str], ProbeResult] = {}
    for result in _rows(ProbeResult, folder / "probes.jsonl"):
        latest[result.probe, result.distance, result.extension, result.trials_hash] = result
    return list(latest.values())
