"""The membership protocol as a state machine: hypothesis chooses what fails and when, and shrinks what it finds.

Held after every rule, whoever of several controllers gives orders:
    one truth     any two living workers that committed a step committed the very same reduction: no two generations
                  are active at a commit, and none is lost by some and kept by others
    close         living members of a generation are at most one step apart
    no gaps       a worker commits each step once, in order, each microbatch once; the service gets one row a step
    none lost     nothing is founded from a checkpoint, or afresh, while a worker of the job has the state
    one number    a number of an attempt names one membership, and numbers grow, for each worker over attempts
    one state     all parts of a checkpoint are of one state, and none that was found to be wrong is begun from
    no ruin       what workers write later leaves a committed checkpoint whole
    no zombies    what a worker said that is gone changes nothing, whenever it arrives
And at the end of each run, when nothing fails any more: as many train as are wished for, and they commit.

That this model finds what it is for, `test_teeth` shows.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rubato.engine.coordinator import Wish
from tests.unit.engine.coordinator.controllers import Fate
from tests.unit.engine.coordinator.observed import DEAF_S, MOST_WORKERS, PACES, Observed

pytestmark = pytest.mark.timeout(900)

MOST_CONTROLLERS = 3
"""At a time."""


class Membership(RuleBasedStateMachine):
    """Everything that may happen to the workers of a job and to its controller."""

    @initialize(
        seed=st.integers(0, 2**32),
        workers=st.integers(1, MOST_WORKERS),
        spares=st.integers(0, 2),
        steps=st.integers(0, 3),
    )
    def begin(self, seed: int, workers: int, spares: int, steps: int) -> None:
        self.cluster = Observed(random.Random(seed), workers, spares)
        if steps:  # else the start itself is disturbed
            self.cluster.run(lambda: self.cluster.coordinator.job.step >= steps)

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(actions=st.integers(1, 120))
    def go_on(self, actions: int) -> None:
        for _ in range(actions):
            self.cluster.advance()
            self.cluster.look()

    @rule(which=st.lists(st.integers(0, MOST_WORKERS), min_size=1, max_size=3, unique=True))
    def die(self, which: list[int]) -> None:
        living = self.cluster.living
        for index in which:
            if index < len(living):
                self.cluster.die(living[index])

    @rule(which=st.lists(st.integers(0, MOST_WORKERS), min_size=1, max_size=2, unique=True))
    def hang(self, which: list[int]) -> None:
        living = self.cluster.living
        for index in which:
            if index < len(living):
                self.cluster.hang(living[index])

    @rule(index=st.integers(0, MOST_WORKERS))
    def who_hung_goes_on(self, index: int) -> None:
        hung = [worker for worker in self.cluster.living if worker.hangs_since is not None]
        if index < len(hung):
            self.cluster.go_on(hung[index])

    @rule()
    def all_die(self) -> None:
        for worker in self.cluster.living:
            self.cluster.die(worker)

    @rule(which=st.lists(st.integers(0, MOST_WORKERS), min_size=1, max_size=3, unique=True))
    def nodes_are_lost(self, which: list[int]) -> None:
        """With all that their workers had said and nobody had heard."""
        living = self.cluster.living
        for index in which:
            if index < len(living):
                self.cluster.cut_off(living[index])

    @rule()
    def zombies_talk(self) -> None:
        self.cluster.hear_zombies()

    @rule(which=st.lists(st.integers(0, MOST_WORKERS), min_size=1, max_size=MOST_WORKERS, unique=True))
    def states_differ(self, which: list[int]) -> None:
        """Those are not among a majority."""
        living = self.cluster.living
        for index in which:
            if index < len(living) and living[index].step > 2:  # before that it is the program's fault
                self.cluster.differ(living[index])

    @rule(takes=st.booleans())
    def service(self, takes: bool) -> None:
        self.cluster.takes_rows = takes

    @rule(workers=st.integers(1, MOST_WORKERS))
    def scale(self, workers: int) -> None:
        self.cluster.ask(workers=workers)

    @rule(kind=st.sampled_from(["drain", "drain", "kill", "stack"]), index=st.integers(0, MOST_WORKERS))
    def somebody_acts_on_a_worker(self, kind: str, index: int) -> None:
        living = self.cluster.living
        if index < len(living):
            self.cluster.act(kind, f"w{living[index].incarnation}")

    @rule(index=st.integers(0, 3))
    def an_action_is_withdrawn(self, index: int) -> None:
        listed = self.cluster.wish.actions
        if index < len(listed):
            self.cluster.withdraw(listed[index].number)

    @rule()
    def ask_for_a_checkpoint(self) -> None:
        self.cluster.ask(checkpoint_request=self.cluster.wish.checkpoint_request + 1)

    @rule(fails=st.booleans())
    def storage(self, fails: bool) -> None:
        self.cluster.may_commit = not fails

    @rule(may_join=st.booleans())
    def joiners(self, may_join: bool) -> None:
        """They can, or cannot, take over the state."""
        self.cluster.may_join = may_join

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def nothing_runs_for(self, seconds: float) -> None:
        self.cluster.now += seconds

    @precondition(lambda self: self.cluster.outcome is None and len(self.cluster.others) < MOST_CONTROLLERS)
    @rule(
        workers=st.integers(0, MOST_WORKERS),
        which=st.lists(st.integers(0, MOST_WORKERS), max_size=2, unique=True),
        moment=st.integers(0, 60),
        fate=st.sampled_from(Fate),
        deaf_s=st.sampled_from(DEAF_S),
        pace=st.sampled_from(PACES),
        is_cut_off=st.booleans(),
    )
    def a_new_controller_takes_over(
        self, workers: int, which: list[int], moment: int, fate: Fate, deaf_s: float, pace: float, is_cut_off: bool
    ) -> None:
        """Amid a change of the membership, or not; what it and the one before do meanwhile is up to the schedule."""
        if workers:
            self.scale(workers)
        self.die(which)
        self.go_on(moment)
        if self.cluster.outcome is None:
            self.cluster.take_over(fate, deaf_s=deaf_s, is_cut_off=is_cut_off, pace=pace)

    @precondition(lambda self: self.cluster.newest.calls and not self.cluster.newest.leads)
    @rule(index=st.integers(0, MOST_WORKERS))
    def a_worker_is_attached(self, index: int) -> None:
        newest = self.cluster.newest
        left = [name for name in newest.unanswered() if name not in newest.is_called]
        if index < len(left) and self.cluster.workers[left[index]].placed:
            self.cluster.attach(self.cluster.workers[left[index]], newest)

    @precondition(lambda self: self.cluster.outcome is None and self.cluster.newest.calls)
    @rule()
    def it_waits_for_no_more_answers(self) -> None:
        if not self.cluster.newest.leads:
            self.cluster.lead(self.cluster.newest)

    @precondition(lambda self: self.cluster.superseded)
    @rule(index=st.integers(0, MOST_CONTROLLERS), deaf_s=st.sampled_from(DEAF_S), workers=st.integers(1, MOST_WORKERS))
    def a_superseded_controller_goes_on(self, index: int, deaf_s: float, workers: int) -> None:
        """And hears of a wish, which is for its successor."""
        if index < len(self.cluster.superseded):
            one = self.cluster.superseded[index]
            self.cluster.wake(one, deaf_s)
            if one.leads:
                self.cluster.handle(Wish("run", workers), one)

    @precondition(lambda self: self.cluster.superseded)
    @rule(index=st.integers(0, MOST_CONTROLLERS))
    def a_superseded_controller_dies(self, index: int) -> None:
        if index < len(self.cluster.superseded):
            self.cluster.end(self.cluster.superseded[index])

    @rule(changes=st.booleans())
    def the_program(self, changes: bool) -> None:
        """It changes its gradients, or does not: then nobody who went on can give them to one that missed them."""
        self.cluster.changes_results = changes

    @rule(index=st.integers(0, MOST_WORKERS))
    def a_command_is_doubled_and_comes_late(self, index: int) -> None:
        talked_to = [worker for worker in self.cluster.living if worker.inbox]
        if index < len(talked_to):
            self.cluster.late.append((talked_to[index], talked_to[index].inbox[-1]))

    @rule()
    def late_commands_arrive(self) -> None:
        self.cluster.deliver_late()

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.look()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.settle()


TestMembership = Membership.TestCase
TestMembership.settings = settings(
    max_examples=settings.default.max_examples * 4,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
