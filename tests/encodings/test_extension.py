"""posbench eval extension=...: a trained RoPE run at lengths it was not trained for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from posbench import cli
from posbench.attention import KERNELS, ON_CPU
from posbench.encodings import Shape, Span
from posbench.encodings.extension import (
    NTK,
    DynamicNTK,
    Extended,
    Interpolated,
    LogNRoPE,
    Streaming,
    YaRN,
)
from posbench.encodings.rope import RoPE
from posbench.evaluation.results import Result, read
from tests.helpers.marks import a_few
from tests.helpers.tolerance import EXACT, FORMULA, close
from tests.helpers.toy import train

Output = pytest.CaptureFixture[str]
SHAPE = Shape(width=64, heads=2, layers=1)
LENGTH = 128


def theta(encoding: RoPE, window: int = 1) -> Tensor:
    return encoding.frequencies(Span.window(window))


def extended(kind: type[Extended], factor: float, **more: Any) -> Extended:
    return kind(SHAPE, factor=factor, original_length=LENGTH, **more)


@pytest.mark.parametrize("kind", [Interpolated, NTK, DynamicNTK, YaRN])
def test_a_factor_of_one_is_rope_bit_for_bit(kind: type[Extended]) -> None:
    q = torch.randn(1, 2, 50, 32)
    plain = RoPE(SHAPE).rotate(q, q, Span.window(50), 0)
    same = extended(kind, 1.0).rotate(q, q, Span.window(50), 0)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))


def test_interpolation_and_ntk_meet_at_the_lowest_frequency() -> None:
    plain, pi, ntk = theta(RoPE(SHAPE)), extended(Interpolated, 8.0), extended(NTK, 8.0)
    torch.testing.assert_close(theta(pi), plain / 8, rtol=FORMULA, atol=0)
    assert theta(ntk)[0] == 1
    assert theta(ntk)[-1].item() == pytest.approx(plain[-1].item() / 8, rel=FORMULA)


def test_yarn_leaves_the_highest_frequency_and_interpolates_the_lowest() -> None:
    for ramp in ("paper", "code"):
        yarn = YaRN(SHAPE, factor=8.0, original_length=4096, ramp=ramp)
        plain = theta(RoPE(SHAPE))
        assert theta(yarn)[0] == plain[0]
        assert theta(yarn)[-1].item() == pytest.approx(plain[-1].item() / 8, rel=FORMULA)
        assert (theta(yarn).diff() < 0).all()


def test_yarns_attention_factor_is_squared_in_the_logits() -> None:
    q, span = torch.randn(1, 2, 9, 32, dtype=torch.float64), Span.window(9)
    ones, half = (extended(YaRN, 8.0, attention_factor=factor) for factor in (1.0, 0.5))
    assert extended(YaRN, 8.0).attention_factor == pytest.approx(0.1 * math.log(8) + 1)
    (q1, k1), (q2, k2) = (encoding.rotate(q, q, span, 0) for encoding in (ones, half))
    torch.testing.assert_close(q2 @ k2.mT, q1 @ k1.mT / 4)


def test_factor_and_original_length_are_both_honoured() -> None:
    for kind in (DynamicNTK, YaRN):
        kinds = [
            theta(kind(SHAPE, factor=factor, original_length=length), window=1024)
            for factor, length in ((2.0, 128), (4.0, 128), (2.0, 512))
        ]
        assert len({tuple(k.tolist()) for k in kinds}) == 3


def test_dynamic_ntk_keeps_nothing_and_sees_the_whole_window_in_a_block() -> None:
    encoding = extended(DynamicNTK, 1.0)
    short = theta(encoding, 100)
    assert not torch.equal(theta(encoding, 2000), short)
    assert torch.equal(theta(encoding, 100), short)
    assert torch.equal(short, theta(RoPE(SHAPE)))
    whole = Span.window(1000)
    assert torch.equal(encoding.frequencies(whole.rows(0, 10)), encoding.frequencies(whole))


def test_dynamic_ntk_gives_every_kernel_the_same() -> None:
    encoding = extended(DynamicNTK, 1.0)
    q, k, v = torch.randn(3, 1, 2, 300, 32, dtype=torch.float64).unbind()
    outputs = [kernel(q, k, v, encoding, 0, Span.window(300)) for kernel in ON_CPU.values()]
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=EXACT, atol=EXACT)


def test_logn_sharpens_beyond_its_length_only() -> None:
    q, span = torch.randn(1, 2, 300, 32), Span.window(300)
    plain, _ = RoPE(SHAPE).rotate(q, q, span, 0)
    sharp, _ = LogNRoPE(SHAPE, original_length=LENGTH).rotate(q, q, span, 0)
    assert torch.equal(sharp[:, :, :LENGTH], plain[:, :, :LENGTH])
    expected = plain[:, :, -1] * math.log(300) / math.log(LENGTH)
    torch.testing.assert_close(sharp[:, :, -1], expected)


# Streaming attention: against a cache that is really kept


def _with_a_cache(encoding: Streaming, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query at a time over a list of keys, positions counted in the list."""
    kept: list[int] = []
    rows = []
    for i in range(q.shape[2]):
        kept.append(i)
        if len(kept) > encoding.sinks + encoding.recent:
            del kept[encoding.sinks]
        at = torch.arange(len(kept))
        turned_q, turned_k = RoPE(SHAPE).rotate(q[:, :, [i]], k[:, :, kept], Span(at[-1:], at), 0)
        weights = (turned_q @ turned_k.mT / 32**0.5).softmax(-1)
        rows.append(weights @ v[:, :, kept])
    return torch.cat(rows, 2)


@pytest.mark.parametrize(("sinks", "recent"), [(0, 5), (4, 1), (4, 20), (3, 1000)])
@pytest.mark.parametrize("kernel", ["reference", "blocked"])
def test_streaming_is_a_cache_of_sinks_and_recent_keys(
    kernel: str, sinks: int, recent: int
) -> None:
    encoding = Streaming(SHAPE, original_length=LENGTH, sinks=sinks, recent=recent)
    q, k, v = torch.randn(3, 1, 2, 150, 32, dtype=torch.float64).unbind()
    out = KERNELS[kernel](q, k, v, encoding, 0, Span.window(150))
    torch.testing.assert_close(out, _with_a_cache(encoding, q, k, v), rtol=EXACT, atol=EXACT)


# The command


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extension")
    for name in ("rope", "alibi"):
        assert train(root, f"encoding={name}") == 0
    return root


def run_folder(root: Path, name: str = "rope") -> Path:
    return next(root.rglob(f"{name}/seed1"))


def evaluate(root: Path, *words: str, name: str = "rope") -> int:
    return cli.run(["eval", f"run={run_folder(root, name)}", "runtime.device=cpu", *words])


@pytest.mark.parametrize("name", a_few(["pi", "ntk", "dynamic_ntk", "yarn", "logn", "window"], 2))
def test_every_extension_is_a_row_beside_the_run(root: Path, name: str, capfd: Output) -> None:
    assert evaluate(root, f"extension={name}", "eval.lengths=[16,64]") == 0
    shown = capfd.readouterr().out
    factor = " x8" if name in ("pi", "ntk", "yarn") else ""
    assert f"rope + {name}{factor} " in shown
    found = [r for r in read(run_folder(root)) if (r.extension or "").startswith(name)]
    assert [r.length for r in found] == [16, 64]
    assert all(r.perplexity is not None and r.perplexity > 1 for r in found)
    saved = {p.name: p for p in (run_folder(root) / "losses").iterdir()}
    for result in found:
        slug = (result.extension or "").replace(" ", "-")
        path = saved[f"fixed_targets-{result.length}-{result.targets}-{slug}.npz"]
        losses = np.load(path)["losses"]
        close(losses.sum(), result.nll, torch.float32, len(losses))


def test_what_changes_nothing_gives_the_same_number(root: Path) -> None:
    """Each extension at the training length, set so that it does nothing there."""
    assert evaluate(root, "eval.lengths=[16,32]", "eval.targets=8") == 0
    for words in (["pi", "extension.factor=1"], ["dynamic_ntk"], ["logn"]):
        choice, *rest = words
        assert evaluate(root, f"extension={choice}", *rest, "eval.lengths=[16,32]") == 0
    by_kind: dict[str | None, Result] = {
        r.extension: r for r in read(run_folder(root)) if r.length == 16
    }
    plain = by_kind[None].nll
    assert by_kind["pi"].nll == plain
    assert by_kind["dynamic_ntk"].nll == plain
    assert by_kind["logn"].nll == plain


def test_the_runs_own_numbers_stay(root: Path) -> None:
    before = {(r.length, r.targets): r for r in read(run_folder(root)) if r.extension is None}
    assert evaluate(root, "extension=pi", "extension.factor=2") == 0
    after = {(r.length, r.targets): r for r in read(run_folder(root)) if r.extension is None}
    assert after == before


@pytest.mark.parametrize(
    ("name", "words", "said"),
    a_few(
        [
            ("alibi", ["extension=yarn"], ["YaRN", "ALiBi"]),
            (
                "rope",
                ["extension=yarn", "extension.original_length=32"],
                ["original_length=32", "16"],
            ),
            ("rope", ["extension=pi", "extension.factor=0.5"], ["factor=0.5"]),
            ("rope", ["extension=yarn", "extension.ramp=linear"], ["ramp=linear"]),
            ("rope", ["extension=window", "extension.sinks=16"], ["recent=0"]),
            ("rope", ["extension=yran"], ["yran", "yarn"]),
            ("rope", ["extension=pi", "extension.facto=2"], ["facto"]),
            (
                "rope",
                ["extension=pi", "extension.factor=null"],
                ["extension.factor=None", "float"],
            ),
            ("rope", ["extension=pi", "extension.factor=abc"], ["extension.factor=abc", "float"]),
            ("rope", ["extension=pi", "+extension.base=5"], ["extension.base=5", "10000"]),
            ("rope", ["extension=window", "extension.recent=2.5"], ["recent=2.5", "int"]),
            (
                "rope",
                ["extension=yarn", "extension.original_length=0"],
                ["original_length=0", "16"],
            ),
            ("rope", ["extension=yarn", "extension.alpha=nan"], ["extension.alpha=nan"]),
        ],
        3,
    ),
)
def test_a_mistake_gets_one_clear_line(
    root: Path, name: str, words: list[str], said: list[str], capfd: Output
) -> None:
    capfd.readouterr()
    assert evaluate(root, *words, name=name) == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in said)


def test_every_knob_is_in_the_name(root: Path) -> None:
    """++, too: else another setting would replace the row of the first."""
    assert evaluate(root, "extension=yarn", "++extension.alpha=2", "extension.ramp=code") == 0
    assert "yarn x8 alpha=2 ramp=code" in {r.extension for r in read(run_folder(root))}


@pytest.mark.slow
def test_a_sweep_over_extensions_reports_every_failure(root: Path, capfd: Output) -> None:
    words = [f"run={run_folder(root)}", "extension=pi", "extension.factor=0.5,2,0.25"]
    assert cli.run(["eval", "-m", *words]) == 1
    error = capfd.readouterr().err
    assert "error: 2 of 3 jobs failed" in error
    at_the_end = error.rpartition("jobs failed")[2]
    for factor in ("factor=0.5", "factor=0.25"):
        assert factor in at_the_end
    assert not Path("multirun").exists()


@pytest.mark.slow
def test_a_run_forced_to_one_kernel_can_still_be_streamed(tmp_path: Path) -> None:
    assert train(tmp_path, "encoding=rope model.attention=fused") == 0
    assert evaluate(tmp_path, "extension=window") == 0
