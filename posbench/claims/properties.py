"""Which property of which claim is checked how, and on which encodings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from posbench.attention.cells import CELLS
from posbench.claims import absolute, decoder, probe, scalars, texts, vectors
from posbench.claims.texts import Claim
from posbench.claims.verdict import Finding, Verdict, judged
from posbench.config import Config
from posbench.encodings import Encoding, Shape
from posbench.encodings.alibi import ALiBi
from posbench.encodings.cable import CABLE
from posbench.encodings.cope import CoPE
from posbench.encodings.dape import DAPE
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.fire import FIRE
from posbench.encodings.fox import FoX
from posbench.encodings.kerple import KerpleLog, KerplePower
from posbench.encodings.learned import Learned
from posbench.encodings.p_rope import PRoPE
from posbench.encodings.partial_rope import PartialRoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.encodings.xpos import XPos
from posbench.model import from_config

SHAPE = Shape(width=96, heads=12, layers=2)  # twelve heads: claim 6 counts 32 × 12
MISSION: tuple[Callable[[Shape], Encoding], ...] = (
    Sinusoidal,
    lambda shape: Learned(shape, max_length=128),
    Shaw,
    TransformerXL,
    T5Bias,
    DeBERTa,
    RoPE,
    ALiBi,
)
"""The schemes that the documents describe, as their papers set them."""

OTHERS = (KerpleLog, KerplePower, Sandwich, XPos, PRoPE, PartialRoPE, CoPE, FoX, CABLE, DAPE, FIRE)
"""Relative schemes that they do not."""

VECTORS = (Shaw, TransformerXL, DeBERTa)


@dataclass(frozen=True)
class Property:
    """A claim, the check of it, and the encodings it speaks of."""

    claim: Claim
    check: Callable[[Encoding], Finding]
    applies: Callable[[Encoding], bool]


def of(*classes: type[Encoding]) -> Callable[[Encoding], bool]:
    return lambda encoding: isinstance(encoding, classes)


def is_absolute(encoding: Encoding) -> bool:
    return encoding.fills("embed")


def is_relative(encoding: Encoding) -> bool:
    """Positions enter inside the attention, and nowhere else."""
    return not is_absolute(encoding) and any(map(encoding.fills, CELLS))


def is_bias(encoding: Encoding) -> bool:
    """Scalars by position, and nothing else."""
    filled = {cell for cell in CELLS if encoding.fills(cell)}
    return bool(filled) and filled <= {"distance_bias", "position_bias"}


def is_additive(encoding: Encoding) -> bool:
    """The score is a sum with terms by position, scalars or products."""
    return is_bias(encoding) or isinstance(encoding, VECTORS)


PROPERTIES = (
    Property(texts.SINUSOID_LINEAR, absolute.linear, of(Sinusoidal)),
    Property(texts.SINUSOID_FIXED, absolute.fixed, of(Sinusoidal)),
    Property(texts.LEARNED_ENDS, absolute.ends, of(Learned)),
    Property(texts.ABSOLUTE_MOVES, absolute.moves, is_absolute),
    Property(texts.RELATIVE_STAYS, absolute.stays, is_relative),
    Property(texts.SHAW_SPLITS, vectors.shaw_splits, of(Shaw)),
    Property(texts.SHAW_CLIPS, vectors.shaw_clips, of(Shaw)),
    Property(texts.XL_TERMS, vectors.xl_terms, of(TransformerXL)),
    Property(texts.XL_ANY, vectors.xl_any, of(TransformerXL)),
    Property(texts.XL_KEYS, vectors.xl_keys, of(TransformerXL)),
    Property(texts.XL_QUERY, vectors.xl_query, of(TransformerXL)),
    Property(texts.XL_MEMORY, vectors.xl_memory, of(TransformerXL)),
    Property(texts.XL_PRODUCT, vectors.xl_product, of(TransformerXL)),
    Property(texts.T5_TABLE, scalars.t5_table, of(T5Bias)),
    Property(texts.T5_BUCKETS, scalars.t5_buckets, of(T5Bias)),
    Property(texts.DEBERTA_TERMS, vectors.deberta_terms, of(DeBERTa)),
    Property(texts.DEBERTA_SCALE, vectors.deberta_scale, of(DeBERTa)),
    Property(texts.DEBERTA_SIDES, vectors.deberta_sides, of(DeBERTa)),
    Property(texts.DECODER_REINJECTS, decoder.reinjects, of(DeBERTa)),
    Property(texts.ROPE_RELATIVE, scalars.rope_relative, of(RoPE)),
    Property(texts.ROPE_FREE, scalars.no_parameters, of(RoPE)),
    Property(texts.ROPE_FUSED, scalars.unmasked, of(RoPE)),
    Property(texts.ALIBI_LINEAR, scalars.alibi_linear, of(ALiBi)),
    Property(texts.ALIBI_FREE, scalars.no_parameters, of(ALiBi)),
    Property(texts.ALIBI_PRODUCT, scalars.no_product, of(ALiBi)),
    Property(texts.BIAS_MASK, scalars.masked, is_additive),
    Property(texts.BIAS_CONTENT, scalars.without_content, is_bias),
    Property(texts.VECTORS_CONTENT, scalars.without_content, of(*VECTORS)),
    Property(texts.ROPE_CONTENT, scalars.with_content, of(RoPE)),
)


@torch.no_grad()
def properties_of(config: Config) -> list[Verdict]:
    """What the claims say of a configuration's encoding, tried on it; nothing of a mix, nor of a
    two-sided model: the documents speak of decoders.

    Its parameters are drawn afresh: a property holds whatever they are. Raises UserError.
    """
    shape = from_config.shape(config)
    if shape.two_sided:
        return []
    (encoding,) = _drawn([lambda _: from_config.encoding(config.encoding, shape)])
    if encoding.at(0)[0] is not encoding:
        return []
    return [judged(p.claim, p.check(encoding)) for p in PROPERTIES if p.applies(encoding)]


@torch.no_grad()
def properties() -> list[Verdict]:
    """Every property, tried on the documents' schemes that it speaks of."""
    mission, others = _drawn(MISSION), _drawn(OTHERS)
    return [_judged(each, mission, others) for each in PROPERTIES]


def _drawn(makers: Iterable[Callable[[Shape], Encoding]]) -> list[Encoding]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [probe.drawn(make(SHAPE)) for make in makers]


def _judged(asked: Property, mission: Sequence[Encoding], others: Sequence[Encoding]) -> Verdict:
    """The documents' schemes decide; others are named beside them where all are meant."""
    found = _findings(asked, mission)
    holds = all(finding.holds for finding in found.values())
    figure = _together(found) if len(found) > 1 else next(iter(found.values())).figure
    if asked.claim is texts.RELATIVE_STAYS:
        figure += f". Beyond the documents: {_together(_findings(asked, others))}"
    return judged(asked.claim, Finding(holds, figure))


def _findings(asked: Property, encodings: Sequence[Encoding]) -> dict[str, Finding]:
    return {type(e).__name__: asked.check(e) for e in encodings if asked.applies(e)}


def _together(found: dict[str, Finding]) -> str:
    """Figures, each once, after the names that share it."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, finding in found.items():
        names[finding.figure].append(name)
    return "; ".join(f"{', '.join(shared)}: {figure}" for figure, shared in names.items())
