"""What the machine can do at best: products and copies, measured beside the rest."""

from __future__ import annotations

import torch

from posbench.speed.rounds import Work
from posbench.speed.work import wait

SIDE = {"cpu": 2048, "cuda": 8192}  # of square matrices
COPIED = 2**26  # float32 numbers, more than a cache holds
TRIES = 3  # in a round, of which the fastest counts


def matmul(dtype: torch.dtype, device: torch.device) -> Work:
    """A product of two square matrices; amount: floating-point operations, 2 n^3."""
    n = SIDE[device.type]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)
        wait(device)

    return Work(multiply, 2 * n**3, warm=1)


def copy(device: torch.device) -> Work:
    """A copy from memory to memory; amount: bytes read and written."""
    a = torch.ones(COPIED, device=device)
    out = torch.empty_like(a)

    def move() -> None:
        out.copy_(a)
        wait(device)

    return Work(move, 2 * a.numel() * a.itemsize, warm=1)
