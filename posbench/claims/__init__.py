"""The eleven claims of the mission's documents: each a property tried now, or a measurement read
from finished runs."""

from posbench.claims.properties import properties_of
from posbench.claims.verdict import Verdict

__all__ = ["Verdict", "properties_of"]
