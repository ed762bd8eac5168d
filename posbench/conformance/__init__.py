"""`posbench check`: what every encoding promises, checked on any encoding.

May import model, training, attention and config. A new check is a function from a Subject to a
line of text in attention.py, contract.py or whole.py, and an entry of CHECKS here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from posbench.conformance import attention, contract, whole
from posbench.conformance.subject import Broken, NotApplicable, Subject

__all__ = ["CHECKS", "Finding", "Subject", "findings"]

Check = Callable[[Subject], str]

CHECKS: dict[str, Check] = {
    "yaml keys = constructor": contract.keys_are_the_constructors,
    "optimizer group": contract.optimizer_group,
    "shapes and dtypes": contract.shapes_and_dtypes,
    "only parameters": contract.only_parameters,
    "same seed, same bits": contract.same_seed_same_bits,
    "shared weights = NoPE's": contract.shared_weights_are_nopes,
    "causality": whole.causality,
    "kernels = reference": attention.kernels_agree,
    "float32": attention.single_precision,
    "bfloat16 autocast": attention.half_precision,
    "blocks = whole": attention.blocks_do_not_show,
    "window": attention.window_is_kept,
    "clip": contract.clip_is_kept,
    "translation": attention.translation,
    "memory": whole.memory,
    "gradients": whole.gradients,
    "short, long, short": whole.short_then_long,
    "state-dict round trip": whole.round_trip,
}


@dataclass(frozen=True)
class Finding:
    """One check's outcome. holds is None where the check does not apply to the encoding."""

    name: str
    holds: bool | None
    detail: str


def findings(subject: Subject, only: Collection[str] = CHECKS) -> Iterator[Finding]:
    """The outcomes of the checks named in `only`, in the order of CHECKS."""
    for name, check in ((name, CHECKS[name]) for name in CHECKS if name in only):
        try:
            yield Finding(name, True, check(subject))
        except NotApplicable as reason:
            yield Finding(name, None, str(reason))
        except Broken as fault:
            yield Finding(name, False, str(fault))
        except Exception as error:  # whatever the code under test raises is its fault
            yield Finding(name, False, f"{type(error).__name__}: {error}")
