from __future__ import annotations

import threading
from collections.abc import Callable

from jobs.outbox import MAX_EVENTS, Outbox
from rubato.launch.output import OutputLine
from rubato.wire import worker as wire

BEAT = wire.Beat("1.1", 1, 1, "compute", 0.0)
URGENT = wire.Hello("1.1", "store")


def test_events_are_numbered_and_kept_until_acknowledged() -> None:
    outbox = Outbox()
    assert [outbox.put(URGENT) for _ in range(3)] == [1, 2, 3]
    assert [one.seq for one in outbox.take(0, 0)] == [1, 2, 3]
    assert [one.seq for one in outbox.take(0, 1)] == [1, 2, 3], "the answer was lost"
    assert [one.seq for one in outbox.take(2, 0)] == [3]
    assert outbox.take(3, 0) == ()
    assert outbox.pending() == ()


def test_progress_alone_waits_a_little_for_more() -> None:
    now = 100.0
    outbox = Outbox(lambda: now)
    outbox.put(BEAT)
    assert len(outbox.take(0, 0)) == 1, "the first is due at once"
    outbox.put(OutputLine("1.1", "now", "stdout", "hello"))
    found: list[int] = []
    outbox.take(1, 0)
    thread = in_thread(lambda: found.extend(one.seq for one in outbox.take(1, 10)))
    outbox.put(URGENT)
    thread.join(10)
    assert found == [2, 3], "what is urgent takes along what waits"


def test_a_poll_waits_for_the_next_event() -> None:
    outbox = Outbox()
    found: list[int] = []
    thread = in_thread(lambda: found.extend(one.seq for one in outbox.take(0, 30)))
    outbox.put(URGENT)
    thread.join(10)
    assert found == [1]


def test_another_controller_ends_the_wait_of_the_one_before() -> None:
    outbox = Outbox()
    done = threading.Event()
    thread = in_thread(lambda: (outbox.take(0, 30), done.set()))
    while not done.is_set():
        outbox.interrupt()  # as often as it takes: the thread may not have begun to wait
    thread.join(10)


def test_an_answer_is_bounded_and_the_rest_follows_at_once() -> None:
    outbox = Outbox(lambda: 5.0)
    for _ in range(MAX_EVENTS + 10):
        outbox.put(BEAT)
    first = outbox.take(0, 0)
    assert len(first) == MAX_EVENTS
    assert len(outbox.take(first[-1].seq, 10)) == 10


def in_thread(task: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    return thread
