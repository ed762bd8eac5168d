"""What an evaluation found: typed rows in the run folder's results.jsonl, append-only."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from posbench.files import append_row, read_rows


@dataclasses.dataclass(frozen=True)
class Result:
    """One length under one protocol. Where it cannot be had, reason says why and the rest is None.

    extension names what was done to the trained model's context, e.g. "yarn x8"; None: nothing.
    nll is the sum over the scored tokens in nats (float64), bytes the size of the scored text,
    targets a hash of the scored positions and token ids.
    """

    protocol: str
    length: int
    reason: str | None = None
    nll: float | None = None
    tokens: int | None = None
    bytes: int | None = None
    documents: int | None = None
    targets: str | None = None
    tokens_per_second: float | None = None
    peak_memory: int | None = None
    extension: str | None = None

    @property
    def perplexity(self) -> float | None:
        """exp(sum / count), in the tokenizer's tokens."""
        if self.nll is None or not self.tokens:
            return None
        return math.exp(min(self.nll / self.tokens, 700.0))  # e^700: the edge of a float64

    @property
    def bits_per_byte(self) -> float | None:
        """The same sum in bits over the bytes of the scored text: comparable across tokenizers."""
        return self.nll / math.log(2) / self.bytes if self.nll is not None and self.bytes else None


def append(folder: Path, result: Result) -> None:
    row = dataclasses.asdict(result)
    shown = {"perplexity": result.perplexity, "bits_per_byte": result.bits_per_byte}
    append_row(folder / "results.jsonl", row | shown)


def read(folder: Path) -> list[Result]:
    """All results of a run, the latest of each protocol, length, extension and set of targets."""
    names = {field.name for field in dataclasses.fields(Result)}
    latest: dict[tuple[str, int, str | None, str | None], Result] = {}
    for row in read_rows(folder / "results.jsonl"):
        result = Result(**{key: value for key, value in row.items() if key in names})
        latest[result.protocol, result.length, result.extension, result.targets] = result
    return list(latest.values())
