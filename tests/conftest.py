"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the session's own: the user's stays as it is."""
    before = os.environ.get("POSBENCH_CACHE")
    os.environ["POSBENCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["POSBENCH_CACHE"]
    else:
        os.environ["POSBENCH_CACHE"] = before
