"""What is asked for is what runs: another value of any key makes other numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench.model import from_config
from posbench.runs.run_folder import flatten
from tests.conformance.test_conformance import composed
from tests.helpers import toy
from tests.helpers.marks import a_few
from tests.helpers.places import ROOT

# Keys that numbers do not depend on: where things go, who is told, and how it is computed.
MUTE = {
    *("run.root", "run.experiment", "run.name", "run.overwrite", "dry_run", "tuned"),
    *("tracking.every", "tracking.to", "tracking.wandb", "tracking.project"),
    *("tracking.checkpoints", "train.checkpoint_every", "train.compile", "model.attention"),
    *("eval.batch_tokens", "runtime.device", "runtime.threads", "runtime.memory_fraction"),
    "runtime.cuda_graphs",
}
CONF = ROOT / "conf"
SIZES = "model.width=48 model.heads=3 model.layers=2 model.feed_forward=8 train.length=32".split()
ASKED = (
    "encoding=alibi train.length=16 train.batch=2 train.accumulate=1 train.steps=4 "
    "eval.lengths=[16,32] eval.targets=8 eval.blocks=4 runtime.dtype=float32"
)
SCORED = (  # for keys of the evaluation: all that they may show in
    "eval.protocols=[fixed_targets,nonoverlapping,sliding,stream] eval.tokens=64 eval.stride=4 "
    "eval.segment=4 eval.probes=[copy] eval.probe_distances=[12] eval.probe_trials=8"
)
OTHERS = (
    *("seed=2", "corpus.path={root}/more", "tokenizer=bpe tokenizer.vocabulary=300"),
    *("model.width=32", "model.heads=4", "model.layers=1", "model.feed_forward=48"),
    *("model.dropout=0.5", "encoding=nope", "train.length=8", "train.batch=3"),
    *("train.accumulate=2", "train.steps=5", "optim.lr=1e-2", "optim.betas=[0.5,0.95]"),
    *("optim.weight_decay=0.5", "optim.warmup=2", "optim.final_lr=0.5", "optim.clip=0.01"),
    *("eval.protocols=[stream]", "eval.lengths=[16,24]", "eval.targets=4", "eval.blocks=3"),
    *("eval.tokens=96", "eval.stride=8", "eval.segment=8", "eval.probes=[passkey]"),
    *("eval.probe_distances=[10]", "eval.probe_trials=6", "runtime.dtype=bfloat16"),
)
MASKED = (  # for keys of the masked objective
    "objective=masked objective.share=0.4 tokenizer=bpe tokenizer.vocabulary=300 encoding=rope "
    "eval.protocols=[fixed_targets,nonoverlapping] eval.tokens=64"
)
OTHER_MASKED = (
    *("objective.share=0.2", "objective.masked=0.4", "objective.random=0.2", "objective.spans=3"),
    *("objective.decoder=enhanced", "eval.folds=3"),
)
ENHANCED = f"{MASKED} objective.decoder=enhanced"
OTHER_ENHANCED = (
    *("objective.passes=1", "objective.query=both", "objective.positions=sinusoidal"),
    *("objective.max_length=64", "objective.beyond=clamp"),
)


def numbers(root: Path, name: str, *more: str) -> list[Any]:
    """What a run of this name, made now, recorded."""
    assert toy.train(root, ASKED, f"run.name={name}", *more) == 0
    return recorded(root, name)


def recorded(root: Path, name: str) -> list[Any]:
    """All rows of a run, but for times and names."""
    folder = next((root / "outputs").glob(f"default/{name}/seed*"))
    files = [folder / f"{kind}.jsonl" for kind in ("metrics", "results", "probes")]
    written = [path for path in files if path.is_file()]
    rows = [json.loads(line) for path in written for line in path.read_text().splitlines()]
    told = ("loss", "nll", "protocol", "length", "tokens", "distance", "trials")
    return [{key: row.get(key) for key in (*told, "probe", "by_document")} for row in rows]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("asked")
    toy.write_text(made / "more", words=800)
    bases = {"plain": "", "scored": SCORED, "masked": MASKED, "enhanced": ENHANCED}
    for name, more in bases.items():
        numbers(made, name, more)
    return made


def test_each_key_is_told_of_here() -> None:
    others = (*OTHERS, *OTHER_MASKED, *OTHER_ENHANCED)
    changed = {word.split("=")[0] for other in others for word in other.split()}
    classes = ("corpus", "tokenizer", "encoding")
    told = flatten(asdict(composed("objective=masked")))
    keys = {key for key in told if key.split(".")[0] not in classes} - {"objective._target_"}
    assert keys - MUTE - changed == set()
    assert keys >= MUTE


@pytest.mark.parametrize("other", a_few([*OTHERS], 6))
def test_another_value_makes_other_numbers(root: Path, other: str) -> None:
    base, more = ("scored", SCORED) if other.startswith("eval.") else ("plain", "")
    name = "".join(c for c in other if c.isalnum())
    assert numbers(root, name, more, other.format(root=root)) != recorded(root, base)


@pytest.mark.parametrize(
    ("base", "other"),
    a_few([("masked", o) for o in OTHER_MASKED] + [("enhanced", o) for o in OTHER_ENHANCED], 3),
)
def test_another_value_makes_other_numbers_of_a_masked_model(
    root: Path, base: str, other: str
) -> None:
    more = {"masked": MASKED, "enhanced": ENHANCED}[base]
    name = base + "".join(c for c in other if c.isalnum())
    assert numbers(root, name, more, other) != recorded(root, base)


# With three heads ALiBi's two formulas for slopes differ.
WORDS = {
    "paper": "learned",
    "geometric": "paper",
    "learned": "paper",
    "half": "interleaved",
    "interleaved": "half",
    "refuse": "clamp",
    "clamp": "interpolate",
    "symmetric": "offset",
    "interpolate": "clamp",
}


def another(key: str, value: Any) -> Any:
    """A value that a user might give instead."""
    if key.endswith(("p2c_index", "fraction")):
        return {"paper": "code", 0.75: 0.5, 0.25: 0.5}[value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value[:-2], *reversed(value[-2:])]  # two layers, the last ones, change places
    if value is None:
        return 0.5
    return WORDS[value] if isinstance(value, str) else 2 * value or 4


def own_keys(name: str) -> dict[str, Any]:
    """Every parameter that an encoding's yaml gives, and its value."""
    given = flatten(composed(f"encoding={name}", *SIZES).encoding)
    return {
        f"encoding.{key}": value
        for key, value in given.items()
        if key.split(".")[-1] != "_target_" and "optim." not in key and "tune." not in key
    }


def behaviour(*words: str) -> list[Tensor]:
    """Of a model whose positional parameters are random: what it makes of three segments and of a
    long window, beside its parameters at the start and the positions that it has."""
    model = from_config.model(composed(*SIZES, *words), 50).eval()
    found = [parameter.clone() for parameter in model.encoding.parameters()]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
        tokens, memory = torch.randint(50, (1, 160), generator=generator), None
        for segment in tokens.split(32, dim=1)[:3]:
            states, past = model(segment, memory)
            found.append(states)
            memory = past or None
        if (limit := model.encoding.max_length) is None:
            found.append(model(tokens)[0])
    return [*found, torch.tensor(limit or 0)]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    if len(one) != len(two):
        return False
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


ENCODINGS = sorted(path.stem for path in CONF.glob("encoding/*.yaml"))


@pytest.mark.parametrize("name", a_few(ENCODINGS, 6))
def test_each_parameter_of_an_encoding_is_used(name: str) -> None:
    before = behaviour(f"encoding={name}")
    assert same(before, behaviour(f"encoding={name}"))
    others = {key: another(key, value) for key, value in own_keys(name).items()}
    words = [f"{key}={other}".replace("'", "").replace(" ", "") for key, other in others.items()]
    unused = [w for w in words if same(before, behaviour(f"encoding={name}", w))]
    if two_sided := [w for w in unused if w.startswith("encoding.sides=")]:
        masked = ("objective=masked", f"encoding={name}")
        assert not same(behaviour(*masked), behaviour(*masked, *two_sided))
    assert unused == two_sided
