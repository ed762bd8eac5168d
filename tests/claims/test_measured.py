"""The claims' measurements, on fabricated run folders, and the command."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from posbench import cli, config
from posbench.claims import measured, show, texts
from posbench.claims.texts import Claim
from posbench.claims.verdict import FAILS, HOLDS, NOT_MEASURED, Verdict
from posbench.evaluation import results
from posbench.evaluation.results import Result
from posbench.machine.files import write_json
from posbench.model import from_config
from posbench.report.reading import collect
from tests.helpers.toy import train

CLASSES = {
    "nope": "nope.NoPE",
    "sinusoidal": "sinusoidal.Sinusoidal",
    "learned": "learned.Learned",
    "shaw": "shaw.Shaw",
    "transformer_xl": "transformer_xl.TransformerXL",
    "t5": "t5.T5Bias",
    "deberta": "deberta.DeBERTa",
    "rope": "rope.RoPE",
    "alibi": "alibi.ALiBi",
}

# The README's table: perplexity at 128 and 2,048 (None: n/a), tokens/s, MiB.
DEMO: dict[str, tuple[float, float | None, int, int]] = {
    "transformer_xl": (31.33, 31.44, 12_340, 777),
    "deberta": (30.52, 32.02, 13_486, 682),
    "t5": (30.74, 32.41, 18_131, 860),
    "shaw": (31.57, 34.04, 15_210, 674),
    "alibi": (36.78, 36.75, 19_546, 742),
    "nope": (51.32, 54.74, 20_162, 653),
    "sinusoidal": (48.55, 61.45, 19_524, 768),
    "rope": (33.44, 74.52, 17_696, 758),
    "learned": (51.30, None, 20_432, 655),
}


def write_run(
    root: Path,
    kind: str,
    perplexity: dict[int, float | None],
    *,
    name: str = "",
    seed: int = 1,
    speed: float = 1000.0,
    mib: int = 500,
    device: str = "cpu",
    state: str = "done",
    protocol: str = "fixed_targets",
    steps: int = 800,
    objective: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A finished run's folder, as posbench train leaves it."""
    name = name or kind
    folder = root / "demo" / name / f"seed{seed}"
    folder.mkdir(parents=True)
    config = {
        "run": {"root": str(root), "experiment": "demo", "name": name},
        "seed": seed,
        "encoding": {"_target_": f"posbench.encodings.{CLASSES[kind]}", **settings},
        "corpus": {"_target_": "x"},
        "tokenizer": {},
        "model": {"width": 128, "layers": 2, "heads": 4},
        "train": {"length": 128, "steps": steps},
        "optim": {"lr": 1.0},
        "eval": {"protocols": [protocol], "lengths": list(perplexity)},
        "objective": objective or {"_target_": "posbench.objectives.Causal"},
    }
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    write_json(folder / "provenance.json", {"commit": "abc", "device": device})
    write_json(folder / "status.json", {"state": state, "reason": None})
    summary = {"train_tokens_per_second": speed, "train_peak_memory": mib * 2**20}
    write_json(folder / "summary.json", summary | {"positional_parameters": 0})
    for length, value in perplexity.items():
        if value is None:
            row = Result(protocol, length, reason="no position past 128", targets="feed")
        else:
            row = Result(
                protocol,
                length,
                nll=10 * math.log(value),
                tokens=10,
                documents=2,
                targets="feed",
                tokens_per_second=2 * speed,
                peak_memory=mib * 2**20,
            )
        results.append(folder, row)
    return folder


def write_demo(root: Path, *kinds: str) -> None:
    """The README's runs."""
    for kind in kinds or DEMO:
        near, far, speed, mib = DEMO[kind]
        more: dict[str, Any] = {"shaw": {"k": 16}, "transformer_xl": {"memory_length": 128}}
        write_run(root, kind, {128: near, 2048: far}, speed=speed, mib=mib, **more.get(kind, {}))


def verdicts(root: Path) -> dict[Claim, Verdict]:
    found = measured.measured(collect.runs(collect.folders([str(root)])))
    claims = [value for value in vars(texts).values() if isinstance(value, Claim)]
    return {claim: v for claim in claims for v in found if v.claim == claim.text}


def verdict(root: Path, claim: Claim) -> Verdict:
    return verdicts(root)[claim]


def test_without_runs_every_measurement_says_what_would_make_it(tmp_path: Path) -> None:
    found = verdicts(tmp_path)
    assert {v.verdict for v in found.values()} == {NOT_MEASURED}
    assert all("posbench train -m experiment=demo" in v.figure for v in found.values())


def test_an_extended_context_is_not_the_encoding(tmp_path: Path) -> None:
    """posbench eval extension=window flattens RoPE; the claim is about RoPE as trained."""
    write_demo(tmp_path)
    before = verdict(tmp_path, texts.ROPE_FAR)
    (rope,) = tmp_path.rglob("rope/seed1")
    row = Result("fixed_targets", 2048, nll=10.0, tokens=10, targets="feed", extension="window")
    results.append(rope, row)
    assert verdict(tmp_path, texts.ROPE_FAR) == before


def test_the_demo_of_the_readme(tmp_path: Path) -> None:
    write_demo(tmp_path)
    found = {claim: v.verdict for claim, v in verdicts(tmp_path).items()}
    assert found == {
        texts.SINUSOID_FALLS: HOLDS,
        texts.LEARNED_FAILS: HOLDS,
        texts.LEARNED_INTERPOLATED: NOT_MEASURED,
        texts.SHAW_SMALL_K: NOT_MEASURED,
        texts.SHAW_KEYS: NOT_MEASURED,
        texts.XL_SPEED: HOLDS,
        texts.XL_WEIGHT: FAILS,
        texts.T5_QUALITY: HOLDS,
        texts.DEBERTA_NEEDS: NOT_MEASURED,
        texts.DEBERTA_COST: FAILS,
        texts.DECODER_NEEDED: NOT_MEASURED,
        texts.DECODER_FAR: NOT_MEASURED,
        texts.ROPE_FAR: FAILS,
        texts.ALIBI_BEST: HOLDS,
        texts.BIAS_COST: FAILS,
    }


def test_a_figure_has_its_numbers_and_its_runs(tmp_path: Path) -> None:
    write_demo(tmp_path)
    best = verdict(tmp_path, texts.ALIBI_BEST)
    assert "alibi 36.78 at 128 → 36.75 at 2,048, ×1.00; best ratio of 8 at 16×" in best.figure
    assert "one seed: no spread" in best.figure
    assert str(tmp_path / "demo/rope/seed1") in best.runs
    rope = verdict(tmp_path, texts.ROPE_FAR)
    assert "the documents: better than most" in rope.figure
    assert "measured: rope 33.44 at 128 → 74.52 at 2,048, ×2.23, ratio 8 of 8" in rope.figure
    assert "transformer_xl with 128 tokens of memory" in verdict(tmp_path, texts.XL_SPEED).figure


def test_the_other_verdicts(tmp_path: Path) -> None:
    """What the README's runs did not say, said by others."""
    write_run(tmp_path, "sinusoidal", {128: 40.0, 2048: 41.0})
    write_run(tmp_path, "learned", {128: 40.0, 2048: 41.0}, name="clamped", beyond="clamp")
    write_run(tmp_path, "learned", {128: 40.0, 2048: 50.0}, name="spread", beyond="interpolate")
    write_run(tmp_path, "nope", {128: 40.0, 2048: 41.0}, speed=2000, mib=100)
    write_run(tmp_path, "rope", {128: 30.0, 2048: 31.0}, speed=2000)
    write_run(tmp_path, "alibi", {128: 30.0, 2048: 33.0}, speed=1500)
    write_run(tmp_path, "t5", {128: 30.0, 2048: 31.0}, speed=1400)
    write_run(tmp_path, "deberta", {128: 25.0, 2048: 31.0}, speed=900)
    write_run(tmp_path, "transformer_xl", {128: 30.0}, speed=990, mib=900, memory_length=0)
    found = verdicts(tmp_path)
    expected = {
        texts.SINUSOID_FALLS: FAILS,
        texts.LEARNED_FAILS: FAILS,
        texts.LEARNED_INTERPOLATED: FAILS,
        texts.XL_SPEED: FAILS,  # sinusoidal is as slow
        texts.XL_WEIGHT: HOLDS,
        texts.T5_QUALITY: FAILS,
        texts.DEBERTA_COST: HOLDS,
        texts.ROPE_FAR: HOLDS,
        texts.ALIBI_BEST: FAILS,
        texts.BIAS_COST: HOLDS,
    }
    assert {claim: found[claim].verdict for claim in expected} == expected
    assert "behind" in found[texts.ALIBI_BEST].figure


@pytest.mark.parametrize(("large", "expected"), [(31.0, HOLDS), (25.0, FAILS)])
def test_ks_of_shaw_are_told_apart_by_their_settings(
    tmp_path: Path, large: float, expected: str
) -> None:
    write_run(tmp_path, "shaw", {128: 31.5}, name="b", k=4)
    write_run(tmp_path, "shaw", {128: 60.0}, name="none", k=0)  # too small to be meant
    assert verdict(tmp_path, texts.SHAW_SMALL_K).verdict == NOT_MEASURED
    write_run(tmp_path, "shaw", {128: large}, name="a", k=64)
    found = verdict(tmp_path, texts.SHAW_SMALL_K)
    assert found.verdict == expected
    assert f"k = 4 31.50, k = 64 {large:.2f} at 128" in found.figure


@pytest.mark.parametrize(("keys", "expected"), [(31.0, HOLDS), (35.0, FAILS)])
def test_shaws_keys_alone_against_both_at_one_k(
    tmp_path: Path, keys: float, expected: str
) -> None:
    write_run(tmp_path, "shaw", {128: keys}, name="keys", k=16, values=False)
    write_run(tmp_path, "shaw", {128: 30.0}, name="other-k", k=8, values=True)
    assert verdict(tmp_path, texts.SHAW_KEYS).verdict == NOT_MEASURED
    write_run(tmp_path, "shaw", {128: 30.5}, k=16)
    assert verdict(tmp_path, texts.SHAW_KEYS).verdict == expected


@pytest.mark.parametrize(("p2c_alone", "expected"), [(31.5, HOLDS), (30.1, FAILS)])
def test_debertas_terms(tmp_path: Path, p2c_alone: float, expected: str) -> None:
    write_run(tmp_path, "deberta", {128: 30.0})
    write_run(tmp_path, "deberta", {128: 31.0}, name="x", p2c=False)
    assert verdict(tmp_path, texts.DEBERTA_NEEDS).verdict == NOT_MEASURED
    write_run(tmp_path, "deberta", {128: p2c_alone}, name="y", c2p=False)
    found = verdict(tmp_path, texts.DEBERTA_NEEDS)
    assert found.verdict == expected
    assert f"p→c alone {p2c_alone:.2f}, c→p alone 31.00" in found.figure


def test_seeds_are_averaged_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", {128: 30.0, 2048: 60.0}, seed=1)
    write_run(tmp_path, "rope", {128: 34.0, 2048: 68.0}, seed=2)
    found = verdict(tmp_path, texts.ROPE_FAR)
    assert "rope 32.00 at 128 → 64.00" in found.figure
    assert found.figure.endswith("2 seeds")
    assert len(found.runs) == 2


def test_only_what_the_report_compares_is_compared(tmp_path: Path) -> None:
    write_demo(tmp_path, "t5")
    write_run(tmp_path, "shaw", {128: 10.0}, k=16, steps=9000)
    assert verdict(tmp_path, texts.T5_QUALITY).verdict == NOT_MEASURED


def test_the_table_with_the_most_encodings_speaks(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", {128: 10.0, 2048: 10.0}, name="long", steps=9000)
    write_demo(tmp_path, "rope", "alibi")
    assert verdict(tmp_path, texts.ROPE_FAR).verdict == FAILS


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "failed"},
        {"protocol": "nonoverlapping"},
        {"name": "rope", "perplexity": {128: 30.0}},  # not evaluated any further
    ],
)
def test_what_is_no_evidence(tmp_path: Path, changes: dict[str, Any]) -> None:
    far: dict[int, float | None] = {128: 30.0, 2048: 60.0}
    write_run(tmp_path, "rope", changes.pop("perplexity", far), **changes)
    assert verdict(tmp_path, texts.ROPE_FAR).verdict == NOT_MEASURED


def test_speeds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "nope", {128: 30.0}, device="cuda")
    write_run(tmp_path, "transformer_xl", {128: 30.0}, device="cpu")
    assert verdict(tmp_path, texts.XL_SPEED).verdict == NOT_MEASURED


def test_a_name_proves_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi", {128: 30.0, 2048: 30.0}, name="rope")
    assert verdict(tmp_path, texts.ROPE_FAR).verdict == NOT_MEASURED
    write_run(tmp_path, "alibi", {128: 30.0, 2048: 30.0}, name="learned", slopes="learned")
    assert "of 2" in verdict(tmp_path, texts.ALIBI_BEST).figure


COMMANDS = sorted({command for _, _, command in measured.ANSWERS})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_that_would_measure_can_be_given(command: str) -> None:
    """Every job of the sweep composes, under a name of its own."""
    words = shlex.split(command)
    assert words[:3] == ["posbench", "train", "-m"]
    overrides = OverridesParser.create().parse_overrides(words[3:])
    (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    named = "run.name=" in command
    names = set()
    with initialize_config_module("posbench.conf", version_base="1.3"):
        for job in batch:
            node = compose("train", [*job, *([] if named else ["run.name=x"])])
            composed = config.load(node, config.Config)
            from_config.encoding_of(composed)
            names.add(composed.run.name)
    assert len(names) == (len(batch) if named else 1)


def claims(*words: str) -> int:
    return cli.run(["claims", *words])


def test_the_command_without_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    assert claims(f"runs=[{tmp_path}/nothing]", f"folder={folder}") == 0
    shown = capfd.readouterr().out
    assert "not measured" in shown
    assert "holds" in shown
    written = (folder / "claims.md").read_text()
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    assert len(rows) > 40
    assert {row.count(" | ") for row in rows} == {5}
    assert "| measured | not measured | to measure: `posbench train" in written


def test_the_command_reads_real_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "encoding=sinusoidal") == 0
    assert claims(f"runs=[{tmp_path}/outputs]", f"folder={tmp_path}") == 0
    capfd.readouterr()
    (row,) = [r for r in (tmp_path / "claims.md").read_text().splitlines() if "falls past" in r]
    assert "sinusoidal" in row
    assert " at 16 → " in row
    assert "outputs/default/sinusoidal/seed1" in row


@pytest.mark.parametrize(
    ("word", "expected"), [("rnus=[x]", "did you mean runs?"), ("runs=[[x]]", "runs")]
)
def test_a_mistake_is_one_line(
    word: str, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert claims(word) == 1
    said = capfd.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    assert expected in said


def test_text_from_a_run_cannot_break_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", {128: 30.0, 2048: 31.0}, name="a|b<c")
    text = show.markdown([verdict(tmp_path, texts.ROPE_FAR)])
    assert "a\\|b&lt;c 30.00 at 128" in text
