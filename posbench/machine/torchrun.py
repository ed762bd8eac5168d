"""How many processes torchrun started, read from the environment. Does not import torch."""

from __future__ import annotations

import os

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


def processes() -> int:
    return max(1, _number("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def rank() -> int:
    found = _number("RANK", 0)
    return found if found < processes() else 0  # the variable is left over, or problem() tells


def problem() -> str | None:
    """What is wrong with torchrun's variables, if another program set them or left them over."""
    said = {name: os.environ[name] for name in NUMBERS if name in os.environ}
    alone = processes() == 1 and _is_number(said.get("WORLD_SIZE", "1"))
    if "RANK" not in said or (alone and _is_number(said["RANK"])):
        return None
    odd = [name for name, value in said.items() if not _is_number(value)]
    wrong = [f"{name}={said[name]} is no number" for name in odd]
    if _number("RANK", 0) >= processes():
        wrong.append(f"RANK={said['RANK']} is not below WORLD_SIZE={said['WORLD_SIZE']}")
    if not os.environ.get("MASTER_ADDR"):
        wrong.append("MASTER_ADDR is not set")
    if "MASTER_PORT" not in said:
        wrong.append("MASTER_PORT is not set")
    asks = "RANK in the environment asks for one of torchrun's processes"
    return f"{asks}, but {', '.join(wrong)}: start with torchrun, or unset RANK" if wrong else None


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _number(name: str, default: int) -> int:
    """A variable as a number; 0 if it is not one, which `problem` reports."""
    value = os.environ.get(name, str(default))
    return int(value) if _is_number(value) else 0
