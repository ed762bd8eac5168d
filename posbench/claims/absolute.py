"""Claims 1 to 3: absolute positions, and what relative ones have over them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.claims import probe
from posbench.claims.verdict import Finding
from posbench.encodings import Encoding
from posbench.encodings.learned import Learned

PLACES = 100_000  # positions are drawn below: the slowest wave turns more than once
AHEAD = (1, 10, 100)  # k
BEYOND = 1_000_000  # a position past any training length
SEEN = 1e-3  # of the output: what a moved window changes where it changes anything


def vectors(encoding: Encoding, positions: Tensor) -> Tensor:
    """What an encoding adds at positions [M]: [M, D]."""
    nothing = torch.zeros(1, len(positions), encoding.shape.width, dtype=torch.float64)
    return encoding.embed(nothing, positions)[0]


def linear(encoding: Encoding) -> Finding:
    """M_k by least squares at some positions, tried at others: a 2 × 2 block a frequency."""
    generator = torch.Generator().manual_seed(0)
    fitted, others = torch.randint(PLACES, (2, 100), generator=generator).sort().values
    errors = []
    for k in AHEAD:
        matrices = torch.linalg.lstsq(_pairs(encoding, fitted), _pairs(encoding, fitted + k))
        found = _pairs(encoding, others) @ matrices.solution
        errors.append(probe.apart(_pairs(encoding, others + k), found))
    figure = (
        f"M_k for k = {', '.join(map(str, AHEAD))}, fitted at {len(fitted)} positions, is off by "
        f"{probe.shown(max(errors))} at {len(others)} others"
    )
    return Finding(max(errors) < probe.EXACT, figure)


def _pairs(encoding: Encoding, positions: Tensor) -> Tensor:
    """Neighbouring dimensions together, a sine and its cosine: [M] -> [D/2, M, 2]."""
    found = vectors(encoding, positions)
    return F.pad(found, (0, found.shape[1] % 2)).unflatten(1, (-1, 2)).transpose(0, 1)


def fixed(encoding: Encoding) -> Finding:
    """No parameters, no end, and a vector that the rest of the window does not change."""
    count = sum(parameter.numel() for parameter in encoding.parameters())
    far = vectors(encoding, torch.tensor([BEYOND]))
    alone = vectors(encoding, torch.tensor([7]))
    among = vectors(encoding, torch.arange(1000))[7:8]
    end = encoding.max_length
    holds = count == 0 and end is None and bool(far.isfinite().all()) and alone.equal(among)
    reach = f"position {BEYOND:,} has a vector" if end is None else f"ends at {end:,} positions"
    return Finding(holds, f"{count:,} parameters; {reach}")


def ends(encoding: Encoding) -> Finding:
    """A window one longer than the table."""
    assert isinstance(encoding, Learned)
    rows = len(encoding.table)
    try:
        probe.model(encoding)(torch.zeros(1, rows + 1, dtype=torch.long))
    except ValueError as refused:
        return Finding(True, f"a window of {rows + 1:,} tokens is refused: {refused}")
    given = f"beyond={encoding.beyond}"
    return Finding(False, f"{given}: a window of {rows + 1:,} tokens has positions, {rows:,} rows")


def moves(encoding: Encoding) -> Finding:
    """A window moved as a whole must change the attention."""
    far, change = probe.moved(encoding)
    return Finding(change > SEEN, _moved(far, change))


def stays(encoding: Encoding) -> Finding:
    """A window moved as a whole must not change the attention."""
    far, change = probe.moved(encoding)
    return Finding(change < probe.EXACT, _moved(far, change))


def _moved(far: int, change: float) -> str:
    return f"a window moved by {far:,} tokens changes the attention by {probe.shown(change)}"
