"""What is checked, in which order and for how long: 480 seconds in all.

Timings come alone, but for the rough ones of `graphs`, and the rest at once: on a GPU most of its
time is compilation, by the CPU. What `steps` and `compiled` compile is in PyTorch's cache on disk
when `gpt125m` and `speed` need it.
"""

from __future__ import annotations

from scripts.gpu import seen
from scripts.gpu.part import Part, Plan, Settings

ONE_EACH = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # many at once
SOME = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}


def plan(settings: Settings) -> Plan:
    """Groups of parts; the parts of a group run at once."""
    few = settings.rehearse
    return [
        [Part("facts", "scripts.gpu.facts", seen.facts, 50, 40)],
        [
            Part("flex", "scripts.gpu.flex", seen.flex, 190, 60, 1 if few else 5, ONE_EACH),
            Part("recompiles", "scripts.gpu.recompiles", seen.recompiles, 190, 120, 1, ONE_EACH),
            Part("tests", "scripts.gpu.suite", seen.suite, 190, 190, 1, ONE_EACH),
            Part("demo", "scripts.gpu.demo", seen.demo, 190, 120, 1 if few else 2, ONE_EACH),
            Part("steps", "scripts.gpu.steps", seen.steps, 190, 60, 1 if few else 3, ONE_EACH),
            Part("compiled", "scripts.gpu.compiled", seen.steps, 190, 150, 1 if few else 2, SOME),
            Part("graphs", "scripts.gpu.graphs", seen.graphs, 190, 150, 1 if few else 2, SOME),
        ],
        [Part("gpt125m", "scripts.gpu.gpt125m", seen.gpt125m, 110, 70)],
        [Part("speed", "scripts.gpu.speed", seen.speed, 130, 45)],
    ]
