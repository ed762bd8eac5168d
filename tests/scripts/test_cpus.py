"""scripts/test_cpus.py: the settings there are, and what it says of a test that hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import test_cpus as cpus


def test_every_instruction_set_dtype_and_number_of_threads_has_a_setting() -> None:
    found = [setting.environment() for setting in cpus.SETTINGS]
    for name, values in {
        "ATEN_CPU_CAPABILITY": {"default", "avx2", None},
        "MKL_ENABLE_INSTRUCTIONS": {"SSE4_2", "AVX2", None},
        "ONEDNN_MAX_CPU_ISA": {"SSE41", "AVX2", None},
        "POSBENCH_TEST_DTYPE": {"float32", "bfloat16"},
        "POSBENCH_TEST_THREADS": {"1", "2"},
    }.items():
        assert {each.get(name) for each in found} == values


def test_a_setting_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    own = next(setting for setting in cpus.SETTINGS if setting.processor == "own")
    assert "ATEN_CPU_CAPABILITY" not in own.environment()


@pytest.mark.slow
def test_a_test_that_hangs_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_three.py"
    file.write_text(
        "import os, time\n"
        "def test_hangs(): time.sleep(600)\n"
        "def test_fails(): assert os.environ['POSBENCH_TEST_DTYPE'] == 'float32'\n"
        "def test_passes(): pass\n"
    )
    monkeypatch.setattr(cpus, "HANGS", 3)
    monkeypatch.setattr(cpus, "OUT", tmp_path / "out")
    monkeypatch.setattr(cpus, "ROOT", tmp_path)
    only = ["--only", "own-float32-1", "sse-bfloat16-2"]
    assert cpus.main([*only, "--", os.fspath(file)]) == 1
    said = capsys.readouterr().out
    first, second = said.partition("sse-bfloat16-2")[::2]
    assert "test_hangs" in first
    assert "test_fails" not in first
    assert "2 passed" in first
    assert "test_hangs" in second
    assert "test_fails" in second
    assert said.splitlines()[-1] == "failed: own-float32-1, sse-bfloat16-2"
