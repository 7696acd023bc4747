from __future__ import annotations

import pytest

from rubato.wire.reasons import Reason
from service.models import Job
from service.scheduling.apply import turn
from service.scheduling.view import Decision, Fail, Keep, Preempt, Resize, Start, Wait

HELD = {"one": Job(id="one", granted_workers=2, granted_standby=1)}


@pytest.mark.parametrize(
    "decision",
    [
        Preempt("one", by="other", because=""),
        Fail("one", Reason.QUEUE_TIMEOUT, ""),
        Resize("one", workers=1, standby=1, because=""),
        Resize("one", workers=2, standby=0, because=""),
    ],
)
def test_first_comes_what_gives_slots_back(decision: Decision) -> None:
    assert turn(decision, HELD) == 0


@pytest.mark.parametrize(
    "decision",
    [
        Start("one", "cluster", workers=1, standby=0, because=""),
        Resize("one", workers=3, standby=1, because=""),
        Resize("one", workers=3, standby=0, because=""),  # no more and no less, but its spare begins to train
        Resize("gone", workers=1, standby=0, because=""),
    ],
)
def test_then_what_takes_them(decision: Decision) -> None:
    assert turn(decision, HELD) == 1


@pytest.mark.parametrize("decision", [Wait("one", 1, ""), Keep("one", "")])
def test_then_what_only_tells(decision: Decision) -> None:
    assert turn(decision, HELD) == 2
