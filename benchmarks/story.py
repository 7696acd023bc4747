"""One run of a peer: undisturbed, or through all events in a row."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.peers.peer import MAX_WORKERS, Peer, PeerFailed
from benchmarks.timeline import Event, Row, gaps_s

SETTLE_STEPS = 12
"""Committed steps between two events: the time of a step is the median of ten."""
PATIENCE_S = 300.0
"""For the next thing to happen. Ray Train looks for new nodes every 20 s, and all is slower on a busy machine."""
RESIZES = (("up_1_2", 2), ("up_2_4", 4), ("leave_4_3", 3), ("up_3_4", 4))
KILL = "kill"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    rows: list[Row]
    events: dict[str, Event]
    started_at: float
    redone: float
    """Steps computed again that were not committed twice."""
    results: list[dict[str, Any]]

    @property
    def digest(self) -> str:
        """Of the weights at the end."""
        return str(self.results[0]["digest"])


def undisturbed(peer: Peer, workers: int, tell: Tell) -> Outcome:
    """A fixed number of workers from the first step to the last."""
    peer.prepare(workers)
    started_at = time.time()
    peer.start(workers, workers, workers)
    finish(peer, tell)
    return Outcome(peer.rows(), {}, started_at, 0.0, results_of(peer))


def eventful(peer: Peer, tell: Tell, release: Callable[[], None]) -> Outcome:
    """1 -> 2 -> 4 workers, 4 -> 3, back to 4, SIGKILL of one of the four.

    Args:    release: called when all that is to happen has happened.
    """
    peer.prepare(1)
    started_at = time.time()
    peer.start(1, 1, MAX_WORKERS)
    wait_settled(peer, "the first steps", lambda row: True, tell)
    events: list[Event] = []
    for name, workers in RESIZES:
        now = time.time()
        events.append(Event(name, now, workers))
        peer.scale(workers)
        wait_settled(peer, f"{workers} workers", partial(has_workers, now, workers), tell)
    before = peer.redone()
    # Into the middle of a step: what the watching sees of it is its beginning.
    time.sleep(statistics.median(gaps_s(peer.rows()[-SETTLE_STEPS:])) / 2)
    now, generation = time.time(), peer.rows()[-1].generation
    events.append(Event(KILL, now, MAX_WORKERS))
    peer.kill()
    wait_settled(peer, "recovery", lambda row: row.time > now and row.generation != generation, tell)
    release()
    finish(peer, tell)
    ends = [event.at for event in events[1:]] + [float("inf")]
    named = {event.name: replace(event, until=end) for event, end in zip(events, ends, strict=True)}
    return Outcome(peer.rows(), named, started_at, peer.redone() - before, results_of(peer))


def has_workers(since: float, workers: int, row: Row) -> bool:
    return row.time > since and row.workers == workers


def wait_settled(peer: Peer, what: str, begins: Callable[[Row], bool], tell: Tell) -> None:
    """Until the first row that qualifies and as many more as an event must be apart."""

    def is_settled() -> bool:
        rows = peer.rows()
        first = next((index for index, row in enumerate(rows) if begins(row)), None)
        return first is not None and len(rows) - first > SETTLE_STEPS

    wait(peer, what, is_settled, tell)


def wait(peer: Peer, what: str, condition: Callable[[], bool], tell: Tell) -> None:
    """Until the condition holds.

    Raises:  PeerFailed: the run ended before, or nothing happened for too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        rows = peer.rows()
        step = rows[-1].step if rows else 0
        tell(f"waiting for {what}, step {step}")
        if peer.is_over() and not condition():
            advice = "; more --steps would keep it going" if peer.results() else ""
            raise PeerFailed(f"it ended at step {step}, waiting for {what}{advice}:\n{peer.output()}")
        if time.monotonic() > deadline:
            raise PeerFailed(f"no {what} within {PATIENCE_S:g} s:\n{peer.output()}")
        time.sleep(0.05)


def finish(peer: Peer, tell: Tell) -> None:
    """Until the run is over; patient as long as steps are committed."""
    seen, deadline = -1, 0.0
    while not peer.is_over():
        count = len(peer.rows())
        tell(f"training to the end, step {count}")
        if count != seen:
            seen, deadline = count, time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline:
            raise PeerFailed(f"no step within {PATIENCE_S:g} s:\n{peer.output()}")
        time.sleep(0.1)


def results_of(peer: Peer) -> list[dict[str, Any]]:
    """What the workers told at the end.

    Raises:  PeerFailed: they told nothing, or not the same.
    """
    results = peer.results()
    if not results:
        raise PeerFailed(f"no worker came to the end:\n{peer.output()}")
    if len({result["digest"] for result in results}) > 1:
        raise PeerFailed("the weights of its workers differ at the end")
    return results
