from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.heartbeat import Heartbeat, decide_absence, decide_skew
from service.leases import is_held


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


def test_after_a_jump_nothing_is_settled_for_minutes() -> None:
    now, steady = datetime(2026, 1, 31, tzinfo=UTC), [100.0]
    heartbeat = Heartbeat(lambda: steady[0])
    assert heartbeat.why_unsettled(now) is None, "no loop runs here"
    heartbeat.look(now)
    steady[0] += 90
    assert heartbeat.why_unsettled(now + timedelta(seconds=90)) is None, "a service that stood still has the right time"
    ahead = now + timedelta(days=1)
    assert heartbeat.why_unsettled(ahead) == "the clock jumped by 86310.0 s", "also before the loop looks"
    heartbeat.look(ahead)
    for _ in range(4):
        assert heartbeat.why_unsettled(ahead) == "the clock jumped less than 300 s ago"
        steady[0] += 74
        ahead += timedelta(seconds=74)
        heartbeat.look(ahead)
    steady[0] += 4
    assert heartbeat.why_unsettled(ahead + timedelta(seconds=4)) is None
    heartbeat.out_of_step = "the clock of the service is 39.0 s behind that of the database"
    assert heartbeat.why_unsettled(ahead) == heartbeat.out_of_step


def test_silence_counts_from_where_somebody_listened() -> None:
    now, steady = datetime(2026, 1, 31, tzinfo=UTC), [100.0]
    heartbeat, long = Heartbeat(lambda: steady[0]), timedelta(seconds=120)
    assert heartbeat.has_listened_for(long), "no loop runs here"
    heartbeat.look(now, is_anew=True)
    assert not heartbeat.has_listened_for(long)
    steady[0] += 120
    heartbeat.look(now + timedelta(seconds=120))
    assert heartbeat.has_listened_for(long)
    heartbeat.look(now + timedelta(seconds=120), is_anew=True)
    assert not heartbeat.has_listened_for(long)


@pytest.mark.parametrize(("until_s", "counts"), [(-1, False), (0, True), (30, True), (60, True), (61, False)])
def test_a_lease_that_no_clock_of_today_can_have_written_does_not_count(until_s: float, counts: bool) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert is_held(now + timedelta(seconds=until_s), now, timedelta(seconds=30)) is counts
