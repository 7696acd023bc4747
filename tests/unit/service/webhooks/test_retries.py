from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.webhooks.retries import LONGEST_WAIT_S, MAX_TRIES, decide_delivery
from service.webhooks.sending import Sent
from service.webhooks.topics import TEST_KIND

FAILED = Sent(500, "It answered with 500.")


def test_what_arrived_is_over() -> None:
    assert decide_delivery(Sent(204), "job.status", 1, 0.5).status == "delivered"


@given(st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_end(spread: float) -> None:
    waits = []
    for tries in range(1, MAX_TRIES):
        decision = decide_delivery(FAILED, "job.status", tries, spread)
        assert decision.status == "pending"
        assert decision.wait is not None
        waits.append(decision.wait.total_seconds())
    assert waits == sorted(waits)
    assert 2.5 <= waits[0] <= 5
    assert waits[-1] <= LONGEST_WAIT_S
    assert 9 * 3600 <= sum(waits) <= 24 * 3600, "most of a day at the longest"
    last = decide_delivery(FAILED, "job.status", MAX_TRIES, spread)
    assert (last.status, last.wait) == ("failed", None)


def test_tests_and_endpoints_that_are_gone_are_tried_once() -> None:
    assert decide_delivery(FAILED, TEST_KIND, 1, 0).status == "failed"
    assert decide_delivery(Sent(410, "It answered with 410."), "job.status", 1, 0).status == "failed"
