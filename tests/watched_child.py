"""Supervisors of training processes, and what they deliver."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rubato.cli.keeper.process_table import identify
from rubato.launch.output import OutputLine
from rubato.launch.supervisor import ChildPlan, ChildSupervisor
from rubato.wire import worker as wire

START = wire.Start(3, "job_1", "w1.1", "1.1", {"name": "a"}, "127.0.0.1", "/ckpt")


class Watched:
    """A supervisor and what it delivers; not started yet."""

    def __init__(self, plan: ChildPlan) -> None:
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.supervisor = ChildSupervisor(plan, self._events.put)
        self.seen: list[Any] = []

    def until(self, kind: type) -> Any:
        """Everything up to the next event of this kind."""
        while True:
            event = self._events.get(timeout=60)
            self.seen.append(event)
            if isinstance(event, kind):
                return event

    def finish(self) -> wire.Exited:
        exited: wire.Exited = self.until(wire.Exited)
        assert self.supervisor.join(10)
        assert self._events.empty(), "Exited is the last word"
        return exited

    @property
    def output(self) -> list[tuple[str, str]]:
        return [(one.stream, one.line) for one in self.seen if isinstance(one, OutputLine)]


@contextmanager
def watching() -> Iterator[Callable[[ChildPlan], Watched]]:
    """Start supervisors that are closed at the end."""
    started: list[Watched] = []

    def start(plan: ChildPlan) -> Watched:
        watched = Watched(plan)
        started.append(watched)
        watched.supervisor.start()
        return watched

    yield start
    for watched in started:
        assert watched.supervisor.close()


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while identify(pid) is not None:
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.005)
