"""One file a paper: formula, class. The contract is in base.py."""

from posbench.encodings.base import Encoding, Shape, Span

__all__ = ["Encoding", "Shape", "Span"]
