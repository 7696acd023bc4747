"""When members settle what they keep, and what is told where some of it is lost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from groups import record_of

from rubato.engine.aggregation import REGISTERED
from rubato.engine.header import Decision, Header, Leaving
from rubato.engine.reduction import Reduced
from rubato.engine.session import Session
from rubato.engine.settling import alikeness, hear, is_due, resume, tell_lost
from rubato.wire.events import EventKind

STAY = Decision(0, 0, Leaving.NO, 0, True, 0.0, 1.0)
RECORD = record_of(2, 7)


def header(generation: int, kept: float) -> Header:
    return Header(1, generation, 4, 1, 1, Leaving.NO, 0, True, None, 0, ((0.0, 0.0),), kept=kept)


def session_of(**aggregation: Any) -> tuple[Session, list[tuple[EventKind, dict[str, Any]]]]:
    """A session whose aggregation is as told, and what it tells."""
    told: list[tuple[EventKind, dict[str, Any]]] = []
    kept = {"is_settled": False, "is_disturbed": False, "settling": None, "what": "all that is kept", **aggregation}
    kept = {"saved": "what was saved", **kept}
    session = SimpleNamespace(
        aggregation=SimpleNamespace(**kept),
        completed=SimpleNamespace(key=(4, 1)),
        reduced=1,
        notice=lambda kind, message, **data: told.append((kind, data)),
    )
    return cast(Session, session), told


@pytest.mark.parametrize(
    ("decision", "saves", "expected"),
    [
        (STAY, False, False),
        (STAY, True, True),
        (replace(STAY, feed=3), False, False),
        (replace(STAY, switch_to=3), False, True),
        (replace(STAY, leaving=Leaving.PAUSE), False, True),
        (replace(STAY, leaving=Leaving.STOP), False, False),
    ],
)
def test_it_is_due_where_members_change_or_the_state_is_saved(decision: Decision, saves: bool, expected: bool) -> None:
    session, _ = session_of()
    assert is_due(session, decision, saves=saves) is expected
    assert is_due(session_of(is_disturbed=True)[0], decision, saves=saves)
    assert not is_due(session_of(is_settled=True)[0], decision, saves=saves)
    assert not is_due(cast(Session, SimpleNamespace(aggregation=None)), decision, saves=saves)


def test_after_a_loss_all_settle_behind_the_first_step_that_they_exchange_together() -> None:
    """Those who have counted the step before it, and those who are told only now that it counts."""
    session, _ = session_of(is_disturbed=True)
    session.reduced = 0
    assert not is_due(session, STAY, saves=False)
    assert is_due(session, STAY, saves=True)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (None, (True, False)),
        (SimpleNamespace(parts_states=False, is_settled=False), (True, False)),
        (SimpleNamespace(parts_states=True, is_settled=False), (False, True)),
        (SimpleNamespace(parts_states=True, is_settled=True), (True, True)),
    ],
)
def test_states_are_alike_unless_workers_have_weights_of_their_own(aggregation: Any, expected: object) -> None:
    assert alikeness(cast(Session, SimpleNamespace(aggregation=aggregation))) == expected


def lost(norm: float, share: float) -> Any:
    def look(incarnations: set[str]) -> tuple[float, float]:
        assert incarnations == {"0.1", "1.1"}
        return norm, share

    return look


def test_what_is_lost_with_a_member_is_told() -> None:
    session, told = session_of(lost=lost(3.0, 0.25))
    tell_lost(session, RECORD)
    assert told == [(EventKind.KEPT_LOST, {"norm": 3.0, "share": 0.25})]


@pytest.mark.parametrize("state", [{"lost": lost(0.0, 0.0)}, {"settling": (4, 1)}], ids=["nothing", "heard"])
def test_nothing_is_told_where_nothing_is_lost(state: dict[str, Any]) -> None:
    session, told = session_of(**state)
    tell_lost(session, RECORD)
    assert told == []


KEPT = {REGISTERED: {"settled": {"residual": torch.ones(2)}}}
NOTHING: list[dict[str, Any]] = [{}, {REGISTERED: {"settled": None}}, {REGISTERED: {"settled": {"q": torch.ones(2)}}}]


def test_what_a_checkpoint_had_of_another_method_is_told() -> None:
    resumed = []
    session, told = session_of(dropped=1.0, resume=lambda: resumed.append(1))
    resume(session, {})
    assert session.aggregation.dropped == 0.0  # type: ignore[union-attr]
    resume(session, {})
    session.aggregation = None
    for nothing in NOTHING:
        resume(session, nothing)
    assert told == [(EventKind.KEPT_LOST, {"share": 1.0})]
    assert len(resumed) == 2
    resume(session, KEPT)
    assert told[1:] == told[:1], "the engine's own reduction has no use for it"


def test_what_of_a_checkpoint_fits_in_part_is_told_with_what_does_not() -> None:
    session, told = session_of(dropped=0.25, resume=lambda: None)
    resume(session, KEPT)
    assert sorted(data["share"] for _, data in told) == [0.25, 1.0]


def test_what_members_keep_is_heard_from_headers_of_their_own_generation() -> None:
    heard: list[dict[str, float]] = []
    session, _ = session_of(hear=heard.append)
    session.record = RECORD
    told = Reduced((), (header(7, 0.5), header(7, 2.0)), b"")
    hear(session, told)
    hear(session, Reduced((), (header(6, 9.0), header(6, 9.0)), b""))
    hear(session, torch.zeros(1))
    assert heard == [{"0.1": 0.5, "1.1": 2.0}]
