"""Where documents come from: each class is one conf/corpus/<name>.yaml."""

from posbench.sources.base import SPLITS, Document, Source
from posbench.sources.files import Files
from posbench.sources.hub import Hub, WikiText
from posbench.sources.packages import ChinaLaw, Sympy
from posbench.sources.sotu import Sotu

__all__ = [
    "SPLITS",
    "ChinaLaw",
    "Document",
    "Files",
    "Hub",
    "Sotu",
    "Source",
    "Sympy",
    "WikiText",
]
