from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ErrorKind, ServiceError
from service.limits import Limits, TokenBucket


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate_per_s=2, size=3, level=3, filled_at_s=0)
    assert [bucket.take(0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(0.25) == 0.25
    assert bucket.take(0.5) == 0
    assert bucket.take(100) == 0
    assert bucket.level == 2, "never more than its size"


@given(st.lists(st.floats(0, 0.5), max_size=60))
def test_a_bucket_never_gives_more_than_burst_and_rate(gaps: list[float]) -> None:
    bucket, now, taken = TokenBucket(4, 5, 5, 0.0), 0.0, 0
    for gap in gaps:
        now += gap
        wait = bucket.take(now)
        taken += wait == 0
        assert taken <= 5 + 4 * now + 1e-6
        if wait:
            assert TokenBucket(4, 5, bucket.level, now).take(now + wait + 1e-9) == 0, "so long and no longer"


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket(1, 1, 1, 10)
    assert bucket.take(10) == 0
    assert bucket.take(0) > 0


def test_callers_are_limited_apart() -> None:
    limits = Limits(1, 2, 1, clock=lambda: 0.0)
    for caller in ("a", "b"):
        limits.admit(caller)
        limits.admit(caller)
        with pytest.raises(ServiceError) as refused:
            limits.admit(caller)
        assert (refused.value.kind, refused.value.extra["retry_after"]) == (ErrorKind.RATE_LIMITED, 1.0)


def test_a_stream_that_ends_makes_room() -> None:
    limits = Limits(1, 1, 2)
    with limits.stream("a"), limits.stream("a"):
        limits.check_stream("b")
        with pytest.raises(ServiceError, match="2 open streams"):
            limits.check_stream("a")
    limits.check_stream("a")
    assert not limits._streams
