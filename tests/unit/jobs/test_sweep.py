from __future__ import annotations

from jobs.names import ActorName
from jobs.sweep import SWEEP_AFTER_S, Sweep

CONTROLLER, WORKER = ActorName("gone"), ActorName("gone", "1.1")
WANTED = [ActorName("job"), ActorName("job", "1.1")]


def test_only_what_was_unknown_for_long_goes_controllers_first() -> None:
    sweep = Sweep()
    seen = [WORKER, CONTROLLER, *WANTED]
    assert sweep.decide(["job"], seen, 0.0) == []
    assert sweep.decide(["job"], seen, SWEEP_AFTER_S - 1) == []
    assert sweep.decide(["job"], seen, SWEEP_AFTER_S) == [CONTROLLER, WORKER]


def test_one_that_was_wanted_in_between_begins_anew() -> None:
    sweep = Sweep()
    sweep.decide([], [WORKER], 0.0)
    sweep.decide(["gone"], [WORKER], 20.0)
    assert sweep.decide([], [WORKER], 40.0) == []
    assert sweep.decide([], [WORKER], 40.0 + SWEEP_AFTER_S) == [WORKER]
