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


def fail_to_sign_in(limits: Limits, address: str) -> ServiceError:
    with pytest.raises(ServiceError) as refused, limits.sign_in(address):
        raise ServiceError(ErrorKind.UNAUTHENTICATED, "no good")
    return refused.value


def test_sign_ins_that_fail_are_counted_by_address() -> None:
    now = 0.0
    limits = Limits(1, 1, 1, failed_sign_ins_per_minute=2, clock=lambda: now)
    for _ in range(10):
        with limits.sign_in("192.0.2.1"):
            pass
    kinds = [fail_to_sign_in(limits, "192.0.2.1").kind for _ in range(3)]
    assert kinds == [ErrorKind.UNAUTHENTICATED, ErrorKind.UNAUTHENTICATED, ErrorKind.RATE_LIMITED]
    with pytest.raises(ServiceError, match="More than 2 sign-ins a minute failed") as refused:
        limits.sign_in("192.0.2.1").__enter__()
    assert refused.value.extra == {"retry_after": 30.0}
    assert fail_to_sign_in(limits, "192.0.2.2").kind is ErrorKind.UNAUTHENTICATED
    now = 30.0
    assert fail_to_sign_in(limits, "192.0.2.1").kind is ErrorKind.UNAUTHENTICATED
    assert fail_to_sign_in(limits, "192.0.2.1").kind is ErrorKind.RATE_LIMITED


def test_what_is_nobody_s_fault_is_no_failed_sign_in() -> None:
    limits = Limits(1, 1, 1, failed_sign_ins_per_minute=1, clock=lambda: 0.0)
    for _ in range(5):
        with pytest.raises(OSError, match="away"), limits.sign_in("192.0.2.1"):
            raise OSError("the database is away")


def test_tries_at_once_are_counted_before_they_are_answered() -> None:
    limits = Limits(1, 1, 1, failed_sign_ins_per_minute=1, clock=lambda: 0.0)
    with limits.sign_in("192.0.2.1"), pytest.raises(ServiceError, match="failed from your address"):
        limits.sign_in("192.0.2.1").__enter__()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("testclient", "", False),
    ],
)
def test_whoever_has_a_network_is_one_address(one: str, other: str, *, is_same: bool) -> None:
    limits = Limits(1, 1, 1, failed_sign_ins_per_minute=1, clock=lambda: 0.0)
    fail_to_sign_in(limits, one)
    assert (fail_to_sign_in(limits, other).kind is ErrorKind.RATE_LIMITED) is is_same


def test_of_addresses_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.limits.MAX_ADDRESSES", 2)
    limits = Limits(1, 1, 1, failed_sign_ins_per_minute=1, clock=lambda: 0.0)
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"):
        fail_to_sign_in(limits, address)
    assert len(limits._sign_ins) == 2
    assert fail_to_sign_in(limits, "192.0.2.1").kind is ErrorKind.RATE_LIMITED, "it had tried after the one that went"
    assert fail_to_sign_in(limits, "192.0.2.2").kind is ErrorKind.UNAUTHENTICATED


def test_a_stream_that_ends_makes_room() -> None:
    limits = Limits(1, 1, 2)
    with limits.stream("a"), limits.stream("a"):
        limits.check_stream("b")
        with pytest.raises(ServiceError, match="2 open streams"):
            limits.check_stream("a")
    limits.check_stream("a")
    assert not limits._streams
