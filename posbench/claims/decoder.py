"""Claim 7's last part: what the enhanced mask decoder (model/decoder.py) does and what it is for.

The property is tried on a text whose answers depend on the place alone. A window of random tokens
begins at a random place of a ring, one token is MASK, and each place of the ring has its answer. A
model whose positions are relative gives the same probabilities wherever the window begins, so it
can do no better than chance.

The measured parts compare the decoder with itself without positions (objective.positions=none):
leaving the whole decoder out would leave out its passes over the last layer too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posbench.claims.answers import Answer, far, trained
from posbench.claims.evidence import Evidence, Measured
from posbench.claims.verdict import Finding
from posbench.encodings import Encoding, Shape
from posbench.encodings.deberta import DeBERTa
from posbench.model.decoder import EnhancedDecoder
from posbench.model.transformer import Transformer, initialise
from posbench.objectives import DecoderSettings
from posbench.report.writing.wording import ends, number

PLACES, LENGTH = 32, 16  # tokens of the ring, and of a window
NOISE, ANSWERS = 16, 8  # kinds of tokens
MASK = NOISE + ANSWERS
STEPS, BATCH, RATE = 200, 64, 1e-2
SOLVED = 0.9  # of the answers; the model is sure of each place that it has seen
UNSOLVED = 2 / ANSWERS  # twice chance


class _From(EnhancedDecoder):
    """The decoder of a window that begins at `start`."""

    start = 0

    def forward(self, context: Tensor, positions: Tensor, last: object) -> Tensor:
        return super().forward(context, (positions + self.start) % PLACES, last)  # type: ignore[arg-type]


def reinjects(_: Encoding | None = None) -> Finding:
    """The answers found by models that differ in the decoder's positions alone."""
    shares = {name: recalled(name) for name in ("learned", "none")}
    figure = (
        f"a token that depends on its place in the text alone: {shares['learned']:.0%} of the "
        f"answers with the decoder's positions, {shares['none']:.0%} without (chance "
        f"{1 / ANSWERS:.0%})"
    )
    return Finding(shares["learned"] > SOLVED and shares["none"] < UNSOLVED, figure)


@torch.enable_grad()
def recalled(positions: str) -> float:
    """The share of answers that a small DeBERTa learns, trained for a second or two."""
    generator = torch.Generator().manual_seed(0)
    answers = NOISE + torch.randperm(PLACES, generator=generator) % ANSWERS
    model = _model(positions)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        loss, _ = _step(model, answers, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return sum(_step(model, answers, generator)[1] for _ in range(PLACES)) / PLACES


def _model(positions: str) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        shape = Shape(32, 2, 1, two_sided=True)
        settings = DecoderSettings(2, "positions", positions, PLACES, "refuse")
        decoder = _From(shape, settings)
        made = Transformer(
            shape, MASK + 1, DeBERTa(shape, LENGTH), feed_forward=64, decoder=decoder
        )
    initialise(made, torch.Generator().manual_seed(0))
    return made


def _step(model: Transformer, answers: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """The loss of one batch of windows, and the share of its answers that are right."""
    start = int(torch.randint(PLACES, (), generator=generator))
    places = torch.randint(LENGTH, (BATCH,), generator=generator)
    tokens = torch.randint(NOISE, (BATCH, LENGTH), generator=generator)
    rows = torch.arange(BATCH)
    tokens[rows, places] = MASK
    assert isinstance(model.decoder, _From)
    model.decoder.start = start
    states, _ = model(tokens)
    logits = model.logits(states[rows, places])
    wanted = answers[(start + places) % PLACES]
    share = (logits.argmax(-1) == wanted).double().mean()
    return F.cross_entropy(logits, wanted), float(share)


def needed(found: Evidence) -> Answer | None:
    """Better than the same passes without positions, beyond the interval. Of several such pairs
    the one that predicts best: the others have learned less."""
    pairs = [
        (placed, bare, ratio)
        for placed in _decoded(found, "learned")
        if (bare := found.like(placed, positions="none")) is not None
        and (ratio := found.paired(placed, bare)) is not None
    ]
    if not pairs:
        return None
    placed, bare, ratio = min(pairs, key=lambda pair: found.trained(pair[0]))
    used, figure = (
        [placed, bare],
        (
            f"{trained(found, placed)}; the same passes without positions "
            f"{number(found.trained(bare))}, ×{number(ratio.value, 3)} ({ends(ratio, 3)})"
        ),
    )
    if (plain := found.one(DeBERTa)) is not None:
        used.append(plain)
        figure += f"; without decoder {number(found.trained(plain))}"
    return Answer(ratio.high is not None and ratio.high < 1, figure, used)


def extrapolates(found: Evidence, most: float) -> Answer | None:
    """Sinusoids have no last row, and what a table has none for cannot be read. Of several
    decoders with the same positions the one that predicts best."""
    used: list[Measured] = []
    holds, figures = [], []
    for positions in ("learned", "sinusoidal"):
        measured = min(_decoded(found, positions), key=found.trained, default=None)
        if measured is None:
            continue
        if (reason := measured.reasons.get(found.longest)) is not None:
            holds.append(False)
            figures.append(f"{trained(found, measured)} → n/a at {found.longest:,}: {reason}")
        elif (ratio := found.ratio(measured)) is not None:
            holds.append(ratio <= most)
            figures.append(far(found, measured))
        else:
            continue
        used.append(measured)
    plain = found.one(DeBERTa)
    if used and plain is not None and found.ratio(plain) is not None:
        used.append(plain)
        figures.append(f"without decoder {far(found, plain)}")
    return Answer(all(holds), "; ".join(figures), used) if holds else None


def _decoded(found: Evidence, positions: str) -> list[Measured]:
    """DeBERTas with a decoder of these positions, scored at the training length."""
    return [
        measured
        for measured in found.all(DeBERTa)
        if measured.decoder.get("positions") == positions
        and found.train_length in measured.perplexity
    ]
