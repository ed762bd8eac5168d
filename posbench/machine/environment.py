"""Environment variables and the user's home folder. Does not import torch.

`prepare` is called once, before any library reads them. `changing_numbers` lists the variables
that could change a result, for a run's provenance.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

from posbench.errors import UserError
from posbench.machine import paths

# Variables by which libraries compute otherwise: kernels, instructions, rounding, order of sums.
CHANGING = re.compile(
    "(ATEN|BLIS|CUBLAS|CUBLASLT|CUDNN|DNNL|GOMP|KMP|MKL|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTORCH|TORCH"
    "|TORCHDYNAMO|TORCHINDUCTOR|TRITON)_.+|NCCL_(ALGO|PROTO)|DISABLE_ADDMM_CUDA_LT"
)
# Of these: what is recorded already, names places, or only says more.
HARMLESS = re.compile(
    "NVIDIA_(?!TF32)|TORCH_NCCL_|.*(NUM_THREADS|DIR|FILE|HOME|PATH|ROOT|VERSION|LOGS?|LEVEL|VERBOSE"
    "|DEBUG|TRACE|STACKTRACES)$"
)


def prepare() -> None:
    """Set or drop variables that would disturb libraries; once in a process."""
    # Figures are drawn without a screen, hold no time, and no warning is an error.
    os.environ["MPLBACKEND"] = "agg"
    for name in ("SOURCE_DATE_EPOCH", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    warnings.filters[:] = [each for each in warnings.filters if each[0] != "error"]  # type: ignore[index]
    if os.environ.get("POSBENCH_CACHE"):
        _settle_libraries()


def _settle_libraries() -> None:
    """Send other libraries' caches to POSBENCH_CACHE where the user's home cannot be written."""
    try:
        cache = os.path.abspath(paths.expanded("POSBENCH_CACHE", os.environ["POSBENCH_CACHE"]))
    except (UserError, OSError):  # said where the cache is used
        return
    there = home()
    if there is None or not there.is_dir():
        os.environ["HOME"] = cache
        return
    usual = there / ".cache"
    if not os.access(usual if usual.exists() else there, os.W_OK):
        os.environ.setdefault("HF_TOKEN_PATH", str(usual / "huggingface" / "token"))
        os.environ.setdefault("XDG_CACHE_HOME", cache)


def home() -> Path | None:
    """The user's home folder; None where HOME is not set and passwd has no entry."""
    found = os.path.expanduser("~")
    return Path(found) if os.environ.get("HOME") != "" and os.path.isabs(found) else None


def changing_numbers() -> dict[str, str]:
    """Name -> value of each variable that is set and could change a result."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if CHANGING.fullmatch(name) and not HARMLESS.match(name)
    }


def without_git() -> dict[str, str]:
    """The environment without Git's variables: inside a hook they name another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
