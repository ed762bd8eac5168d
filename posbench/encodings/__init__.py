"""Positional encodings: one file for each paper; base.py is the class that all inherit from.

Imports nothing else of posbench. To add one: a file here, a yaml of its name in conf/encoding, and
its formula written out for tests/encodings (tests/helpers/naive.py and naive_more.py).
"""

from posbench.encodings.base import Encoding, Shape, Span

__all__ = ["Encoding", "Shape", "Span"]
