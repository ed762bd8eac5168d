"""Every shipped yaml: its keys are known, it composes, and it runs two steps at toy size."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import hydra.utils
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from posbench import config
from tests.helpers.marks import a_few
from tests.helpers.places import ROOT
from tests.helpers.toy import train, write_text

CONF = ROOT / "conf"
OPTIONS = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    # extension: of `posbench eval`; scale: needs plugins. Their own tests run them.
    if path.parent.name not in ("extension", "scale")
)
# What a toy run replaces; an experiment's sizes are for its own hardware.
TOY_TRAINING = (
    "train.length=16 train.batch=2 train.steps=2 train.checkpoint_every=2 optim.warmup=1"
)
TOY_MODEL = "model.width=16 model.heads=2 model.layers=2 model.feed_forward=32"
TOY_EVAL = "eval.lengths=[16,32] eval.targets=8 eval.blocks=2 eval.tokens=100"


def load(path: Path) -> dict[str, Any]:
    plain = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@pytest.mark.parametrize("path", sorted(CONF.glob("encoding/*.yaml")), ids=lambda path: path.stem)
def test_an_encodings_keys_are_its_constructors_parameters(path: Path) -> None:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        keys = dict(compose("train", [f"encoding={path.stem}"]).encoding)
    target = hydra.utils.get_class(keys.pop("_target_"))
    group = keys.pop("optim", {})
    assert set(keys.pop("tune", {})) <= set(keys)
    assert set(keys) == set(list(inspect.signature(target).parameters)[1:])
    assert set(group) <= {"lr_multiplier", "weight_decay"}


@pytest.mark.parametrize("path", sorted(CONF.glob("extension/*.yaml")), ids=lambda path: path.stem)
def test_an_extensions_keys_are_those_that_the_run_does_not_set(path: Path) -> None:
    keys = load(path)
    target = hydra.utils.get_class(keys.pop("_target_"))
    assert set(keys) == set(inspect.signature(target).parameters) - {"shape", "base", "layout"}


@pytest.mark.parametrize(
    "path",
    [*CONF.glob("corpus/*.yaml"), *CONF.glob("tokenizer/*.yaml")],
    ids=lambda path: path.stem,
)
def test_a_corpus_and_a_tokenizer_likewise(path: Path) -> None:
    keys = load(path)
    target = hydra.utils.get_class(keys.pop("_target_"))
    assert sorted(keys) == sorted(inspect.signature(target).parameters)


@pytest.mark.parametrize("option", a_few(OPTIONS, 24))
def test_every_option_composes_to_a_typed_config(option: str) -> None:
    group, name = option.split("=")
    path = (
        {"corpus": "corpus.path=x"}.get(group, "seed=1") if name in ("files", "hub") else "seed=1"
    )
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("train", [option, path, "run.name=x"])
    assert config.load(node, config.Config).run.name == "x"


# The hub's data sets need a network; tests/corpus/test_sources.py runs their code on local ones.
LOCAL = ["corpus=files", "corpus=sotu", "corpus=sympy"]
MANY = ("encoding=", "model=", "experiment=")
RUNNABLE = [
    # test_run.py trains nine encodings in one sweep, test_fit.py all of them without a command
    pytest.param(option, marks=[pytest.mark.slow] * option.startswith(MANY))
    for option in OPTIONS
    if option in LOCAL or not option.startswith("corpus=")
]


@pytest.mark.parametrize("option", RUNNABLE)
def test_every_option_runs_two_steps(tmp_path: Path, option: str) -> None:
    words = [TOY_TRAINING, TOY_MODEL, TOY_EVAL, option]
    # a masked model of bytes would read them off their neighbours; experiments name their size
    bpe = option in ("tokenizer=bpe", "objective=masked") or option.startswith("experiment=")
    words.append("tokenizer=bpe tokenizer.vocabulary=300" if bpe else "tokenizer=bytes")
    words.append("runtime.dtype=float32 tracking.wandb=disabled tracking.every=1")
    if option == "corpus=files":
        words.append(f"corpus.path={write_text(tmp_path / 'text')}")
    assert train(tmp_path, *words) == 0
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    assert metrics.read_text().count("\n") == 2
    (results,) = tmp_path.rglob("results.jsonl")
    assert "perplexity" in results.read_text()
