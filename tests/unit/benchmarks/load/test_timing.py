from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks.load.timing import percentile, send_at_rate


def test_a_request_that_had_to_wait_is_charged_from_when_it_was_due() -> None:
    """A service that stands still once is slow for all that were due meanwhile, not for one request."""
    free = asyncio.Lock()

    async def send(number: int) -> None:
        async with free:
            if number == 0:
                await asyncio.sleep(0.2)

    latencies_s = asyncio.run(send_at_rate(rate=50, seconds=0.1, send=send))
    assert len(latencies_s) == 5
    for number, latency_s in enumerate(latencies_s):
        assert latency_s >= 0.2 - number / 50 - 0.001


def test_a_refused_request_ends_the_measurement() -> None:
    async def send(number: int) -> None:
        assert number != 3, "refused"

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(send_at_rate(rate=1000, seconds=0.02, send=send))
    assert "refused" in str(raised.value.exceptions[0])


@given(values=some.lists(some.floats(0, 100), min_size=1), share=some.floats(0.01, 1))
def test_a_percentile_is_a_value_that_its_share_does_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        percentile([], 0.5)
