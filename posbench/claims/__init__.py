"""The eleven claims of the mission's documents, each checked.

A claim is either a property, tried on the encoding now (properties.py), or a measurement, read
from finished runs (measured.py). May import report, model and encodings. A new claim is a text in
texts.py and an entry of PROPERTIES or ANSWERS; tests/claims.
"""

from posbench.claims.properties import properties_of
from posbench.claims.verdict import Verdict

__all__ = ["Verdict", "properties_of"]
