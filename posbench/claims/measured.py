"""The claims that finished runs decide: what each compares, and what it takes to hold.

An answer is None where the runs at hand do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posbench.claims import costs, decoder, texts
from posbench.claims.answers import Answer, far, seeds, trained, versus
from posbench.claims.evidence import Evidence, Measured, evidence
from posbench.claims.texts import Claim
from posbench.claims.verdict import Finding, Verdict, judged, unmeasured
from posbench.encodings.alibi import ALiBi
from posbench.encodings.deberta import DeBERTa
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.sinusoidal import Sinusoidal
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.report.reading.collect import Run
from posbench.report.writing.wording import number

Ask = Callable[[Evidence], Answer | None]

# Five seeds of one model spread by 1.3 percent in Press 2022.
EXTRAPOLATES = 1.05  # ratio at the longest length; Press 2022 says of T5, 1.04, that it does
EQUAL = 1.05  # ratio at the training length: "about equal" is several spreads wide
MATTERS = 1.02  # what leaving a term out must cost: more than the spread
TIED = 1.01  # ratios this close do not rank
SMALL_K = 16  # Shaw's base model; the documents say 2
LEAST_K = 2  # below, Shaw 2018 loses quality too (table 3)


def sinusoid_falls(found: Evidence) -> Answer | None:
    measured = found.one(Sinusoidal)
    if measured is None or (ratio := found.ratio(measured)) is None:
        return None
    return Answer(ratio > EXTRAPOLATES, far(found, measured), [measured])


def learned_fails(found: Evidence) -> Answer | None:
    """A table that refuses, or reads on from its last row, whichever was run."""
    fails, figures, used = [], [], []
    for beyond in ("refuse", "clamp"):
        measured = found.one(Learned, beyond=beyond)
        if measured is None:
            continue
        used.append(measured)
        if (reason := measured.reasons.get(found.longest)) is not None:
            fails.append(True)
            figures.append(f"{trained(found, measured)} → n/a at {found.longest:,}: {reason}")
        elif (ratio := found.ratio(measured)) is not None:
            fails.append(ratio > EXTRAPOLATES)
            figures.append(far(found, measured))
    return Answer(all(fails), "; ".join(figures), used) if fails else None


def learned_interpolated(found: Evidence) -> Answer | None:
    measured = found.one(Learned, beyond="interpolate")
    if measured is None or (ratio := found.ratio(measured)) is None:
        return None
    return Answer(ratio <= EXTRAPOLATES, far(found, measured), [measured])


def shaw_small_k(found: Evidence) -> Answer | None:
    """The smallest k against the best of all."""
    by_k = sorted(found.all(Shaw, values=True), key=_k)
    by_k = [m for m in by_k if _k(m) >= LEAST_K and found.train_length in m.perplexity]
    if len({_k(m) for m in by_k}) < 2 or _k(by_k[0]) > SMALL_K:
        return None
    best = min(map(found.trained, by_k))
    values = ", ".join(f"k = {_k(m)} {number(found.trained(m))}" for m in by_k)
    holds = found.trained(by_k[0]) <= EQUAL * best
    return Answer(holds, f"{values} at {found.train_length:,}", by_k)


def _k(measured: Measured) -> int:
    return int(measured.setting(Shaw, "k"))


def shaw_keys(found: Evidence) -> Answer | None:
    for keys in found.all(Shaw, values=False):
        both = found.one(Shaw, values=True, k=_k(keys))
        if both is not None and found.train_length in keys.perplexity:
            holds = found.trained(keys) <= EQUAL * found.trained(both)
            plain = found.one(NoPE)
            used = [keys, both, *([plain] if plain else [])]
            return Answer(holds, versus(found, used), used)
    return None


def t5_quality(found: Evidence) -> Answer | None:
    t5 = found.one(T5Bias)
    vectors = [found.one(kind) for kind in (Shaw, TransformerXL, DeBERTa)]
    others = [measured for measured in vectors if measured is not None]
    if t5 is None or not others:
        return None
    ratios = [found.trained(t5) / found.trained(other) for other in others]
    holds = all(1 / EQUAL <= ratio <= EQUAL for ratio in ratios)
    return Answer(holds, versus(found, [t5, *others]), [t5, *others])


def deberta_needs(found: Evidence) -> Answer | None:
    both = found.one(DeBERTa, c2p=True, p2c=True)
    without = [
        found.one(DeBERTa, c2p=False, p2c=True),
        found.one(DeBERTa, c2p=True, p2c=False),
    ]
    one_term = [measured for measured in without if measured is not None]
    if both is None or len(one_term) < 2:
        return None
    holds = all(found.trained(m) >= MATTERS * found.trained(both) for m in one_term)
    labels = ("both terms", "p→c alone", "c→p alone")
    used = [both, *one_term]
    values = [f"{label} {number(found.trained(m))}" for label, m in zip(labels, used, strict=True)]
    return Answer(holds, f"{', '.join(values)} at {found.train_length:,}", used)


def rope_far(found: Evidence) -> Answer | None:
    rope = found.one(RoPE)
    if rope is None or (ratio := found.ratio(rope)) is None:
        return None
    ranked = _ranked(found)
    place = f"ratio {1 + sum(r < ratio for r, _ in ranked)} of {len(ranked)}"
    figure = (
        f"the documents: better than most but ALiBi; measured: {far(found, rope)}, {place}; "
        f"published: {texts.ROPE_PUBLISHED}"
    )
    return Answer(ratio <= EXTRAPOLATES, figure, [m for _, m in ranked])


def alibi_best(found: Evidence) -> Answer | None:
    alibi = found.one(ALiBi, slopes="paper")
    ranked = _ranked(found)
    if alibi is None or (ratio := found.ratio(alibi)) is None or len(ranked) < 2:
        return None
    times = f"{found.longest / found.train_length:g}×"
    better = [m.name for r, m in ranked if r * TIED < ratio]
    tied = [m.name for r, m in ranked if r < ratio]
    place = f"best ratio of {len(ranked)} at {times}"
    if better or tied:
        place = f"behind {', '.join(better)}" if better else f"{place}, with {', '.join(tied)}"
    lowest = min((m for _, m in ranked), key=lambda m: m.perplexity[found.longest])
    figure = (
        f"{far(found, alibi)}; {place}; lowest perplexity there: "
        f"{lowest.name} {number(lowest.perplexity[found.longest])}"
    )
    return Answer(not better, figure, [m for _, m in ranked])


def _ranked(found: Evidence) -> list[tuple[float, Measured]]:
    """Ratios at the longest length, the lowest first, of the encodings that have one."""
    ratios = [(found.ratio(m), m) for m in found.encodings if found.train_length in m.perplexity]
    return sorted(((r, m) for r, m in ratios if r is not None), key=lambda pair: pair[0])


DEMO = "posbench train -m experiment=demo"
PLAIN = "nope,sinusoidal,learned"
K_SWEEP = f"{DEMO} encoding=shaw encoding.k=2,4,16,64 run.name='shaw-k${{encoding.k}}'"
TERMS_SWEEP = (
    f"{DEMO} encoding=deberta encoding.c2p=true,false encoding.p2c=true,false "
    "run.name='deberta-c2p-${encoding.c2p}-p2c-${encoding.p2c}'"
)

DECODER_SWEEP = (
    "posbench train -m experiment=demo_masked tuned=false encoding=deberta seed=1,2,3 "
    "objective.decoder=enhanced objective.query=both objective.positions=none,learned,sinusoidal "
    "run.name='decoder-${objective.positions}'"
)

ANSWERS: tuple[tuple[Claim, Ask, str], ...] = (
    (texts.SINUSOID_FALLS, sinusoid_falls, DEMO),
    (texts.LEARNED_FAILS, learned_fails, f"{DEMO} encoding=learned,learned_clamp"),
    (texts.LEARNED_INTERPOLATED, learned_interpolated, f"{DEMO} encoding=learned_interpolate"),
    (texts.SHAW_SMALL_K, shaw_small_k, K_SWEEP),
    (texts.SHAW_KEYS, shaw_keys, f"{DEMO} encoding=shaw,shaw_keys,nope"),
    (texts.XL_SPEED, costs.xl_speed, f"{DEMO} encoding=transformer_xl_memoryless,{PLAIN}"),
    (texts.XL_WEIGHT, costs.xl_weight, f"{DEMO} encoding=transformer_xl_memoryless,{PLAIN}"),
    (texts.T5_QUALITY, t5_quality, DEMO),
    (texts.DEBERTA_NEEDS, deberta_needs, TERMS_SWEEP),
    (texts.DEBERTA_COST, costs.deberta_most, DEMO),
    (texts.ROPE_FAR, rope_far, DEMO),
    (texts.ALIBI_BEST, alibi_best, DEMO),
    (texts.BIAS_COST, costs.bias_cost, DEMO),
)
"""Each claim, what answers it, and the command whose runs would."""

MASKED_ANSWERS: tuple[tuple[Claim, Ask, str], ...] = (
    (texts.DECODER_NEEDED, decoder.needed, DECODER_SWEEP),
    (
        texts.DECODER_FAR,
        lambda found: decoder.extrapolates(found, EXTRAPOLATES),
        DECODER_SWEEP,
    ),
)
"""The same, of masked models."""


def measured(runs: Sequence[Run]) -> list[Verdict]:
    """Each from the table with the most encodings among those that can answer."""
    tables = evidence(runs)
    of_masked = [table for table in tables if table.masked]
    causal = [table for table in tables if not table.masked]
    return [
        *(_verdict(causal, *answer) for answer in ANSWERS),
        *(_verdict(of_masked, *answer) for answer in MASKED_ANSWERS),
    ]


def _verdict(tables: list[Evidence], claim: Claim, ask: Ask, command: str) -> Verdict:
    answers = (ask(table) for table in tables)
    if (answer := next(filter(None, answers), None)) is None:
        return unmeasured(claim, f"to measure: `{command}`")
    finding = Finding(answer.holds, f"{answer.figure}; {seeds(answer.used)}")
    folders = [str(run.folder) for each in answer.used for run in each.runs]
    return judged(claim, finding, tuple(folders))
