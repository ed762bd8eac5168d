"""Device, dtype, threads, compiler, and the peak of RAM or of a GPU's memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from posbench.errors import UserError, is_out_of_memory
from posbench.machine import job

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device(name: str) -> torch.device:
    """By runtime.device. auto: CUDA where there is one. Raises UserError where there is none."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"runtime.device={name}: choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device=cuda: PyTorch sees no CUDA device here; use cpu or auto")
    cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def training_dtype(name: str, device: torch.device) -> torch.dtype:
    """By runtime.dtype. auto: bfloat16 where the hardware multiplies it natively, else float32.

    Without such instructions bfloat16 is emulated: 100 times slower on the AVX2 machine that
    this was measured on.
    """
    if name != "auto":
        if name not in DTYPES:
            raise UserError(f"runtime.dtype={name}: choose auto, {' or '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def set_threads(threads: int, processes: int = 1) -> int:
    """Set PyTorch's threads, 0: one for each core of this process; returns how many.

    processes: how many processes this job has on this machine.
    """
    cores = job.cores()
    most = max(64, 4 * cores)
    if not 0 <= threads <= most:
        raise UserError(f"runtime.threads={threads} must lie in 0 (all cores) .. {most}")
    torch.set_num_threads(threads or max(1, cores // processes))
    return torch.get_num_threads()


def limit_memory(fraction: float, device: torch.device) -> None:
    """Let this process hold a fraction of a CUDA device's memory, in (0, 1].

    No effect on a CPU.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(fraction, device.index)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: a page that is returned and asked for again costs a fault.

    Tensors are freed and made at every step. Other C libraries have no such setting.
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
    """Reset the peak that `peak_memory` reports to what the process holds now."""
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
    """Peak bytes: of the allocator on CUDA, of the process's resident RAM on a CPU."""
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
    """Turn an out-of-memory error into a UserError that says what it was for and what to try."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, UserError) or not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory: {what}; {advice}") from error
