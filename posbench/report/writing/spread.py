"""Labels along a line, moved apart."""

from __future__ import annotations

from collections.abc import Sequence


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Centres of labels that do not overlap, as near `wanted` as possible, in low .. high.

    Least squares by pooling neighbours (isotonic regression), then the bounds.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    stacked, above = [], 0.0
    for place, i in enumerate(order):
        above += (heights[order[place - 1]] + heights[i]) / 2 if place else 0
        stacked.append(above)
    pools: list[tuple[float, int]] = []
    for i, offset in zip(order, stacked, strict=True):
        total, count = wanted[i] - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    least = low + heights[order[0]] / 2
    most = max(least, high - heights[order[-1]] / 2 - above)
    made = [0.0] * len(order)
    for i, mean, offset in zip(order, means, stacked, strict=True):
        made[i] = min(max(mean, least), most) + offset
    return made
