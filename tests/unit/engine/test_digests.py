from __future__ import annotations

import pytest
import torch
from torch import nn

from rubato.engine.digests import StateDigests
from rubato.engine.state import TrainingState, digest_of_part

WHOLE = ((0, 1),)
HALVES = ((0, 2), (1, 2))


@pytest.fixture
def state() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(model)
    return TrainingState({"": model}, {"": optimizer}, {"average": average}, {"seen": 1})


@pytest.fixture
def digests() -> StateDigests:
    return StateDigests()


def spoil_what_microbatches_change(state: TrainingState) -> None:
    """Running statistics, and what a program notes."""
    state.models[""](torch.randn(4, 3))
    state.notes["seen"] = 2


@pytest.mark.parametrize("parts", [WHOLE, HALVES, ((1, 2),)])
def test_what_was_begun_is_of_the_state_as_it_was(
    state: TrainingState, digests: StateDigests, parts: tuple[tuple[int, int], ...]
) -> None:
    before = tuple(digest_of_part(*state.encode(), *one) for one in parts)
    digests.begin(state, 7, parts)
    spoil_what_microbatches_change(state)
    assert digests.of(state, 7, parts) == before
    now = digests.of(state, 7, parts)
    assert now == tuple(digest_of_part(*state.encode(), *one) for one in parts), "what was begun counts once"
    assert now != before


def test_of_another_step_or_other_shares_they_are_computed_now(state: TrainingState, digests: StateDigests) -> None:
    for step, parts in ((8, HALVES), (7, WHOLE)):
        digests.begin(state, 7, HALVES)
        spoil_what_microbatches_change(state)
        assert digests.of(state, step, parts) == tuple(digest_of_part(*state.encode(), *one) for one in parts)


def test_nothing_to_compare_costs_nothing(
    state: TrainingState, digests: StateDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "capture", None)
    digests.begin(state, 7, ())
    assert digests.of(state, 7, ()) == ()


def test_what_goes_wrong_is_told_where_they_are_asked_for(
    state: TrainingState, digests: StateDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.engine.digests.digest_of_part", None)
    digests.begin(state, 7, WHOLE)
    with pytest.raises(TypeError):
        digests.of(state, 7, WHOLE)
