"""What holds for every test."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posbench.speed import limits
from tests.helpers import toy

torch.set_num_threads(toy.THREADS)  # one: matrices are small, threads would only wait
limits.SIDE["cpu"] = 64  # every run measures the machine: that would take longer than a toy run


def pytest_collection_finish() -> None:
    """What was imported stays: a run's gc.collect, of which there are three, need not visit it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches of the session's own: the user's stay as they are."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("POSBENCH_CACHE", "TRACKIO_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A log handler writes to the streams of the test that made it: it ends with that test."""
    root = logging.getLogger()
    before = [*root.handlers]
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
        handler.close()


@pytest.fixture
def _no_wandb_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no netrc, no settings, no network, and no W&B process of another test."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("posbench.tracking.background.PATIENCE", 300.0)  # a busy machine is slow
    monkeypatch.chdir(tmp_path)
    from tests.helpers.wandb_file import settle  # wandb takes a second to import

    settle()
    yield
    settle()
