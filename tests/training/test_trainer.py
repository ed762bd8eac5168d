"""Schedule, optimizer groups, segment memory, checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module

from posbench import config
from posbench.config import Config, ParameterGroup
from posbench.corpus.segments import Batch, Segments
from posbench.model import from_config
from posbench.training.optim import optimizer, schedule
from posbench.training.trainer import NotFinite, Trainer
from tests.helpers import toy
from tests.helpers.tolerance import training

TOY = (
    "model.width=16 model.heads=2 model.layers=2 model.feed_forward=32 train.length=8 "
    "train.batch=2 train.steps=6 optim.warmup=2 runtime.threads=1 run.name=x"
).split()


def composed(*overrides: str) -> Config:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        return config.load(compose("train", [*TOY, *overrides]), Config)


def made(*overrides: str, sizes: tuple[int, ...] = (60, 60, 60)) -> Trainer:
    settings = composed(*overrides)
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, 50, size).astype(np.uint16) for size in sizes]
    stream = Segments(documents, settings.train.length, settings.train.batch, settings.seed)
    model = from_config.model(settings, 50)
    autocast = torch.bfloat16 if toy.DTYPE == "bfloat16" else None
    return Trainer(model, stream, settings, torch.device("cpu"), autocast)


def test_schedule() -> None:
    optim = composed("optim.lr=1.0", "optim.final_lr=0.1").optim
    rates = [schedule(step, 6, optim) for step in range(6)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_positional_parameters_form_a_group_of_their_own() -> None:
    model = made("encoding=t5").model
    settings = composed().optim
    group_of = {"encoding.": ParameterGroup(lr_multiplier=7.0)}
    groups = optimizer(model, settings, group_of).param_groups
    positional = {id(p) for p in model.encoding.parameters()}
    for group in groups:
        ids = {id(p) for p in group["params"]}
        if ids & positional:
            assert ids == positional
            assert (group["lr_multiplier"], group["weight_decay"]) == (7.0, 0.0)
        else:
            assert group["lr_multiplier"] == 1.0
            matrices = all(p.dim() == 2 and p is not model.tokens.weight for p in group["params"])
            assert (group["weight_decay"] > 0) == matrices
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_part_of_a_mix_keeps_its_group_and_others_take_the_mixs() -> None:
    mixed = "encoding=irope +encoding@encoding.parts.t5=t5 +encoding@encoding.parts.shaw=shaw"
    words = [*mixed.split(), "encoding.pattern=[rope,nope,t5,shaw]", "model.layers=4"]
    trainer = made(*words, "+encoding.optim.lr_multiplier=3")
    multiplier = {
        id(p): g["lr_multiplier"] for g in trainer.optimizer.param_groups for p in g["params"]
    }
    found = {n: multiplier[id(p)] for n, p in trainer.model.encoding.named_parameters()}
    assert found == {
        "parts.t5.bias": 10.0,
        "parts.shaw.key_table": 3.0,
        "parts.shaw.value_table": 3.0,
    }


def test_parameters_are_moved_back_within_their_bounds_after_each_step() -> None:
    for encoding in ("kerple_log", "dape", "irope"):
        mixed = "+encoding@encoding.parts.x=kerple_power encoding.pattern=[rope,nope,x]"
        words = mixed.split() if encoding == "irope" else []
        trainer = made(f"encoding={encoding}", "model.layers=3", *words)
        bounded = [p for n, p in trainer.model.named_parameters() if n.endswith((".r1", ".r2"))]
        with torch.no_grad():
            for parameter in bounded:
                parameter.fill_(1e-6)
        trainer.optimize()
        assert bounded
        assert all(parameter.min() >= 0.01 for parameter in bounded)


def test_the_multiplier_moves_positional_parameters_alone_at_the_first_step() -> None:
    moved = {}
    for multiplier in (1.0, 10.0):
        run = made("encoding=t5", f"encoding.optim.lr_multiplier={multiplier}")
        before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        run.optimize()
        moved[multiplier] = {
            name: (p - before[name]).abs().max().item() for name, p in run.model.named_parameters()
        }
    for name, far in moved[10.0].items():
        expected = 10 if name.startswith("encoding.") else 1
        assert far == pytest.approx(expected * moved[1.0][name], rel=1e-3)


def test_accumulation_equals_a_larger_batch() -> None:
    parts, whole = made("train.batch=2", "train.accumulate=2"), made("train.batch=4")

    class Halves:
        def batch(self, step: int) -> Batch:
            batch = whole.stream.batch(step // 2)
            half = slice(2 * (step % 2), 2 * (step % 2) + 2)
            return Batch(batch.inputs[half], batch.targets[half], batch.fresh[half])

    parts.stream = Halves()
    for _ in range(3):
        limit = training(whole.model, 8, 3, whole.dtype)
        assert parts.optimize()[0] == pytest.approx(whole.optimize()[0], rel=limit)


def test_batches_are_the_same_for_every_encoding() -> None:
    streams = [made(f"encoding={name}").stream for name in ("nope", "transformer_xl", "shaw")]
    for step in range(5):
        batches = [stream.batch(step) for stream in streams]
        assert all(np.array_equal(batches[0].inputs, batch.inputs) for batch in batches)


def test_memory_is_the_segment_before_and_ends_with_the_document() -> None:
    """Each batch's loss equals that of a model called by hand on the same segments."""
    run = made("encoding=transformer_xl", "encoding.memory_length=8", sizes=(30, 41, 26, 60))
    by_hand = made("encoding=transformer_xl", "encoding.memory_length=8").model
    past: list[list[torch.Tensor] | None] = [None, None]
    visible = 0
    for step in range(12):
        batch = run.stream.batch(step)
        losses = []
        for lane in range(2):
            memory = None if batch.fresh[lane] else past[lane]
            visible += memory is not None
            tokens = torch.from_numpy(batch.inputs[lane : lane + 1])
            states, past[lane] = by_hand(tokens, memory)
            target = torch.from_numpy(batch.targets[lane])
            loss = torch.nn.functional.cross_entropy(by_hand.logits(states[0]), target)
            losses.append(loss.item())
        limit = training(by_hand, 8 + 8, 1, run.dtype)
        assert run._loss(batch, 0).item() == pytest.approx(np.mean(losses), rel=limit)
    assert 0 < visible < 24


def test_memory_longer_than_a_segment_forgets_the_document_before() -> None:
    run = made("encoding=transformer_xl", "encoding.memory_length=20", sizes=(30, 41, 26, 60))
    by_hand = made("encoding=transformer_xl", "encoding.memory_length=20").model
    past: list[list[torch.Tensor] | None] = [None, None]
    for step in range(12):
        batch = run.stream.batch(step)
        losses = []
        for lane in range(2):
            memory = None if batch.fresh[lane] else past[lane]
            states, past[lane] = by_hand(torch.from_numpy(batch.inputs[lane : lane + 1]), memory)
            target = torch.from_numpy(batch.targets[lane])
            loss = torch.nn.functional.cross_entropy(by_hand.logits(states[0]), target)
            losses.append(loss.item())
        limit = training(by_hand, 8 + 20, 1, run.dtype)
        assert run._loss(batch, 0).item() == pytest.approx(np.mean(losses), rel=limit)


def test_the_loss_of_a_masked_model_is_over_the_masked_tokens_alone() -> None:
    """Each at its own place, from the text with its masks; a step's mask is not the next one's."""
    words = ("objective=masked", "objective.share=0.4", "objective.spans=3", "encoding=t5")
    run = made(*words)
    for number in range(3):
        batch = run.stream.batch(number)
        rows = (batch.inputs, batch.targets, run.config.seed, number, range(2), run.vocabulary)
        example = run.objective.example(*rows)
        assert example.places is not None
        losses = []
        for lane, places in enumerate(example.places):
            states, _ = run.model(torch.from_numpy(example.inputs[lane : lane + 1]))
            chances = run.model.logits(states[0]).log_softmax(-1)
            losses += [-chances[at, batch.inputs[lane, at]].item() for at in places]
        limit = training(run.model, 8, 1, run.dtype)
        assert run._loss(batch, number).item() == pytest.approx(np.mean(losses), rel=limit)


@pytest.mark.parametrize("encoding", ["rope", "transformer_xl", "shaw"])
def test_a_checkpoint_restores_everything(tmp_path: Path, encoding: str) -> None:
    words = (f"encoding={encoding}", "model.dropout=0.2")
    torch.manual_seed(0)
    first = made(*words)
    for _ in range(3):
        first.optimize()
    saved = first.save(tmp_path)
    after = [first.optimize() for _ in range(3)]
    torch.manual_seed(99)
    second = made(*words, "seed=1")
    second.restore(saved)
    assert second.step == 3
    assert [second.optimize() for _ in range(3)] == after


def test_a_step_that_is_no_number_moves_nothing_and_is_told_later() -> None:
    """As on CUDA, where numbers are read now and then: the step that broke is named."""
    trainer = made("encoding=t5")
    trainer.optimize()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    good = trainer.model.norm.weight.detach().clone()
    with torch.no_grad():
        trainer.model.norm.weight.fill_(torch.nan)
    trainer.advance()
    with torch.no_grad():
        trainer.model.norm.weight.copy_(good)
    for name, parameter in trainer.model.named_parameters():
        assert parameter.equal(before[name]), name
    trainer.advance()
    assert not trainer.model.norm.weight.equal(good)
    with pytest.raises(NotFinite, match=r"at step 2$"):
        trainer.read()
    assert trainer.optimize()[0] > 0  # what was told is not told again


def test_reading_late_is_reading_the_same() -> None:
    late, each = made("encoding=transformer_xl"), made("encoding=transformer_xl")
    told = [each.optimize() for _ in range(4)]
    for _ in range(4):
        late.advance()
    assert late.read() == told[-1]
