"""What encodings cost in speed and peak RAM, from finished runs of one machine.

On a CPU the peak is that of the whole process, and differs by a sixth even between schemes that
leave attention unchanged: a scheme costs more only if it exceeds all of these. Only "tokens of
memory" (memory_length) means Transformer-XL's segment memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from posbench.claims.answers import Answer
from posbench.claims.evidence import Evidence, Measured
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL

DEARER = 1.1  # cost ratio that counts; timings of one run repeat within a few percent
MIB = 2**20

Figures = Iterable[tuple[str, float | None]]


def xl_speed(found: Evidence) -> Answer | None:
    """Transformer-XL against the slowest encoding that leaves attention unchanged."""
    if (used := _xl_and_plain(found)) is None:
        return None
    xl, *plain = used
    holds = xl.train_speed * DEARER < min(measured.train_speed for measured in plain)
    return Answer(holds, _speeds(found, used) + _remembering(xl), used)


def xl_weight(found: Evidence) -> Answer | None:
    """Transformer-XL against the largest peak RAM of those that leave attention unchanged."""
    if (used := _xl_and_plain(found)) is None:
        return None
    xl, *plain = used
    holds = xl.train_memory > DEARER * max(measured.train_memory for measured in plain)
    return Answer(holds, _memories(found, used) + _remembering(xl), used)


def deberta_most(found: Evidence) -> Answer | None:
    """The slowest in training of the documents' schemes."""
    deberta, xl = found.one(DeBERTa, c2p=True, p2c=True), _xl(found)
    alone = [found.one(kind) for kind in (Shaw, T5Bias, RoPE, ALiBi)]
    others = [m for m in (*alone, xl, *_plain(found)) if m is not None]
    if deberta is None or not others or not _one_machine([deberta, *others]):
        return None
    used = sorted([deberta, *others], key=lambda measured: measured.train_speed)
    return Answer(used[0] is deberta, _speeds(found, used) + _remembering(xl), used)


def bias_cost(found: Evidence) -> Answer | None:
    """Whether every scalar bias is slower than RoPE."""
    rope = found.one(RoPE)
    biases = [m for m in (found.one(T5Bias), found.one(ALiBi, slopes="paper")) if m is not None]
    if rope is None or not biases or not _one_machine([rope, *biases, *_plain(found)]):
        return None
    holds = all(measured.train_speed * DEARER < rope.train_speed for measured in biases)
    used = [rope, *biases, *_plain(found)]
    return Answer(holds, f"{_speeds(found, used)}; {_memories(found, used)}", used)


def _xl(found: Evidence) -> Measured | None:
    """Transformer-XL, if possible without segment memory, which gives it more keys than others."""
    return found.one(TransformerXL, memory_length=0) or found.one(TransformerXL)


def _xl_and_plain(found: Evidence) -> list[Measured] | None:
    xl, plain = _xl(found), _plain(found)
    if xl is None or not plain or not _one_machine([xl, *plain]):
        return None
    return [xl, *plain]


def _remembering(xl: Measured | None) -> str:
    tokens = xl.setting(TransformerXL, "memory_length") if xl else 0
    return f"; {xl.name} with {tokens:,} tokens of memory" if xl and tokens else ""


def _plain(found: Evidence) -> list[Measured]:
    """The encodings that leave attention as it is."""
    kinds = (found.one(kind) for kind in (NoPE, Sinusoidal, Learned))
    return [measured for measured in kinds if measured is not None]


def _one_machine(compared: Sequence[Measured]) -> bool:
    keys = ("device", "device_name", "threads", "platform")
    runs = [run for measured in compared for run in measured.runs]
    return len({tuple(run.provenance.get(key) for key in keys) for run in runs}) == 1


def _speeds(found: Evidence, compared: Sequence[Measured]) -> str:
    training = ((m.name, m.train_speed) for m in compared)
    scoring = ((m.name, m.speed(found.longest)) for m in compared)
    return f"tok/s {_listed(found, training, scoring)}"


def _memories(found: Evidence, compared: Sequence[Measured]) -> str:
    training = ((m.name, m.train_memory / MIB) for m in compared)
    peaks = ((m.name, m.memory(found.longest)) for m in compared)
    scoring = ((name, None if peak is None else peak / MIB) for name, peak in peaks)
    return f"MiB {_listed(found, training, scoring)}"


def _listed(found: Evidence, training: Figures, scoring: Figures) -> str:
    parts = {"in training": training, f"scoring at {found.longest:,}": scoring}
    listed = {when: _numbers(figures) for when, figures in parts.items()}
    return "; ".join(f"{when}: {numbers}" for when, numbers in listed.items() if numbers)


def _numbers(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in figures if value is not None)
