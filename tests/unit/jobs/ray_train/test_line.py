"""The line to the job's controller: in order, each message once, and the end of a run that does not count any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from jobs.ray_train import line as module
from jobs.ray_train.line import Line


class FakeRay:
    """A controller that answers as it is told: True, False, or None for no answer."""

    def __init__(self, answers: list[bool | None]) -> None:
        self.answers = answers
        self.heard: list[tuple[int, tuple[Any, ...]]] = []
        self.hear = self
        self.is_there = True

    def get_actor(self, name: str, namespace: str) -> FakeRay:
        if not self.is_there:
            raise ValueError(name)
        return self

    def remote(self, attempt: int, run: int, source: str, first: int, batch: tuple[Any, ...]) -> bool | None:
        assert (attempt, run) == (1, 2)
        self.heard.append((first, batch))
        return self.answers.pop(0) if self.answers else True

    def get(self, reply: bool | None, timeout: float) -> bool:
        if reply is None:
            raise GetTimeoutError("no answer")
        return reply


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PULSE_S", 0.02)
    monkeypatch.setattr(module, "RETRY_S", 0.01)


def make(monkeypatch: pytest.MonkeyPatch, fake: FakeRay) -> tuple[Line, threading.Event]:
    stale = threading.Event()
    monkeypatch.setattr(module, "ray", fake)
    return Line("job_1", 1, 2, on_stale=stale.set), stale


@pytest.mark.usefixtures("quick")
def test_what_was_not_answered_is_sent_again_under_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay([None, None])
    line, stale = make(monkeypatch, fake)
    for message in range(5):
        line.put(message)
    line.close(5.0)
    seen: dict[int, Any] = {}
    for first, batch in fake.heard:
        for at, message in enumerate(batch, first):
            assert seen.setdefault(at, message) == message
    assert seen == {number: number for number in range(5)}
    assert not stale.is_set()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_does_not_count_is_ended(monkeypatch: pytest.MonkeyPatch, *, is_there: bool) -> None:
    fake = FakeRay([False])
    fake.is_there = is_there
    _, stale = make(monkeypatch, fake)
    assert stale.wait(5.0), "also where there is nothing to say"


@pytest.mark.usefixtures("quick")
def test_a_run_that_nobody_answers_for_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.1)
    _, stale = make(monkeypatch, FakeRay([None] * 10_000))
    assert stale.wait(5.0)
