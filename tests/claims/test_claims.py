"""The claims' properties: each holds for the shipped encoding, and fails on a planted fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hydra import compose, initialize_config_module

from posbench import config
from posbench.claims import Verdict, absolute, decoder, probe, properties_of, scalars, vectors
from posbench.claims import properties as properties_module
from posbench.claims.texts import (
    ALIBI_FREE,
    DEBERTA_SCALE,
    DEBERTA_TERMS,
    LEARNED_ENDS,
    RELATIVE_STAYS,
    T5_TABLE,
    VECTORS_CONTENT,
)
from posbench.claims.verdict import FAILS, HOLDS, Finding
from posbench.encodings import Encoding, Shape
from posbench.encodings.shaw import Shaw
from tests.helpers import claims_faults as faults

SHAPE = Shape(width=16, heads=2, layers=2)
Check = Callable[[Encoding], Finding]


PLANTED: list[tuple[Check, Callable[[Shape], Encoding]]] = [
    (absolute.linear, faults.WarpedSinusoid),
    (absolute.fixed, faults.SinusoidOfTheWindow),
    (absolute.ends, faults.WrappedTable),
    (absolute.moves, faults.SinusoidFromTheStart),
    (absolute.stays, faults.ALiBiOfPosition),
    (vectors.shaw_splits, faults.ShawWithBias),
    (vectors.shaw_clips, faults.ShawWithoutClip),
    (vectors.xl_terms, faults.XLWithoutC),
    (vectors.xl_any, faults.XLClamped),
    (vectors.xl_keys, faults.XLWithOneProjection),
    (vectors.xl_query, faults.XLOfThePosition),
    (vectors.xl_memory, faults.XLOfTheSegment),
    (vectors.xl_product, faults.XLWithoutR),
    (scalars.t5_table, faults.T5OfEachLayer),
    (scalars.t5_buckets, faults.T5WithAnEdgeMoved),
    (scalars.t5_buckets, faults.T5WithoutAnEnd),
    (vectors.deberta_terms, faults.DeBERTaWithAFourthTerm),
    (vectors.deberta_scale, faults.DeBERTaScaledByTwo),
    (vectors.deberta_sides, faults.DeBERTaSymmetric),
    (scalars.rope_relative, faults.RoPEOfOneSide),
    (scalars.no_parameters, faults.RoPEWithAParameter),
    (scalars.unmasked, faults.RoPEWithBias),
    (scalars.alibi_linear, faults.ALiBiOfContent),
    (scalars.alibi_linear, faults.ALiBiOfRoots),
    (scalars.alibi_linear, faults.ALiBiOfOneSlope),
    (scalars.no_product, faults.ALiBiWithVectors),
    (scalars.masked, faults.ALiBiWithoutBias),
    (scalars.without_content, faults.ALiBiOfContent),
    (scalars.with_content, faults.RoPEAsBias),
]


@pytest.mark.parametrize(
    ("check", "make"), PLANTED, ids=[f"{c.__name__}-{m.__name__}" for c, m in PLANTED]
)
def test_a_planted_fault_is_found(check: Check, make: Callable[[Shape], Encoding]) -> None:
    with torch.no_grad():
        assert not check(probe.drawn(make(SHAPE))).holds


def test_every_check_has_a_planted_fault() -> None:
    checked = {p.check for p in properties_module.PROPERTIES}
    assert {check for check, _ in PLANTED} == checked - {decoder.reinjects}, "see test_decoder.py"


def test_every_property_holds_for_the_shipped_encodings_but_one() -> None:
    verdicts = properties_module.properties()
    assert {v.number for v in verdicts} == set(range(1, 12))
    assert [v.claim for v in verdicts if v.verdict != HOLDS] == [VECTORS_CONTENT.text]


def test_additive_vectors_are_said_not_to_depend_on_content_and_do() -> None:
    with torch.no_grad():
        assert not scalars.without_content(probe.drawn(Shaw(SHAPE))).holds
        assert scalars.without_content(probe.drawn(faults.ShawOfScalars(SHAPE))).holds


def of(name: str, *words: str) -> list[Verdict]:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("train", [f"encoding={name}", "run.name=x", *words])
    return properties_of(config.load(node, config.Config))


def said(verdicts: list[Verdict], text: str) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.claim == text)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("sinusoidal", {1, 3}),
        ("learned", {2, 3}),
        ("shaw", {3, 4, 10, 11}),
        ("transformer_xl", {3, 5, 10, 11}),
        ("t5", {3, 6, 10, 11}),
        ("deberta", {3, 7, 10, 11}),
        ("rope", {3, 8, 11}),
        ("alibi", {3, 9, 10, 11}),
        ("kerple_log", {3, 10, 11}),
        ("cope", {3}),
        ("nope", set()),
        ("irope", set()),
    ],
)
def test_a_configuration_gets_the_claims_about_its_class(name: str, numbers: set[int]) -> None:
    verdicts = of(name)
    assert {verdict.number for verdict in verdicts} == numbers
    failing = {verdict.claim for verdict in verdicts if verdict.verdict == FAILS}
    assert failing == ({VECTORS_CONTENT.text} & {verdict.claim for verdict in verdicts})


def test_the_verdict_is_about_the_very_encoding() -> None:
    table = said(of("t5", "encoding.buckets=16", "model.heads=8"), T5_TABLE.text)
    assert table.verdict == HOLDS
    assert "16 × 8 = 128" in table.figure
    one_term = of("deberta", "encoding.c2p=false")
    assert "1/sqrt(2 d)" in said(one_term, DEBERTA_SCALE.text).figure
    assert said(one_term, DEBERTA_SCALE.text).verdict == FAILS
    assert said(one_term, DEBERTA_TERMS.text).verdict == FAILS
    assert said(of("alibi_learned"), ALIBI_FREE.text).figure == "4 parameters"
    assert said(of("alibi_learned"), ALIBI_FREE.text).verdict == FAILS
    assert said(of("learned_clamp"), LEARNED_ENDS.text).verdict == FAILS


def test_fire_is_relative_and_not_equivariant() -> None:
    assert said(of("fire"), RELATIVE_STAYS.text).verdict == FAILS


@pytest.mark.parametrize("words", [["model.width=18", "model.heads=2"], ["train.length=1"]])
def test_odd_sizes_do_not_break_it(words: list[str]) -> None:
    for name in ("sinusoidal", "learned"):
        assert of(name, *words)


def test_asking_leaves_the_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    of("transformer_xl")
    assert torch.equal(state, torch.get_rng_state())
