"""What the machine brings along: streams, environment variables, the user's home. Without torch.

`enter` puts it in order once, before anything is imported that reads it. `changing` is what of
it could change a number, for a run's provenance.
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


def enter() -> None:
    """Once in a process that the user started."""
    # Figures are drawn without a screen, hold no time, and no warning is an error.
    os.environ["MPLBACKEND"] = "agg"
    for name in ("SOURCE_DATE_EPOCH", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    warnings.filters[:] = [each for each in warnings.filters if each[0] != "error"]  # type: ignore[index]
    if os.environ.get("POSBENCH_CACHE"):
        _settle_libraries()


def _settle_libraries() -> None:
    """Where the user's home takes no files, those of libraries go to POSBENCH_CACHE too."""
    try:
        cache = os.path.abspath(paths.typed("POSBENCH_CACHE", os.environ["POSBENCH_CACHE"]))
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
    """The user's, or None: a user without an entry in passwd has none where HOME is not set."""
    found = os.path.expanduser("~")
    return Path(found) if os.environ.get("HOME") != "" and os.path.isabs(found) else None


def changing() -> dict[str, str]:
    """The variables that are set and could change a number: name -> value."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if CHANGING.fullmatch(name) and not HARMLESS.match(name)
    }


def without_git() -> dict[str, str]:
    """The environment without Git's variables, which name another repository inside a hook."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
