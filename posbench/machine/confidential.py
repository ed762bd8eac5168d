"""The environment's secrets, keys, tokens and passwords: they go into no run folder and no log."""

from __future__ import annotations

import os
import re

NAMED = re.compile(r"(KEY|TOKEN|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL)S?$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter one could be any word


def secrets() -> dict[str, str]:
    """Value -> name of each variable that looks like a secret. Paths of secrets are none."""
    found = {value: name for name, value in os.environ.items() if NAMED.search(name)}
    return {v: n for v, n in found.items() if len(v) >= SHORTEST and v[0] not in "/~"}


def secret_in(text: str) -> str | None:
    """The name of the variable whose secret a text contains, if any."""
    return next((name for value, name in secrets().items() if value in text), None)


def redacted(text: str) -> str:
    """The text with <VARIABLE> in place of each secret."""
    for value, name in sorted(secrets().items(), key=lambda found: -len(found[0])):
        text = text.replace(value, f"<{name}>")
    return text
