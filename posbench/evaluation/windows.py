"""A window of a document, and the protocol that chooses windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from posbench.config import EvalConfig
from posbench.errors import UserError

Documents = Sequence[np.ndarray]  # each: BOS and the document's tokens


@dataclass(frozen=True)
class Window:
    """Inputs document[start : start + length]; the last `scored` next tokens count.

    memory: how many tokens of the document's earlier windows are keys too (segment memory).
    """

    document: int
    start: int
    length: int
    scored: int
    memory: int = 0

    def targets(self) -> slice | np.ndarray:
        """Where the scored tokens stand in the document, to index it."""
        end = self.start + self.length + 1
        return slice(end - self.scored, end)

    def places(self) -> Sequence[int]:
        """The same as numbers."""
        end = self.start + self.length + 1
        return range(end - self.scored, end)


class EvaluationProtocol(Protocol):
    """Says which tokens are scored, and with which context. windows raises UserError where the
    documents are too short."""

    label: str  # with every setting but the length that changes the result

    def __init__(self, config: EvalConfig) -> None: ...

    def windows(self, documents: Documents, length: int) -> list[Window]:
        """Each document's windows in order."""


def too_short(documents: Documents, longest: int) -> UserError:
    tokens = max((len(document) for document in documents), default=0)
    return UserError(
        f"eval.lengths: {longest} needs a test document of {longest + 1} tokens, but the corpus's "
        f"longest has {tokens}; give shorter eval.lengths or longer documents"
    )
