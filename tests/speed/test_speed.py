"""posbench speed: what is timed, in which order, and what is made of it. No time is asserted."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from rich.console import Console
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posbench import cli, config
from posbench.attention.costs import costs as described
from posbench.config import SpeedCommand
from posbench.encodings import Encoding
from posbench.evaluation.score import score
from posbench.model import from_config
from posbench.model.transformer import Transformer
from posbench.speed import limits, measure, memory, table, work
from posbench.speed.cost import Cost, Pass, cost
from posbench.speed.failure import Failed, died, reason, told
from posbench.speed.measure import Cell, Side
from posbench.speed.memory import Memory
from posbench.speed.rounds import Best, Rounds, Steady, Work, alternate
from posbench.speed.work import windows
from posbench.training.trainer import Trainer
from tests.helpers.marks import a_few

CPU = torch.device("cpu")
TOY = (
    "model.width=16 model.heads=2 model.layers=2 model.feed_forward=24 eval.targets=8 "
    "runtime.device=cpu runtime.threads=1 runtime.dtype=float32 train.length=16 "
    "speed.lengths=[16,40] speed.tokens=80 speed.vocabulary=50 speed.rounds=2 speed.seconds=0"
)

Output = pytest.CaptureFixture[str]


def asked(*words: str) -> SpeedCommand:
    with initialize_config_module("posbench.conf", version_base="1.3"):
        node = compose("speed", ["run.name=it", *TOY.split(), *words])
    return config.load(node, SpeedCommand)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """No large products and no child processes; what these were asked for."""
    questions: list[dict[str, Any]] = []

    def answer(question: str) -> str:
        questions.append(json.loads(question))
        name = questions[-1]["config"]["run"]["name"]
        return json.dumps({"before": 1000, "peak": 1400 if name == "nope" else 1600})

    monkeypatch.setattr(memory, "child", answer)
    memory._answer.cache_clear()
    monkeypatch.setattr(limits, "SIDE", {"cpu": 8})
    monkeypatch.setattr(limits, "COPIED", 64)
    return questions


def run(folder: Path, *words: str) -> int:
    places = [f"folder={folder}", f"run.root={folder}/runs"]  # where Hydra has its own
    flags = [word for word in words if word.startswith("-")]
    return cli.run(["speed", *flags, *TOY.split(), *places, *words[len(flags) :]])


def written(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


# --- rounds ---------------------------------------------------------------------------------


def test_the_median_and_the_spread_of_rounds() -> None:
    rounds = Rounds([1.0, 9.0, 2.0, 4.0, 3.0])
    assert (rounds.median, rounds.spread) == (3.0, 1.0)  # quartiles 2 and 4
    assert Rounds([7.0]).spread is None


def test_a_ratio_is_of_each_round_and_not_of_medians() -> None:
    ratio = Rounds([10.0, 30.0, 100.0]).over(Rounds([5.0, 10.0, 200.0]))
    assert ratio.each == [2.0, 3.0, 0.5]
    assert ratio.median == 2.0  # 30 / 10 is 3
    assert Rounds([1.0, 2.0]).times(3).each == [3.0, 6.0]


class Fake:
    """A measure that writes down when it is called, and may fail."""

    def __init__(self, name: str, log: list[str], fails_at: int | None = None) -> None:
        self.name, self.log, self.fails_at = name, log, fails_at
        self.calls = 0

    def warm_up(self) -> None:
        self._called(f"{self.name} warm")

    def rate(self) -> float:
        self._called(self.name)
        return float(self.calls)

    def _called(self, what: str) -> None:
        self.log.append(what)
        if self.calls == self.fails_at:
            raise MemoryError
        self.calls += 1


def test_measures_take_turns_after_all_are_warm() -> None:
    log: list[str] = []
    found = alternate({"a": Fake("a", log), "b": Fake("b", log)}, rounds=3)
    assert log == ["a warm", "b warm", "a", "b", "a", "b", "a", "b"]
    assert found == {"a": Rounds([2, 3, 4]), "b": Rounds([2, 3, 4])}


@pytest.mark.parametrize("fails_at", [0, 2])
def test_what_fails_says_why_and_the_other_goes_on(fails_at: int) -> None:
    log: list[str] = []
    found = alternate({"a": Fake("a", log, fails_at), "b": Fake("b", log)}, rounds=3)
    assert found == {"a": "out of memory", "b": Rounds([2, 3, 4])}
    assert log.count("a warm") + log.count("a") == fails_at + 1


class Clock:
    """Time that passes only where work is done."""

    def __init__(self, *durations: float) -> None:
        self.now, self.durations, self.calls = 0.0, list(durations), 0

    def __call__(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1


def test_a_call_is_repeated_for_at_least_so_many_seconds() -> None:
    clock = Clock(9.0, 9.0, 0.3)  # two to warm up
    steady = Steady(lambda: Work(clock.work, 60, warm=2), seconds=1.0, clock=clock)
    steady.warm_up()
    assert clock.calls == 3
    assert steady.rate() == pytest.approx(60 / 0.3)
    assert clock.calls == 3 + 4
    clock.durations.append(0.6)
    assert steady.rate() == pytest.approx(60 / 0.6)


def test_the_machine_is_as_fast_as_its_fastest_call() -> None:
    clock = Clock(9.0, 9.0, 0.5, 0.25, 1.0)
    best = Best(lambda: Work(clock.work, 10, warm=1), tries=3, clock=clock)
    best.warm_up()
    assert best.rate() == 10 / 0.25
    assert clock.calls == 5


# --- what is timed --------------------------------------------------------------------------


def test_training_is_the_trainers_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, ...]] = []
    original = Trainer.optimize

    def optimize(trainer: Trainer) -> tuple[float, float]:
        assert trainer.model.training
        steps.append(trainer.stream.batch(trainer.step).inputs.shape)
        return original(trainer)

    monkeypatch.setattr(Trainer, "optimize", optimize)
    made = work.training(asked("train.accumulate=3"), 40, CPU)
    assert made.amount == 2 * 40
    for _ in range(3):
        made.call()
    assert steps == [(2, 40)] * 3


def test_random_batches_predict_the_next_token_and_go_on_from_the_last() -> None:
    settings = asked("train.batch=3")
    stream = work.RandomStream(settings)
    first = stream.batch(0)
    assert first.inputs.shape == first.targets.shape == (3, 16)
    assert (first.inputs[:, 1:] == first.targets[:, :-1]).all()
    assert not first.fresh.any()
    assert 0 <= first.inputs.min() <= first.inputs.max() < 50
    assert (stream.batch(work.BATCHES).inputs == first.inputs).all()
    assert (stream.batch(1).inputs != first.inputs).any()


def test_training_is_timed_once_all_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Trainer.optimize

    def optimize(trainer: Trainer) -> tuple[float, float]:
        found = original(trainer)
        seen.append(trainer.memory[0].shape[1])
        return found

    monkeypatch.setattr(Trainer, "optimize", optimize)
    settings = asked("encoding=transformer_xl", "encoding.memory_length=50")
    made = work.training(settings, 16, CPU)
    for _ in range(made.warm):
        made.call()
    assert seen[-2:] == [50, 50]  # the last one before the timing saw a full one


def test_evaluation_scores_the_last_targets_of_every_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, bool]] = []

    def counted(model: Transformer, *rest: Any) -> Any:
        losses = score(model, *rest)
        found.append((len(losses), model.training or torch.is_grad_enabled()))
        return losses

    monkeypatch.setattr(work, "score", counted)
    with torch.no_grad():
        made = work.evaluation(asked(), 16, CPU)
        made.call()
    assert made.amount == 5 * 16
    assert found == [(5 * 8, False)]


def test_as_many_windows_as_fit_and_at_least_one() -> None:
    assert [windows(asked(), length) for length in (16, 40, 41, 80, 500)] == [5, 2, 1, 1, 1]


def test_evaluation_is_float32_whatever_training_is() -> None:
    settings = asked("runtime.dtype=bfloat16")
    assert work.dtype(settings, "train", CPU) is torch.bfloat16
    assert work.dtype(settings, "eval", CPU) is torch.float32


def test_the_limits_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIDE", {"cpu": 8})
    monkeypatch.setattr(limits, "COPIED", 64)
    product, copied = limits.matmul(torch.bfloat16, CPU), limits.copy(CPU)
    with FlopCounterMode(display=False) as counter:
        product.call()
    assert product.amount == counter.get_total_flops() == 2 * 8**3
    copied.call()
    assert copied.amount == 2 * 64 * 4


def test_a_dtype_that_the_processor_emulates_is_measured_on_small_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product of 2,048 rows takes half a minute there, and a run ends with four."""
    monkeypatch.setattr(limits, "SIDE", {"cpu": 2 * limits.SMALL})
    for slow, expected in ((math.inf, limits.SMALL), (0.0, 2 * limits.SMALL)):
        monkeypatch.setattr(limits, "SLOW", slow)
        assert limits.side(torch.float32, CPU) == expected
        assert limits.matmul(torch.float32, CPU).amount == 2 * expected**3


# --- what it takes at least -----------------------------------------------------------------


def costs(one: Pass, *words: str) -> tuple[Cost, Transformer, SpeedCommand]:
    settings = asked(*words)
    model = from_config.model(settings, settings.speed.vocabulary)
    return cost(model, settings.model, one), model, settings


def evaluating(length: int, windows: int = 1) -> Pass:
    return Pass(training=False, windows=windows, length=length, scored=length, itemsize=4)


def seen(length: int, window: int | None = None, memory: int = 0) -> list[tuple[int, int]]:
    """Every query and key that meet, by position."""
    return [
        (i, j)
        for i in range(memory, memory + length)
        for j in range(i + 1)
        if window is None or i - j < window
    ]


def test_nopes_products_are_pytorchs_count() -> None:
    found, model, _ = costs(evaluating(40, windows=3), "encoding=nope")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        states, _ = model.eval()(torch.zeros(3, 40, dtype=torch.long))
        model.logits(states)
    counts = counter.get_flop_counts()["Global"]
    linear = sum(n for name, n in counts.items() if name is torch.ops.aten.mm)
    assert linear > 0
    attention = 2 * 3 * (2 * 2 * 16) * len(seen(40))  # layers, windows; two products
    assert found.operations == linear + attention


def test_only_the_scored_tokens_have_logits() -> None:
    every, _, _ = costs(evaluating(40), "encoding=nope")
    some = Pass(training=False, windows=1, length=40, scored=8, itemsize=4)
    few, _, _ = costs(some, "encoding=nope")
    assert every.operations - few.operations == 2 * 16 * 50 * 32
    assert every.bytes - few.bytes == 4 * 32 * (16 + 50)


def test_training_is_three_times_forward_and_the_optimizer() -> None:
    forward, model, _ = costs(evaluating(16, windows=5), "encoding=rope")
    step, _, _ = costs(Pass(True, 5, 16, 16, 4), "encoding=rope")
    assert step.operations == 3 * forward.operations
    parameters = sum(p.numel() for p in model.parameters())
    assert step.bytes == 3 * forward.bytes + 7 * 4 * parameters


@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_bytes_of_a_pass(itemsize: int) -> None:
    one = Pass(training=False, windows=5, length=16, scored=8, itemsize=itemsize)
    found, model, _ = costs(one, "encoding=nope")
    queries = (16 + 16) + (3 * 16 + 16) + (16 + 16)  # q; attention of q, k, v; out: in and out
    keys = 16 + 32  # k and v: in and out
    feed_forward = (16 + 24) + (24 + 16)
    layer = 16 * (queries + keys + feed_forward)
    activations = 5 * (16 * 16 + 2 * layer + 8 * (16 + 50))
    weights = sum(p.numel() for p in model.parameters())
    assert found.bytes == 4 * weights + itemsize * activations


def beyond_nope(words: list[str], one: Pass, *common: str) -> int:
    found, *_ = costs(one, *words)
    plain, *_ = costs(one, "encoding=nope", *common)
    return found.operations - plain.operations


def test_a_bias_is_an_addition_for_each_pair_that_is_seen() -> None:
    table_alone = 4 * 40 * 2 * 2  # a product for each head, distance and layer; and its sign
    added = beyond_nope(["encoding=alibi"], evaluating(40, windows=3))
    pairs = 2 * 3 * 2 * len(seen(40))  # layers, windows, heads
    assert pairs < added <= pairs + table_alone


def test_clipped_vectors_are_met_once_by_a_query() -> None:
    """Shaw's clip makes k + 1 of all distances: one product with each, keys and values."""
    added = beyond_nope(["encoding=shaw", "encoding.k=4"], evaluating(40, windows=3))
    met = {(i, min(i - j, 4)) for i, j in seen(40)}
    by_layer = 2 * (2 * 16 * len(met) + 2 * len(seen(40)))  # two tables; products, additions
    assert added == 2 * 3 * by_layer


def test_unclipped_vectors_are_met_by_each_pair_and_made_once_for_all_windows() -> None:
    words = ["encoding=transformer_xl", "encoding.memory_length=0"]
    once, thrice = (beyond_nope(words, evaluating(40, windows=n)) for n in (1, 3))
    pairs = len(seen(40))
    used = 2 * (2 * 16 * pairs + 2 * pairs + 2 * pairs + 40 * 16)  # R; its bias; u added to q
    assert thrice - once == 2 * used
    made = once - used
    projection = 2 * 2 * (2 * 40 * 16 * 16)  # for R, and again for the bias by distance; layers
    assert projection < made < 1.5 * projection


def test_what_enters_at_the_input_is_added_once() -> None:
    one = evaluating(40, windows=3)
    two, five = (
        beyond_nope(["encoding=sinusoidal", f"model.layers={n}"], one, f"model.layers={n}")
        for n in (2, 5)
    )
    assert two == five >= 3 * 40 * 16


def test_a_decay_is_two_additions_for_each_pair() -> None:
    added = beyond_nope(["encoding=fox"], evaluating(40, windows=3))
    gates = 2 * 40 * 16 * 2  # a product for each token and head
    used = 2 * 3 * (2 * 2 * len(seen(40)) + gates)
    assert used < added < used + 2 * 3 * 5 * 40 * 2  # its bias, its logarithm


def test_a_masked_models_pairs_are_the_whole_square() -> None:
    causal, *_ = costs(evaluating(40), "encoding=nope")
    masked, model, settings = costs(evaluating(40), "encoding=nope", "objective=masked")
    assert model.shape.two_sided
    more = 2 * (4 * settings.model.width) * (40 * 40 - len(seen(40)))  # two layers
    assert masked.operations == causal.operations + more


def test_a_matrix_over_pairs_counts_where_it_is_seen() -> None:
    settings = asked("encoding=fire")
    encoding = from_config.encoding_of(settings).eval()
    (every,) = (c.operations for c in described(encoding, 40) if c.what == "position_bias")
    made = every // 2 - 2 * 40 * 40  # of a layer, without the additions to its logits
    share = len(seen(40)) / 40**2
    added = beyond_nope(["encoding=fire"], evaluating(40, windows=3))
    assert added == 2 * (round(share * made) + 3 * 2 * len(seen(40)))


def test_zeros_to_start_with_are_not_one_vector() -> None:
    plain, model, settings = costs(evaluating(16), "encoding=shaw", "encoding.k=16")
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter.zero_()
    assert cost(model, settings.model, evaluating(16)) == plain
    assert not any(p.any() for p in model.encoding.parameters())  # it was a copy


def test_memory_is_more_keys_in_training_alone() -> None:
    words = ["encoding=transformer_xl", "encoding.memory_length=10"]
    without = [*words[:1], "encoding.memory_length=0"]
    assert costs(evaluating(16), *words)[0] == costs(evaluating(16), *without)[0]
    one = Pass(training=True, windows=1, length=16, scored=16, itemsize=4)
    more = costs(one, *words)[0].operations - costs(one, *without)[0].operations
    keys, pairs = 2 * 2 * 16 * 16 * 10, len(seen(16, memory=10)) - len(seen(16))
    vectors = pairs * (4 * 16 + 2 * 16 + 2 + 2)
    assert more > 3 * 2 * (keys + vectors)
    made = 2 * (2 * 10 * 16 * 16)  # a projected sinusoid for each distance more, twice
    assert more < 3 * 2 * (keys + vectors + 1.6 * made)


def test_a_window_is_fewer_pairs() -> None:
    words = ["encoding=local_global", "encoding.windows.local=5"]
    everywhere = ["encoding=local_global", "encoding.windows.local=1000"]
    less = costs(evaluating(40), *everywhere)[0].operations
    less -= costs(evaluating(40), *words)[0].operations
    assert less == 4 * 16 * (len(seen(40)) - len(seen(40, window=5)))  # one of two layers


# --- peak memory ----------------------------------------------------------------------------


class Selfish(Encoding):
    """Needs more memory than there is, once the window is longer than a rehearsal's."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if len(positions) > memory.REHEARSED:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        return x


class Broken(Selfish):
    """Has a defect there."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x if len(positions) <= memory.REHEARSED else x[0, 0, :3] + x


class Killed(Selfish):
    """Its process ends there, as by the kernel."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if len(positions) > memory.REHEARSED:
            os.kill(os.getpid(), signal.SIGKILL)
        return x


@pytest.mark.slow
def test_a_child_tells_its_own_peak() -> None:
    settings = asked("encoding=nope", "model.width=128", "model.feed_forward=512")
    found = memory.measure(settings, "train", 512, CPU)
    weights = sum(p.numel() for p in from_config.model(settings, 50).parameters())
    assert found.before > 2**20
    assert found.used > 4 * 4 * weights  # with gradients and two moments
    assert found.used < found.before  # torch itself is not in it


@pytest.mark.parametrize(
    ("kind", "expected"),
    a_few(
        [
            ("Selfish", "out of memory"),
            ("Killed", "out of memory (its process was killed)"),
            ("Broken", "failed: RuntimeError: The size of tensor"),
        ],
        1,
    ),
)
def test_a_child_that_fails_is_a_reason(kind: str, expected: str, capfd: Output) -> None:
    settings = asked("encoding=nope", f"encoding._target_=tests.speed.test_speed.{kind}")
    with pytest.raises(Failed) as failed:
        memory.measure(settings, "eval", 16, CPU)
    assert str(failed.value).startswith(expected)
    assert ("Traceback" in capfd.readouterr().err) == (kind == "Broken")


def test_reasons_in_words() -> None:
    assert reason(torch.OutOfMemoryError("CUDA out of memory. Tried ...")) == "out of memory"
    assert reason(ValueError("odd\n  thing")) == "failed: ValueError: odd thing"
    assert died(-signal.SIGSEGV) == "failed: its process died of SIGSEGV"
    assert died(3) == "failed: its process ended with exit code 3"
    with pytest.raises(KeyboardInterrupt), told():
        raise KeyboardInterrupt


# --- the command ----------------------------------------------------------------------------


def test_the_command_writes_every_round(
    tmp_path: Path, small: list[dict[str, Any]], capsys: Output
) -> None:
    assert run(tmp_path / "new", "encoding=alibi") == 0
    found = written(tmp_path / "new" / "alibi.json")
    assert {"commit", "threads", "device_name", "packages", "dtype"} <= set(found["machine"])
    assert found["settings"]["speed"]["lengths"] == [16, 40]
    places = [(cell["mode"], cell["length"], cell["windows"]) for cell in found["cells"]]
    assert places == [("train", 16, 5), ("train", 40, 2), ("eval", 16, 5), ("eval", 40, 2)]
    for cell in found["cells"]:
        mine, its = cell["encoding"], cell["baseline"]
        assert (mine["name"], its["name"], mine["kernel"]) == ("alibi", "nope", "fused")
        rates = [side["tokens_per_second"]["rounds"] for side in (mine, its)]
        assert all(rate > 0 for rates_ in rates for rate in rates_)
        ratios = [a / b for a, b in zip(*rates, strict=True)]
        assert mine["speed_ratio"]["rounds"] == ratios
        assert mine["speed_ratio"]["median"] == pytest.approx(sum(ratios) / 2)
        assert mine["memory"] == {"before": 1000, "peak": 1600, "used": 600}
        assert mine["memory_ratio"] == 1.5
        limit = cell["matmul_per_second"]["rounds"]
        per_second = [r * mine["operations"] / cell["tokens"] for r in rates[0]]
        shares = [a / b for a, b in zip(per_second, limit, strict=True)]
        assert mine["share_of_matmul"]["rounds"] == pytest.approx(shares)
        assert len(cell["copied_bytes_per_second"]["rounds"]) == 2
    said = capsys.readouterr().out
    assert "Speed and memory: cpu, 1 thread, training in float32" in said
    assert "train 16" in said
    assert "written:" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert len(small) == 8


@pytest.mark.slow
def test_memory_is_asked_of_the_same_configuration(
    tmp_path: Path, small: list[dict[str, Any]]
) -> None:
    words = ("encoding=shaw", "encoding.k=3", "model.width=32", "speed.lengths=[40]")
    assert run(tmp_path, *words, "speed.modes=[train]") == 0
    mine, its = (each["config"] for each in small)
    assert mine["encoding"]["k"] == 3
    assert its["encoding"] == {"_target_": "posbench.encodings.nope.NoPE"}
    assert mine["model"] == its["model"]
    assert mine["model"]["width"] == 32
    assert [each["length"] for each in small] == [40, 40]


def test_training_is_as_with_the_length_and_evaluation_as_trained(
    tmp_path: Path, small: list[dict[str, Any]], capsys: Output
) -> None:
    assert run(tmp_path, "encoding=learned") == 0
    cells = written(tmp_path / "learned.json")["cells"]
    reasons = [cell["encoding"]["reason"] for cell in cells]
    assert reasons == [None, None, None, "no position past 16"]
    assert cells[3]["encoding"]["tokens_per_second"] is None
    assert cells[3]["encoding"]["speed_ratio"] is None
    assert cells[3]["baseline"]["tokens_per_second"] is not None
    assert "learned, eval 40: no position past 16" in capsys.readouterr().out
    rows = [q["config"]["encoding"]["max_length"] for q in small if "learned" in str(q)]
    assert rows == [16, 40, 16]


def test_memory_needs_positions_in_training() -> None:
    model = from_config.model(asked("encoding=transformer_xl", "encoding.memory_length=10"), 50)
    model.encoding.max_length = 24
    assert measure._too_long(model, "train", 16) == "no position past 24"
    assert measure._too_long(model, "eval", 16) is None


@pytest.mark.slow
def test_the_baseline_is_not_measured_twice(
    tmp_path: Path, small: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    built: list[str] = []

    def counting(make: Callable[..., Work]) -> Callable[..., Work]:
        def counted(config: SpeedCommand, *rest: Any) -> Work:
            built.append(config.run.name)
            return make(config, *rest)

        return counted

    modes = {mode: counting(make) for mode, make in work.MODES.items()}
    monkeypatch.setattr(work, "MODES", modes)
    faster = "encoding.optim.lr_multiplier=3"  # is no other encoding; other buckets are
    assert run(tmp_path, "encoding=t5", "speed.baseline=t5", faster) == 0
    assert len(built) == len(small) == 4
    for cell in written(tmp_path / "t5.json")["cells"]:
        assert cell["encoding"] == cell["baseline"]
        assert cell["encoding"]["speed_ratio"] == {"rounds": [1, 1], "median": 1, "spread": 0}
        assert cell["encoding"]["memory_ratio"] == 1
    assert run(tmp_path, "encoding=t5", "speed.baseline=t5", "encoding.buckets=8") == 0
    assert len(built) == 4 + 8


def test_a_sweep_ends_in_one_table(
    tmp_path: Path, small: list[dict[str, Any]], capsys: Output
) -> None:
    assert run(tmp_path, "-m", "encoding=nope,shaw,t5", "speed.modes=[eval]") == 0
    assert {path.stem for path in tmp_path.glob("*.json")} == {"nope", "shaw", "t5"}
    said = capsys.readouterr().out
    assert said.count("Speed and memory") == 4
    last = said.rpartition("Speed and memory")[2].splitlines()
    names = [line.split()[0] for line in last if line[:5].strip() in ("nope", "shaw", "t5")]
    assert names == ["nope", "shaw", "t5"] * 2
    assert len(small) == 2 + 2 + 2  # nope's memory serves all


def test_a_failing_encoding_does_not_stop_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[dict[str, Any]], capsys: Output
) -> None:
    monkeypatch.setattr(memory, "child", lambda question: '{"reason": "out of memory"}')
    assert run(tmp_path, "encoding=alibi", "speed.modes=[train]") == 0
    cell = written(tmp_path / "alibi.json")["cells"][0]
    assert cell["encoding"]["reason"] == cell["baseline"]["reason"] == "out of memory"
    assert cell["matmul_per_second"] is None
    assert "out of memory" in capsys.readouterr().out


def test_a_defect_is_told_after_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[dict[str, Any]], capfd: Output
) -> None:
    monkeypatch.setattr(memory, "child", lambda question: '{"reason": "failed: odd"}')
    assert run(tmp_path, "encoding=alibi", "speed.modes=[train]") == 1
    said = capfd.readouterr()
    assert said.out.count("failed: odd") == 4
    assert said.err.strip() == "error: alibi: 4 of the measurements failed"
    assert len(written(tmp_path / "alibi.json")["cells"]) == 2


def made(name: str, rates: list[float] | None, used: int, baseline: Side | None = None) -> Cell:
    side = Side(
        name,
        "fused",
        None if rates else "failed: odd",
        Memory(100, 100 + used),
        Cost(2_000_000, 4_000),
        Rounds(rates) if rates else None,
    )
    limit = Rounds([1e6, 1e6])
    return Cell("train", 1000, 2, "float32", side, baseline or side, limit, limit)


def test_bold_is_the_best_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    nope = made("nope", [1000.0, 1000.0], 2 * 2**20).encoding
    cells = [
        made("quick", [1500.0, 1300.0], 3 * 2**20, nope),
        made("light", [500.0, 500.0], 2**20, nope),
        made("odd", None, 2**20, nope),
    ]
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = Console(width=80, force_terminal=True, color_system="standard", record=True)
    table.show(cells, asked().speed, "Speed of three", console, beside=False)
    text = console.export_text(clear=False).replace(" ", "")
    assert "quick1,400±3.6%1.40±0.053.01.501k2" in text  # 2,000,000 operations of 2,000 tokens
    assert "140%" in text
    assert "odd,train1,000:failed:odd" in text
    styled = console.export_text(styles=True).partition("──")[2]
    bold = [part.partition("\x1b[0m")[0] for part in styled.split("\x1b[1m")[1:]]
    assert [each.strip() for each in bold] == ["1,400 ±3.6%", "1.40 ±0.05", "1.0", "0.50"]
    assert table.best([(cells[2], cells[2].encoding)], lambda cell, side: None, max) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    a_few(
        [
            ("speed.modes=[train,evl]", ["speed.modes=['train', 'evl']", "train, eval"]),
            ("speed.modes=[]", ["speed.modes=[]", "train, eval"]),
            ("speed.modes=[eval,eval]", ["speed.modes", "twice"]),
            ("speed.lengths=[]", ["speed.lengths=[]", "at least 1"]),
            ("speed.lengths=[0]", ["speed.lengths=[0]", "at least 1"]),
            ("speed.lengths=[16,16]", ["speed.lengths=[16, 16]", "twice"]),
            ("speed.lengths=[many]", ["speed.lengths", "many"]),
            ("speed.rounds=0", ["speed.rounds=0", "at least 1"]),
            ("speed.tokens=0", ["speed.tokens=0", "at least 1"]),
            ("speed.vocabulary=0", ["speed.vocabulary=0", "at least 1"]),
            ("speed.seconds=-1", ["speed.seconds=-1"]),
            ("speed.seconds=inf", ["speed.seconds=inf"]),
            ("speed.baseline=nop", ["speed.baseline=nop", "did you mean nope?"]),
            ("speed.round=3", ["speed.round", "no such key"]),
            ("eval.targets=0", ["eval.targets=0"]),
            ("encoding=alibbi", ["encoding=alibbi", "did you mean alibi?"]),
            ("encoding=cope model.attention=fused", ["model.attention=fused", "CoPE"]),
            ("encoding=t5 encoding.buckets=3", ["encoding.buckets=3"]),
            ("model.heads=3", ["model.heads=3", "model.width=16"]),
            ("runtime.dtype=float8", ["runtime.dtype=float8"]),
            ("run.name=../x", ["run.name", "../x"]),
            ("folder=/dev/null/x", ["/dev/null"]),
        ],
        6,
    ),
)
def test_a_mistake_gets_one_clear_line(
    words: str, expected: list[str], tmp_path: Path, small: list[dict[str, Any]], capfd: Output
) -> None:
    assert run(tmp_path, *words.split()) == 1
    said = capfd.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    assert all(part in said for part in expected)


def test_a_single_round_has_no_spread(
    tmp_path: Path, small: list[dict[str, Any]], capsys: Output
) -> None:
    assert run(tmp_path, "encoding=nope", "speed.rounds=1", "speed.modes=[eval]") == 0
    cell = written(tmp_path / "nope.json")["cells"][0]
    assert cell["encoding"]["tokens_per_second"]["spread"] is None
    assert "Medians of 1 round," in " ".join(capsys.readouterr().out.split())
