"""The machine's limits, measured beside the encodings: rates of a matrix product and a copy."""

from __future__ import annotations

import torch

from posbench.speed.rounds import Best, Work
from posbench.speed.work import wait

SIDE = {"cpu": 2048, "cuda": 8192}  # of square matrices
SMALL, SLOW = 256, 2e9  # side; below so many operations a second the CPU emulates the dtype
COPIED = 2**26  # float32 numbers, more than a cache holds
TRIES = 3  # calls in a round; the fastest counts


def matmul(dtype: torch.dtype, device: torch.device) -> Work:
    """A product of two square matrices; Work.amount is floating-point operations, 2 n^3.

    The matrices are small where the CPU emulates the dtype: large ones would take minutes.
    """
    return _product(side(dtype, device), dtype, device)


def side(dtype: torch.dtype, device: torch.device) -> int:
    """How many rows and columns `matmul` has."""
    large = SIDE[device.type]
    if device.type != "cpu" or large <= SMALL:
        return large
    small = Best(lambda: _product(SMALL, dtype, device), TRIES)
    small.warm_up()
    return SMALL if small.rate() < SLOW else large


def _product(n: int, dtype: torch.dtype, device: torch.device) -> Work:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)
        wait(device)

    return Work(multiply, 2 * n**3, warm=1)


def copy(device: torch.device) -> Work:
    """A copy from RAM to RAM; Work.amount is bytes read and written."""
    a = torch.ones(COPIED, device=device)
    out = torch.empty_like(a)

    def move() -> None:
        out.copy_(a)
        wait(device)

    return Work(move, 2 * a.numel() * a.itemsize, warm=1)
