"""One encoding, shown: its parts, its parameters, its costs and what it does to attention.

Everything is read off the encoding itself; no encoding is known by its name.
"""

from posbench.attention.cells import Served, served

__all__ = ["Served", "served"]
