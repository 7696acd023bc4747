from __future__ import annotations

import pytest

from service.listen import MAX_PAYLOAD_BYTES, payloads
from service.notify import Hub, job_topic


def test_one_payload_holds_the_sender_and_its_topics() -> None:
    assert payloads("me", {"jobs", "job:1"}) == ["me job:1 jobs"]
    assert payloads("me", set()) == []


def test_many_topics_take_several_payloads_and_none_is_lost() -> None:
    topics = {job_topic(f"job_{index:026d}") for index in range(1000)}
    found = payloads("me", topics)
    assert len(found) > 1
    assert all(len(text.encode()) <= MAX_PAYLOAD_BYTES for text in found)
    assert all(text.split()[0] == "me" for text in found)
    assert {topic for text in found for topic in text.split()[1:]} == topics


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_hub_that_is_fed_polls_rarely_and_all_look_when_that_changes() -> None:
    hub = Hub(0.5, fed_interval_s=5)
    assert hub.poll_interval_s == 0.5
    with hub.subscribe("topic") as subscription:
        hub.set_fed(True)
        assert hub.poll_interval_s == 5
        assert await subscription.wait(0), "what came before the listener stood is looked for"
        hub.set_fed(True)
        assert not await subscription.wait(0)
        hub.set_fed(False)
        assert await subscription.wait(0), "whoever sleeps for long must sleep for shorter now"
        assert hub.poll_interval_s == 0.5
    assert hub.polls == 1
