"""How many processes torchrun started, by what it leaves in the environment. Without torch."""

from __future__ import annotations

import os


def processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    return int(os.environ.get("RANK", "0"))
