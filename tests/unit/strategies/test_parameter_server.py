"""The protocol of a shard under any order of what arrives."""

from __future__ import annotations

from itertools import count as count_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rubato.strategies.parameter_server import ShardServer, Update

MOST = 5


class Run(RuleBasedStateMachine):
    """Workers pull, compute for any time, push; they join, leave and are lost at any point."""

    staleness: int | None = None
    damps = False

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.server = ShardServer(self.staleness, damps=self.damps)
        self.made = 0
        self.computing: dict[int, int] = {}
        """By who has weights, the updates in them."""
        self.waiting: set[int] = set()
        self.steps: dict[int, int] = {}
        """By worker, what it has pushed; who joins begins where the slowest is."""
        self.reached = 0
        """Where the slowest was when somebody left last."""
        self.reads: list[tuple[int, int]] = []
        self.names = count_from(0)
        for _ in range(count):
            self.join(next(self.names))

    @property
    def slowest(self) -> int:
        return min(self.steps.values(), default=self.reached)

    def join(self, name: int) -> None:
        self.steps[name] = self.slowest
        self.server.join(name)
        self.pull(name)

    def pull(self, name: int) -> None:
        self.waiting.add(name)
        self.took(self.server.pull(name))

    def took(self, answers: list[int]) -> None:
        for name in answers:
            assert name in self.waiting, "answered once, and only who has asked"
            self.waiting.remove(name)
            self.reads.append((self.steps[name], self.slowest))
            self.computing[name] = self.made

    @precondition(lambda self: len(self.steps) < MOST)
    @rule()
    def one_joins(self) -> None:
        self.join(next(self.names))

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.steps)))
        self.reached = self.slowest
        for kept in (self.steps, self.computing):
            kept.pop(name, None)
        self.waiting.discard(name)
        self.took(self.server.leave(name))

    @precondition(lambda self: self.computing)
    @rule(data=st.data())
    def one_pushes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.computing)))
        version = self.computing.pop(name)
        update, answers = self.server.push(name)
        assert update == Update(version, 1 / max(1, self.made - version) if self.damps else 1.0)
        self.made += 1
        self.steps[name] += 1
        assert self.server.version == self.made
        self.took(answers)
        self.pull(name)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        if hasattr(self, "server") and self.steps:
            assert self.computing, "some worker always has weights to compute with"

    @invariant()
    def who_waits_is_too_far_ahead(self) -> None:
        for name in getattr(self, "waiting", ()):
            assert self.staleness is not None, "nobody waits for anybody"
            assert self.steps[name] - self.slowest > self.staleness

    @invariant()
    def the_clock_is_that_of_the_slowest(self) -> None:
        assert not hasattr(self, "server") or self.server.clock == self.slowest

    @invariant()
    def reads_are_fresh_enough(self) -> None:
        for clock, slowest in getattr(self, "reads", []):
            assert self.staleness is None or clock - slowest <= self.staleness


def machine(staleness: int | None, *, damps: bool = False) -> type:
    case = type(f"Test_{staleness}_{damps}", (Run,), {"staleness": staleness, "damps": damps}).TestCase  # type: ignore[attr-defined]
    case.settings = settings(settings.default, stateful_step_count=40)
    return case


TestSsp0 = machine(0)
TestSsp1 = machine(1)
TestSsp2 = machine(2)
TestSsp3 = machine(3)
TestAsp = machine(None)
TestDamped = machine(None, damps=True)


@pytest.mark.parametrize("end", ["push", "leave"])
def test_who_is_too_fast_waits_until_the_slowest_has_caught_up_or_left(end: str) -> None:
    server, fast, slow = ShardServer(1), 0, 1
    for name in (fast, slow):
        server.join(name)
        assert server.pull(name) == [name]
    server.push(fast)
    assert server.pull(fast) == [fast]
    server.push(fast)
    assert server.pull(fast) == []
    assert (server.push(slow)[1] if end == "push" else server.leave(slow)) == [fast]


@given(orders=st.lists(st.permutations(range(4)), min_size=1, max_size=4))
def test_with_a_staleness_of_0_all_compute_with_the_same_weights(orders: list[list[int]]) -> None:
    """As in synchronous descent: a round of gradients of the same weights, whoever is first."""
    server = ShardServer(0)
    for name in range(4):
        server.join(name)
    for name in range(4):
        assert server.pull(name) == [name]
    for number, order in enumerate(orders):
        for place, name in enumerate(order):
            update, answers = server.push(name)
            answers += server.pull(name)
            assert update.version == 4 * number
            assert sorted(answers) == (list(range(4)) if place == 3 else [])


@pytest.mark.parametrize(("damps", "scale"), [(True, 1 / 3), (False, 1.0)])
def test_a_stale_push_counts_less_where_it_is_to(damps: bool, scale: float) -> None:
    server, fast, slow = ShardServer(None, damps=damps), 0, 1
    for name in (fast, slow):
        server.join(name)
        server.pull(name)
    for _ in range(3):
        server.push(fast)
        server.pull(fast)
    assert server.push(slow)[0] == Update(0, scale)
    assert server.version == 4


def test_a_push_of_who_has_no_weights_is_refused() -> None:
    server = ShardServer(None)
    server.join(0)
    with pytest.raises(KeyError):
        server.push(0)
    server.pull(0)
    server.push(0)
    with pytest.raises(KeyError):
        server.push(0)
    with pytest.raises(KeyError):
        server.pull(1)
