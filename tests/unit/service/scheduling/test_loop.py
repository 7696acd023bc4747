from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.heartbeat import Heartbeat, decide_absence, decide_skew


@pytest.mark.parametrize(
    ("wall_s", "steady_s", "because"),
    [
        pytest.param(1.0, 1.0, None, id="a round"),
        pytest.param(4.0, 4.2, None, id="a slow round"),
        pytest.param(3601.0, 1.0, "the clock jumped by 3600.0 s", id="set forward, or the machine slept"),
        pytest.param(-3599.0, 1.0, "the clock jumped by -3600.0 s", id="set back"),
        pytest.param(91.0, 91.0, "the service stood still for 90.0 s", id="SIGSTOP"),
    ],
)
def test_silence_is_not_held_against_controllers_when_it_was_ours(
    wall_s: float, steady_s: float, because: str | None
) -> None:
    assert decide_absence(wall_s, steady_s, interval_s=1.0) == because


@pytest.mark.parametrize(
    ("before_s", "after_s", "because"),
    [
        pytest.param(0, 0.1, None, id="in step"),
        pytest.param(-60, 3, None, id="a slow answer"),
        pytest.param(-40, -39, "the clock of the service is 39.0 s behind that of the database", id="behind"),
        pytest.param(40, 41, "the clock of the service is 40.0 s ahead of that of the database", id="ahead"),
    ],
)
def test_a_clock_is_compared_with_that_of_the_database(before_s: float, after_s: float, because: str | None) -> None:
    told = datetime(2026, 1, 31, tzinfo=UTC)
    assert decide_skew(told + timedelta(seconds=before_s), told, told + timedelta(seconds=after_s)) == because


def test_a_request_that_comes_before_the_loop_is_unsure_as_well() -> None:
    now, steady = datetime(2026, 1, 31, tzinfo=UTC), [100.0]
    heartbeat = Heartbeat(lambda: steady[0])
    assert heartbeat.why_unsure(now + timedelta(hours=1), 1.0) is None, "no loop runs here"
    heartbeat.look(now)
    steady[0] += 2
    assert heartbeat.why_unsure(now + timedelta(seconds=2), 1.0) is None
    assert heartbeat.why_unsure(now + timedelta(hours=1), 1.0) == "the clock jumped by 3598.0 s"
    steady[0] += 88
    assert heartbeat.why_unsure(now + timedelta(seconds=90), 1.0) == "the service stood still for 89.0 s"
    heartbeat.look(now + timedelta(seconds=90))
    assert heartbeat.why_unsure(now + timedelta(seconds=90), 1.0) is None
