"""The protocol of a shard under any order of what arrives; gradients are numbers."""

from __future__ import annotations

from itertools import count as count_from

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rubato.strategies.parameter_server import Consistency, ShardServer, Todo, Update

MOST = 5


class Shard:
    """A server that applies updates to one weight."""

    def __init__(self, consistency: Consistency, **options: object) -> None:
        self.server: ShardServer[float] = ShardServer(consistency, **options)  # type: ignore[arg-type]
        self.weight = 1.0
        self.log: list[Update] = []
        self.gradients: dict[tuple[str, int], float] = {}

    def do(self, todo: Todo[float]) -> tuple[str, ...]:
        if todo.update is not None:
            update, gradients = todo.update
            self.log.append(update)
            self.gradients |= dict(zip(update.pushes, gradients, strict=True))
            self.weight = applied(self.weight, update, self.gradients)
        return todo.answers


def applied(weight: float, update: Update, gradients: dict[tuple[str, int], float]) -> float:
    return weight - 0.1 * update.scale * sum(gradients[push] for push in update.pushes)


class Run(RuleBasedStateMachine):
    """Workers pull, compute for any time, push; they join, leave and are lost at any point."""

    consistency: Consistency = "bsp"
    staleness = 0
    backups = 0
    damps = False

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.shard = Shard(self.consistency, staleness=self.staleness, backups=self.backups, damps=self.damps)
        self.computing: dict[str, int] = {}
        """Who has weights, and for which step."""
        self.waiting: set[str] = set()
        self.steps: dict[str, int] = {}
        self.reads: list[tuple[int, int]] = []
        self.names = (f"w{number}" for number in count_from(0))
        for _ in range(count):
            self.join(next(self.names))

    def join(self, name: str) -> None:
        self.shard.server.join(name)
        self.steps[name] = self.shard.server.clock
        self.pull(name)

    def pull(self, name: str) -> None:
        self.waiting.add(name)
        self.took(self.shard.server.pull(name))

    def took(self, todo: Todo[float]) -> None:
        if self.consistency == "bsp" and todo.update is not None:
            for name in self.steps:
                self.steps[name] = self.shard.server.clock
        for name in self.shard.do(todo):
            assert name in self.waiting, "answered once, and only who has asked"
            self.waiting.remove(name)
            self.reads.append((self.steps[name], self.shard.server.clock))
            self.computing[name] = self.steps[name]

    @precondition(lambda self: len(self.steps) < MOST)
    @rule()
    def one_joins(self) -> None:
        self.join(next(self.names))

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.steps)))
        for kept in (self.steps, self.computing):
            kept.pop(name, None)
        self.waiting.discard(name)
        self.took(self.shard.server.leave(name))

    @precondition(lambda self: self.computing)
    @rule(data=st.data(), gradient=st.floats(-1, 1))
    def one_pushes(self, data: st.DataObject, gradient: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.computing)))
        step = self.computing.pop(name)
        if self.shard.server.is_late(name, step):
            assert self.backups, "nobody is late where all are waited for"
        else:
            if self.consistency != "bsp":
                self.steps[name] += 1
            self.took(self.shard.server.push(name, step, gradient))
        self.pull(name)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        if hasattr(self, "shard") and self.steps:
            assert self.computing, "some worker always has weights to compute with"

    @invariant()
    def reads_are_fresh_enough(self) -> None:
        for clock, slowest in getattr(self, "reads", []):
            assert self.consistency == "asp" or clock - slowest <= self.staleness

    @invariant()
    def no_push_counts_twice(self) -> None:
        if hasattr(self, "shard"):
            pushes = [push for update in self.shard.log for push in update.pushes]
            assert len(pushes) == len(set(pushes))
            assert [update.version for update in self.shard.log] == list(range(1, len(self.shard.log) + 1))

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        weight = 1.0
        for update in self.shard.log:
            weight = applied(weight, update, self.shard.gradients)
        assert weight == self.shard.weight, "the log replays to equal bits"


def machine(consistency: Consistency, **options: object) -> type:
    name = "_".join(["Test", consistency, *(f"{key}{value}" for key, value in options.items())])
    case = type(name, (Run,), {"consistency": consistency, **options}).TestCase  # type: ignore[attr-defined]
    case.settings = settings(settings.default, stateful_step_count=40)
    return case


TestBsp = machine("bsp")
TestBackups = machine("bsp", backups=1)
TestSsp = machine("ssp", staleness=2)
TestAsp = machine("asp")
TestDamped = machine("asp", damps=True)


def test_a_step_is_applied_in_the_order_of_names_whoever_comes_first() -> None:
    weights = set()
    for order in (("a", "b", "c"), ("c", "a", "b")):
        shard = Shard("bsp")
        for name in ("a", "b", "c"):
            shard.server.join(name)
            assert shard.do(shard.server.pull(name)) == (name,)
        for name, gradient in zip(order, ({"a": 1e16, "b": 1.0, "c": -1e16}[name] for name in order), strict=True):
            shard.do(shard.server.push(name, 0, gradient))
        weights.add(shard.weight)
        assert shard.log == [Update(1, (("a", 0), ("b", 0), ("c", 0)), 0, 1.0)]
    assert len(weights) == 1


def test_no_staleness_at_all_is_bsp() -> None:
    shard = Shard("ssp", staleness=0)
    for name in ("a", "b"):
        shard.server.join(name)
        shard.do(shard.server.pull(name))
    assert shard.do(shard.server.push("b", 0, 1.0)) == ()
    assert shard.weight == 1.0
    shard.do(shard.server.push("a", 0, 1.0))
    assert shard.log == [Update(1, (("a", 0), ("b", 0)), 0, 1.0)]


def test_who_is_too_fast_waits_until_the_slowest_has_caught_up_or_left() -> None:
    for end in ("push", "leave"):
        shard = Shard("ssp", staleness=1)
        for name in ("fast", "slow"):
            shard.server.join(name)
            shard.do(shard.server.pull(name))
        shard.do(shard.server.push("fast", 0, 1.0))
        assert shard.do(shard.server.pull("fast")) == ("fast",)
        shard.do(shard.server.push("fast", 1, 1.0))
        assert shard.do(shard.server.pull("fast")) == ()
        done = shard.server.push("slow", 0, 1.0) if end == "push" else shard.server.leave("slow")
        assert shard.do(done) == ("fast",)


def test_a_stale_push_counts_less_where_it_is_to() -> None:
    for damps, scale in ((True, 1 / 3), (False, 1.0)):
        shard = Shard("asp", damps=damps)
        for name in ("fast", "slow"):
            shard.server.join(name)
            shard.do(shard.server.pull(name))
        for step in range(3):
            shard.do(shard.server.push("fast", step, 1.0))
            shard.do(shard.server.pull("fast"))
        shard.do(shard.server.push("slow", 0, 1.0))
        assert shard.log[-1] == Update(4, (("slow", 0),), 3, scale)


def test_a_step_does_not_wait_for_backups_and_drops_what_they_push() -> None:
    shard = Shard("bsp", backups=1)
    for name in ("a", "b", "c"):
        shard.server.join(name)
        shard.do(shard.server.pull(name))
    shard.do(shard.server.push("c", 0, 1.0))
    shard.do(shard.server.push("a", 0, 1.0))
    assert shard.log == [Update(1, (("a", 0), ("c", 0)), 0, 1.0)]
    assert shard.server.is_late("b", 0)


def test_a_push_that_nobody_waits_for_is_refused() -> None:
    shard = Shard("asp")
    shard.server.join("a")
    shard.do(shard.server.pull("a"))
    shard.do(shard.server.push("a", 0, 1.0))
    with pytest.raises(ValueError, match="a pushed step 0, but step 1 was expected of it"):
        shard.server.push("a", 0, 1.0)
    with pytest.raises(KeyError):
        shard.server.pull("b")
