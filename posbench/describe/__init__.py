"""`posbench describe`: one encoding's cells, parameters, costs, and pictures of its attention.

May import claims, model and attention. Everything is read off the encoding itself, none is known
by its name. A new section is a function in terminal.py, called in commands/describe.py.
"""

from posbench.attention.cells import Served, served

__all__ = ["Served", "served"]
