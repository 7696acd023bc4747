from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.label_utils import validate_label_selector
from ray.exceptions import ActorDiedError, RaySystemError, RayTaskError

from jobs import fleet as fleet_module
from jobs.fleet import RayFleet, placement_options, wait_until_gone
from jobs.outbox import Numbered
from jobs.supervisor import Allegiance, AttachReply, PollReply, WorkerOrder, WorkerProcesses, left_behind
from rubato.cli.keeper.process_table import pid_namespace
from rubato.errors import StaleAttempt
from rubato.home import RecordedProcess
from rubato.wire import worker as wire
from rubato.wire.spec import ResourcesSpec
from tests.other_container import process_elsewhere

PATIENCE_S = 60.0


def test_nodes_to_avoid_become_a_selector_that_ray_takes() -> None:
    assert placement_options(()) == {}
    options = placement_options(("a" * 56, "b" * 56))
    assert options == {"label_selector": {"ray.io/node-id": f"!in({'a' * 56},{'b' * 56})"}}
    assert validate_label_selector(options["label_selector"]) is None


class FakeRay:
    """Actors that wait for a place for ever, and die when they are killed."""

    def __init__(self) -> None:
        self.made: queue.SimpleQueue[FakeActor] = queue.SimpleQueue()
        self.error: Exception | None = None
        """Raised where an actor is to be made."""

    def remote(self, _kind: type) -> Any:
        return SimpleNamespace(options=self._options)

    def kill(self, actor: FakeActor, *, no_restart: bool) -> None:
        assert no_restart
        actor.die()

    def _options(self, **_options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(remote=self._make)

    def _make(self, order: WorkerOrder) -> FakeActor:
        actor = FakeActor(order.start)
        self.made.put(actor)
        return actor


class FakeActor:
    """One that has no place: nothing that it is asked comes back."""

    def __init__(self, start: wire.Start) -> None:
        self.start, self.incarnation = start, start.incarnation
        self.answer: Future[Any] = Future()
        self.poll = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: self.answer))

    def die(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(ActorDiedError())


class Watched:
    """A fleet on a fake Ray, and what it posts."""

    def __init__(self, ray_: FakeRay) -> None:
        self.ray = ray_
        self.posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.has_failed = threading.Event()
        start = wire.Start(1, "job_1", "", "", {}, "", "", 0)
        order = WorkerOrder(start, "", "", None, {})
        self.fleet = RayFleet(order, ResourcesSpec(), self.posted.put, lambda: None, self.has_failed.set)

    def spawn(self, *incarnations: str) -> list[FakeActor]:
        for incarnation in incarnations:
            self.fleet.spawn(f"w{incarnation}", incarnation, 0)
        have_asked = threading.Event()
        self.fleet.later(have_asked.set)
        assert have_asked.wait(PATIENCE_S)
        return [self.ray.made.get(timeout=PATIENCE_S) for _ in incarnations]

    def exits(self, count: int) -> list[wire.Exited]:
        return sorted((self.posted.get(timeout=PATIENCE_S) for _ in range(count)), key=lambda one: one.incarnation)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    fake = FakeRay()
    monkeypatch.setattr(ray, "remote", fake.remote)
    monkeypatch.setattr(ray, "kill", fake.kill)
    found = Watched(fake)
    yield found
    found.fleet.close()


def test_a_worker_is_told_where_the_job_stands_when_it_is_started(watched: Watched) -> None:
    watched.fleet.spawn("w1.1", "1.1", 7)
    assert watched.ray.made.get(timeout=PATIENCE_S).start.last_step == 7


def test_workers_without_a_place_are_withdrawn_when_the_nodes_to_avoid_change(watched: Watched) -> None:
    watched.spawn("1.1", "1.2")
    watched.fleet.avoid(("node-1",))
    assert [(one.incarnation, one.is_withdrawn) for one in watched.exits(2)] == [("1.1", True), ("1.2", True)]
    (lost,) = watched.spawn("1.3")
    lost.die()
    (exited,) = watched.exits(1)
    assert (exited.incarnation, exited.is_withdrawn) == ("1.3", False)


def test_one_that_is_withdrawn_twice_is_withdrawn(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    (actor,) = watched.spawn("1.1")
    monkeypatch.setattr(ray, "kill", lambda *_, **__: None)
    for nodes in (("node-1",), ("node-1", "node-2")):
        watched.fleet.avoid(nodes)
    watched.fleet.later(actor.die)
    assert [one.is_withdrawn for one in watched.exits(1)] == [True]


def test_one_that_is_to_die_anyway_is_not_withdrawn(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    (actor,) = watched.spawn("1.1")
    # Its end is told only once the nodes have changed as well.
    monkeypatch.setattr(ray, "kill", lambda *_, **__: None)
    watched.fleet.kill("1.1", "somebody had it killed", with_stacks=False)
    watched.fleet.avoid(("node-1",))
    watched.fleet.later(actor.die)
    (exited,) = watched.exits(1)
    assert (exited.cause, exited.is_withdrawn) == ("somebody had it killed", False)


def test_a_worker_that_is_lost_meanwhile_does_not_stop_the_talk(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_killing, is_told, told = threading.Event(), threading.Event(), []
    monkeypatch.setattr(fleet_module, "wait_until_gone", lambda _: is_killing.wait(PATIENCE_S))

    def kill(actor: FakeActor, *, no_restart: bool) -> None:
        if not is_killing.is_set():
            is_killing.set()
            told.extend(watched.exits(1))
            is_told.set()
        watched.ray.kill(actor, no_restart=no_restart)

    monkeypatch.setattr(ray, "kill", kill)
    lost, *_ = watched.spawn("1.1", "1.2", "1.3")
    lost.die()
    watched.fleet.avoid(("node-1",))
    assert is_told.wait(PATIENCE_S)
    assert [one.incarnation for one in watched.exits(2)] == ["1.2", "1.3"]
    assert [one.incarnation for one in told] == ["1.1"]
    watched.spawn("1.4")
    assert not watched.has_failed.is_set()


def test_an_error_that_nobody_foresaw_is_told_and_ends_the_talk(watched: Watched) -> None:
    watched.ray.error = KeyError("unforeseen")
    watched.fleet.spawn("w1", "1.1", 0)
    assert watched.has_failed.wait(PATIENCE_S)


def test_an_end_is_told_even_where_ray_cannot_take_the_actor_away(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RaySystemError("the cluster fails")

    monkeypatch.setattr(ray, "kill", fail)
    (actor,) = watched.spawn("1.1")
    end = wire.Exited("1.1", 0, None)
    actor.answer.set_result(PollReply((Numbered(1, end),), WorkerProcesses("", None, None)))
    assert watched.exits(1) == [end]
    watched.spawn("1.2")
    assert not watched.has_failed.is_set()


class Living:
    """Worker actors of a predecessor, as a new controller finds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watched: Watched) -> None:
        self.actors: dict[str, Any] = {}
        self.unplaced: set[str] = set()
        self.killed: list[str] = []
        self.asked: list[str] = []
        self.is_superseded: list[bool] = []
        watched.fleet.on_stale = lambda: self.is_superseded.append(True)
        monkeypatch.setattr(ray.util, "list_named_actors", lambda **_: self._listing())
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: self.actors[name])
        monkeypatch.setattr(ray, "kill", lambda actor, no_restart: self.killed.append(actor.name))
        monkeypatch.setattr(ray, "wait", lambda calls, **_: ([call for call in calls if call.answer], []))
        monkeypatch.setattr(ray, "get", self._get)
        monkeypatch.setattr(fleet_module, "observe_unplaced", lambda: self.unplaced)

    def add(self, incarnation: str, answer: Any, *, is_placed: bool = True) -> None:
        """One that answers so; None: not at all."""
        name = f"w-job_1-{incarnation}"
        attach = SimpleNamespace(remote=lambda attempt: self._ask(name, answer))
        actor_id = SimpleNamespace(hex=lambda: incarnation)
        self.actors[name] = SimpleNamespace(name=name, attach=attach, _actor_id=actor_id)
        if not is_placed:
            self.unplaced.add(incarnation)

    def _ask(self, name: str, answer: Any) -> Any:
        self.asked.append(name)
        return Call(name, answer)

    def _listing(self) -> list[dict[str, str]]:
        return [{"name": name, "namespace": "rubato"} for name in self.actors]

    @staticmethod
    def _get(call: Call) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer


@dataclass(frozen=True)
class Call:
    """Of an actor's method."""

    name: str
    answer: Any


def described(incarnation: str, *, has_snapshot: bool = True) -> AttachReply:
    snapshot = wire.Snapshot(incarnation, None, None, None, 0, None, None, 0) if has_snapshot else None
    return AttachReply(7, None, snapshot, (), WorkerProcesses("", None, None))


def test_a_new_controller_ends_whom_it_cannot_lead(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    living = Living(monkeypatch, watched)
    living.add("1.1", described("1.1"))
    living.add("1.2", described("1.2", has_snapshot=False))
    living.add("1.3", None)
    living.add("1.4", None, is_placed=False)
    assert [one.incarnation for one in watched.fleet.attach_all()] == ["1.1"]
    assert "w-job_1-1.4" not in living.asked, "who has no place would be waited for in vain"
    assert sorted(living.killed) == ["w-job_1-1.2", "w-job_1-1.3", "w-job_1-1.4"]


def test_where_none_has_a_place_nobody_is_waited_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    living = Living(monkeypatch, watched)
    living.add("1.1", None, is_placed=False)
    assert watched.fleet.attach_all() == []
    assert (living.asked, living.killed) == ([], ["w-job_1-1.1"])


def test_a_superseded_controller_touches_nobody(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    living = Living(monkeypatch, watched)
    living.add("1.1", described("1.1"))
    living.add("1.2", RayTaskError("attach", "", StaleAttempt("attempt 2 leads this worker, not 1")))
    living.add("1.3", None, is_placed=False)
    assert watched.fleet.attach_all() == []
    assert (living.killed, living.is_superseded) == ([], [True])


def test_who_did_not_follow_a_controller_that_led_is_left_behind() -> None:
    assert left_behind({}) == set()
    assert left_behind({"1.1": Allegiance(1, 1), "1.2": Allegiance(1, 1)}) == set()
    # Attempt 2 died while it attached: it never led.
    assert left_behind({"1.1": Allegiance(2, 1), "1.2": Allegiance(1, 1)}) == set()
    # It died as soon as it led, and had not asked all of its workers yet.
    assert left_behind({"1.1": Allegiance(2, 2), "1.2": Allegiance(2, 1)}) == set()
    # Attempt 1 made another one when attempt 2 had looked already.
    assert left_behind({"1.1": Allegiance(2, 2), "1.3": Allegiance(1, 1)}) == {"1.3"}


def test_a_worker_that_trains_beside_the_job_is_ended(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    living = Living(monkeypatch, watched)
    # The last one is of an older release, and does not say.
    for incarnation, allegiance in {"1.3": (1, 1), "2.1": (2, 2), "2.2": (0, 0)}.items():
        living.add(incarnation, replace(described(incarnation), followed=allegiance[0], led_by=allegiance[1]))
    assert [one.incarnation for one in watched.fleet.attach_all()] == ["2.1", "2.2"]
    assert living.killed == ["w-job_1-1.3"]


def test_workers_are_seen_to_be_gone_only_where_they_can_be_seen() -> None:
    nobody = RecordedProcess(2**22 + 1, 1)
    assert wait_until_gone(WorkerProcesses(pid_namespace(), nobody, None), 0.0)
    with process_elsewhere() as (namespace, process):
        assert not wait_until_gone(WorkerProcesses(namespace, process, process), 0.0)
