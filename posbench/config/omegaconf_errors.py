"""How omegaconf's errors read in one line."""

from __future__ import annotations

import re

from omegaconf.errors import OmegaConfBaseException

from posbench.config.loading import known_keys
from posbench.config.schemas import SCHEMAS
from posbench.errors import nearest, one_line


@one_line.register
def _(error: OmegaConfBaseException) -> str:
    first = str(error.msg or error).splitlines()[0]
    if "is not a ListConfig" in first:
        first = "must be a list, as in [1,2]"
    key = error.full_key or ""
    if "Missing mandatory value" in first or "MissingMandatory" in type(error).__name__:
        return f"{key}: must be given, e.g. {key}=..."
    if "'None' for field" in first or "is not Optional" in first:
        named = key or re.sub("field '(.*)' is not Optional", r"\1", first)
        return f"{named}: must not be null"
    if re.match(r"Key '.*' not in '", first):
        return no_such_key(key)
    if "Interpolation key 'hydra." in first:
        first += "; Hydra's own are written ${hydra:...}, with a colon"
    return f"{key}: {first}" if key and key not in first else first


def no_such_key(key: str) -> str:
    """A line that says so, with the most similar key. Left out: the key itself, which another
    command may have, and the groups that it is in."""
    known = {other for schema in SCHEMAS for other in known_keys(schema)}
    others = {other for other in known if other != key and not key.startswith(f"{other}.")}
    return f"{key}: there is no such key{nearest(key, others)}"
