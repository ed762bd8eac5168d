"""What the mission's documents claim of the schemes, part by part."""

from __future__ import annotations

from dataclasses import dataclass

PROPERTY, MEASURED = "property", "measured"


@dataclass(frozen=True)
class Claim:
    """A part of one of the eleven claims."""

    number: int
    kind: str
    text: str


def _property(number: int, text: str) -> Claim:
    return Claim(number, PROPERTY, text)


def _measured(number: int, text: str) -> Claim:
    return Claim(number, MEASURED, text)


SINUSOID_LINEAR = _property(
    1, "Sinusoidal: PE(p + k) = M_k PE(p), one matrix for a k, the same for every p"
)
SINUSOID_FIXED = _property(1, "Sinusoidal: fixed, and defined for any length")
SINUSOID_FALLS = _measured(1, "Sinusoidal: quality falls past the training length")

LEARNED_ENDS = _property(2, "Learned absolute: no vector for a position past the table")
LEARNED_FAILS = _measured(2, "Learned absolute: extrapolation fails")
LEARNED_INTERPOLATED = _measured(2, "Learned absolute: interpolation makes it extrapolate")

ABSOLUTE_MOVES = _property(3, "Absolute schemes lack translation equivariance")
RELATIVE_STAYS = _property(
    3, "Relative schemes are translation equivariant: same distance, same attention"
)

SHAW_SPLITS = _property(4, "Shaw: score = content + content → position, nothing else")
SHAW_CLIPS = _property(4, "Shaw: distances are clipped at k")
SHAW_SMALL_K = _measured(4, "Shaw: a small k is enough")
SHAW_KEYS = _measured(4, "Shaw: relative information in the score is enough")

XL_TERMS = _property(5, "Transformer-XL: four terms (a) to (d) sum to the score")
XL_ANY = _property(5, "Transformer-XL: R is sinusoidal, so any distance is defined")
XL_KEYS = _property(5, "Transformer-XL: keys are projected separately for content and position")
XL_QUERY = _property(5, "Transformer-XL: u and v replace the query's absolute position")
XL_MEMORY = _property(5, "Transformer-XL: so segments with memory equal one window (one layer)")
XL_PRODUCT = _property(5, "Transformer-XL: the price is an extra product q · R")
XL_SPEED = _measured(5, "Transformer-XL: slower than plain attention")
XL_WEIGHT = _measured(5, "Transformer-XL: takes more memory than plain attention")

T5_TABLE = _property(6, "T5: buckets × heads scalars (32 × 12 = 384), one table for all layers")
T5_BUCKETS = _property(
    6, "T5: exact up to B/2 = 16, logarithmic up to 128, one bucket beyond: far context is uniform"
)
T5_QUALITY = _measured(6, "T5: quality about equal to the vector schemes'")

DEBERTA_TERMS = _property(7, "DeBERTa: three terms, position → position dropped")
DEBERTA_SCALE = _property(7, "DeBERTa: scale 1/sqrt(3d)")
DEBERTA_SIDES = _property(7, "DeBERTa: content → position and position → content differ")
DEBERTA_NEEDS = _measured(7, "DeBERTa: neither of the two position terms can be left out")
DEBERTA_COST = _measured(7, "DeBERTa: costs the most compute")
DECODER_REINJECTS = _property(7, "DeBERTa: an enhanced mask decoder re-injects absolute positions")
DECODER_NEEDED = _measured(7, "DeBERTa: without that, what needs absolute positions is lost")
DECODER_FAR = _measured(7, "DeBERTa: with that, longer windows still work")

ROPE_RELATIVE = _property(
    8, "RoPE: q and k turned by absolute positions; the score depends on m − n and content only"
)
ROPE_FREE = _property(8, "RoPE: no parameters")
ROPE_FUSED = _property(8, "RoPE: works with fused attention unchanged")
ROPE_FAR = _measured(8, "RoPE: extrapolates strongly")
ROPE_PUBLISHED = "×1.57 at 4.9× (Press 2022), ×7.64 at 16× (KERPLE 2022), nonoverlapping"

ALIBI_LINEAR = _property(9, "ALiBi: a linear penalty, one slope a head, and nothing else")
ALIBI_FREE = _property(9, "ALiBi: no parameters")
ALIBI_PRODUCT = _property(9, "ALiBi: no extra matrix product")
ALIBI_BEST = _measured(9, "ALiBi: the best extrapolation of all")

BIAS_MASK = _property(10, "An additive bias needs a kernel that takes it")
BIAS_COST = _measured(10, "So an additive bias costs speed, and RoPE does not")

BIAS_CONTENT = _property(11, "Additive biases do not depend on content")
VECTORS_CONTENT = _property(
    11, "Nor do the additive terms of Shaw, Transformer-XL, DeBERTa: v_(j−i) has no q in it"
)
ROPE_CONTENT = _property(11, "RoPE's effect depends on content")
