"""What is masked: a share, never BOS, by seed, batch and lane alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posbench.errors import UserError
from posbench.model import from_config
from posbench.objectives import Causal, Example, Masked, Vocabulary
from tests.conformance.test_conformance import composed

WORDS = Vocabulary(1000, masks=True)
LANES, LENGTH = 6, 200


def windows(bos: bool = False) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, 900, (LANES, LENGTH))
    if bos:
        drawn[:, 0] = WORDS.bos
    return drawn


def made(
    objective: Masked, inputs: np.ndarray, seed: int = 1, number: int = 3, first: int = 0
) -> Example:
    lanes = range(first, first + len(inputs))
    return objective.example(inputs, inputs, seed, number, lanes, WORDS)


def test_causal_is_the_next_token() -> None:
    inputs = windows()
    example = Causal().example(inputs, inputs + 1, 0, 0, range(LANES), Vocabulary(1000))
    assert example.inputs is inputs
    assert np.array_equal(example.targets, inputs + 1)
    assert example.places is None
    assert not Causal.two_sided


@pytest.mark.parametrize("share", [0.001, 0.15, 0.4])
@pytest.mark.parametrize("spans", [1, 3])
def test_a_share_of_each_window_is_predicted_from_what_stood_there(
    share: float, spans: int
) -> None:
    inputs = windows(bos=True)
    example = made(Masked(share=share, spans=spans), inputs)
    assert example.places is not None
    assert example.places.shape == (LANES, max(1, round(share * LENGTH)))
    for row in range(LANES):
        places = example.places[row]
        assert (np.diff(places) > 0).all()
        assert places[0] > 0, "BOS"
        assert np.array_equal(example.targets[row], inputs[row, places])
        others = np.delete(np.arange(LENGTH), places)
        assert np.array_equal(example.inputs[row, others], inputs[row, others])
    assert (inputs[:, 0] == WORDS.bos).all(), "the batch is left as it is"


def test_most_become_mask_some_another_token_some_stay() -> None:
    inputs = np.random.default_rng(0).integers(0, 900, (40, 500))
    example = made(Masked(share=0.5), inputs)
    assert example.places is not None
    shown = np.take_along_axis(example.inputs, example.places, axis=1)
    masked, same = shown == WORDS.mask, shown == example.targets
    count = shown.size
    assert abs(masked.mean() - 0.8) < 4 * (0.16 / count) ** 0.5
    assert abs(same.mean() - 0.1) < 4 * (0.09 / count) ** 0.5 + 1 / 1000
    others = shown[~masked & ~same]
    assert (others != WORDS.bos).all()
    assert others.max() > 900, "any ordinary token"


def test_all_may_be_masked() -> None:
    example = made(Masked(masked=1.0, random=0.0), windows())
    assert example.places is not None
    assert (np.take_along_axis(example.inputs, example.places, 1) == WORDS.mask).all()


def test_masks_follow_from_seed_batch_and_lane_alone() -> None:
    inputs, objective = windows(), Masked()
    whole = made(objective, inputs)
    assert whole.places is not None
    for first in range(LANES):  # as another process has them
        part = made(objective, inputs[first : first + 2], first=first)
        for ours, theirs in zip(part, whole, strict=True):
            assert ours is not None
            assert theirs is not None
            assert np.array_equal(ours, theirs[first : first + 2])
    assert len({row.tobytes() for row in whole.places}) == LANES
    for changed in (made(objective, inputs, seed=2), made(objective, inputs, number=4)):
        assert changed.places is not None
        assert not np.array_equal(changed.places, whole.places)
    other = made(objective, (inputs + 7) % 900)
    assert other.places is not None
    assert np.array_equal(other.places, whole.places), "not by what is written there"


def test_spans_are_neighbours_anywhere() -> None:
    inputs = np.random.default_rng(0).integers(0, 900, (300, LENGTH))

    def neighbours(spans: int) -> tuple[float, np.ndarray]:
        places = made(Masked(spans=spans), inputs).places
        assert places is not None
        return float((np.diff(places) == 1).mean()), np.bincount(places.ravel(), minlength=LENGTH)

    alone, _ = neighbours(1)
    together, counts = neighbours(3)
    assert together > alone + 0.2
    tail, body = counts[-30:].mean(), counts[30:-30].mean()
    assert tail > 0.8 * body, "the end of a window is masked as often"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"share": 0.0}, "objective.share=0.0"),
        ({"share": 1.0}, "objective.share=1.0"),
        ({"share": -0.1}, "objective.share=-0.1"),
        ({"share": float("nan")}, "objective.share=nan"),
        ({"masked": 0.9, "random": 0.2}, "parts of 1"),
        ({"spans": 0}, "objective.spans=0"),
        ({"decoder": "big"}, "objective.decoder=big: choose plain, enhanced"),
        ({"query": "x"}, "objective.query=x"),
        ({"passes": 0}, "objective.passes=0"),
    ],
)
def test_what_cannot_be_used_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Masked(**settings)  # type: ignore[arg-type]


def test_single_bytes_and_whole_windows_are_refused() -> None:
    with pytest.raises(UserError, match=r"objective\.spans=1: a single byte"):
        Masked().require(128, Vocabulary(258, masks=True))
    Masked(spans=3).require(128, Vocabulary(258, masks=True))
    with pytest.raises(UserError, match="masked as a whole"):
        Masked(share=0.9).require(4, WORDS)


def test_a_masked_model_starts_as_a_causal_one_with_a_row_for_mask() -> None:
    """docs/evaluation.md says so: every weight but MASK's, to the last bit."""
    words = ("model=tiny", "encoding=t5")
    causal = from_config.model(composed(*words), 50).state_dict()
    masked = from_config.model(composed(*words, "objective=masked"), 51).state_dict()
    assert masked.keys() == causal.keys()
    row = masked["tokens.weight"][50:]
    masked["tokens.weight"] = masked["tokens.weight"][:50]
    assert all(torch.equal(masked[name], causal[name]) for name in causal)
    assert 0.2 < float(row.std() / causal["tokens.weight"].std()) < 5
