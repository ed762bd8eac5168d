"""Where documents come from: each class is one conf/corpus/<name>.yaml."""

from posbench.corpus.sources.base import SPLITS, Document, Source
from posbench.corpus.sources.files import Files
from posbench.corpus.sources.hub import Hub, WikiText
from posbench.corpus.sources.packages import ChinaLaw, Sympy
from posbench.corpus.sources.sotu import Sotu

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
