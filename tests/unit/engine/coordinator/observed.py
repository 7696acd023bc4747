"""A simulated job whose commits are looked at."""

from __future__ import annotations

import random

from rubato.engine.coordinator import Order, Rows, Send
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.actors import Result, Worker
from tests.unit.engine.coordinator.controllers import Controller, Fate
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9
MOST_WORKERS = 5
SOON = 8000
"""Moments: several minutes, where nothing happens."""
GRACE_S = 20.0
ENDS_S = 5.0
"""Most that killing all takes, and telling that."""
PROMPT_S = 20.0
"""Most that the end takes where nothing fails any more: well below `stop_grace`, so that nobody is killed for it."""
DEAF_S = (0.0, 1.0, 30.0)
"""So long a controller does not hear that it is superseded."""
PACES = (1.0, 0.2, 0.05)
"""How likely it is, at each moment, that a new controller can take its next step."""


class Observed(Cluster):
    """What must hold whatever happens: see `test_membership`."""

    def __init__(self, schedule: random.Random, workers: int, spares: int, total_steps: int = ENDLESS) -> None:
        self.commits: dict[str, dict[int, Result]] = {}
        self.passed_on = 0
        """The last row that the service was told."""
        self.entered: dict[str, int] = {}
        """The generation that a worker trained in last."""
        self.late: list[tuple[Worker, wire.Command]] = []
        self.unheard: list[wire.Message] = []
        """Of workers whose nodes were lost."""
        super().__init__(schedule, workers=workers, total_steps=total_steps, max_restarts=10**6, standby_workers=spares)

    def carry_out(self, orders: list[Order], by: Controller) -> None:
        for order in orders:
            if isinstance(order, Rows) and by.attempt == self.granted:
                self._see_rows(order)
            if isinstance(order, Send) and isinstance(order.command, wire.Prepare) and by is self.newest:
                self._see_record(order.command.record)
        super().carry_out(orders, by)

    def _see_rows(self, order: Rows) -> None:
        for row in order.rows:
            left_out = set(range(self.passed_on + 1, row.step))
            assert not left_out, f"the rows {left_out} were left out"
            self.passed_on = row.step

    def _see_record(self, record: wire.GenerationRecord) -> None:
        holders = [one.incarnation for one in self.living if one.has_state]
        is_founded = record.origin.kind != "members" and not record.follows
        assert not (is_founded and holders), f"{record.number} forgets what {holders} have"

    def _commit(self, worker: Worker) -> None:
        result = worker.result
        assert result is not None
        mine = self.commits.setdefault(worker.incarnation, {})
        assert worker.step + 1 not in mine, f"{worker.incarnation} commits step {worker.step + 1} twice"
        assert not mine or worker.step in mine, f"{worker.incarnation} leaves a step out before {worker.step + 1}"
        assert result.key == (worker.step, 0), f"{worker.incarnation} commits {result.key} as step {worker.step}"
        mine[worker.step + 1] = result
        super()._commit(worker)

    def take_over(self, fate: Fate, *, deaf_s: float = 0.0, is_cut_off: bool = False, pace: float = 1.0) -> Controller:
        self.passed_on = max(self.rows, default=0)
        return super().take_over(fate, deaf_s=deaf_s, is_cut_off=is_cut_off, pace=pace)

    def cut_off(self, worker: Worker) -> None:
        """Its node is taken for lost; what it said is under way yet."""
        self.unheard += self.lose(worker)

    def hear_zombies(self) -> None:
        """What workers had said that are long replaced arrives."""
        heard = [message for message in self.unheard if self.workers[message.incarnation].gone]
        self.unheard = [message for message in self.unheard if message not in heard]
        for message in heard:
            if self.outcome is None and self.leader.fate is Fate.LIVES:
                assert not self.coordinator.handle(message, self.now), f"{message} of a worker that is gone counted"

    def deliver_late(self) -> None:
        """Doubled commands that were under way for long arrive."""
        for worker, command in self.late:
            if worker.alive:
                worker.inbox.append(command)
        self.late.clear()

    def look(self) -> None:
        """Whether all holds."""
        truth: dict[int, Result] = {}
        for worker in self.living:
            recent = list(self.commits.get(worker.incarnation, {}).items())[-20:]
            for step, result in recent:
                assert truth.setdefault(step, result) is result, f"step {step} was committed in two ways"
            number = worker.record.number if worker.record else 0
            assert number >= self.entered.get(worker.incarnation, 0), "a worker went back to an older generation"
            self.entered[worker.incarnation] = number
        for group in list(self.groups.values())[-5:]:
            steps = [one.step for one in self.living if one.record == group.record]
            assert not steps or max(steps) - min(steps) <= 1, f"{group.record.number}: {steps}"

    def settle(self) -> None:
        """Nothing fails any more: all comes to be as it is wished for, and training goes on, or comes to its end."""
        self.may_commit = self.takes_rows = self.may_join = True
        self.writes = "well"
        self.deliver_late()
        self._agree_who_leads()
        if self.total_steps < ENDLESS:
            settled_at = self.now
            self.run(lambda: self.outcome is not None, SOON)
            assert self.now - settled_at < PROMPT_S
            self._look_at_the_end()
            return
        if self.coordinator.job.changes.has_given_up_joins:
            self.ask(workers=self.wish.workers % MOST_WORKERS + 1)
        self.run(lambda: self.outcome is not None or (self.is_as_wished and not self.wish.actions), SOON)
        if self.outcome is None:
            self.hear_zombies()
            step = self.coordinator.job.step
            self.run(lambda: self.outcome is not None or max(self.rows, default=0) >= step + 3, SOON)
        if self.outcome is None:
            missing = set(range(1, max(self.rows) + 1)).difference(self.rows)
            assert not missing, f"rows {missing} were lost"
        else:
            self._look_at_failure()
        self.look()

    def cancel(self, *, force: bool) -> None:
        """Nothing that fails stops failing, but one controller leads: it ends within the grace, or at once."""
        self._agree_who_leads()
        self.ask(run="stop", force=force, grace_s=None if force else GRACE_S)
        asked_at = self.now
        self.run(lambda: self.outcome is not None, SOON)
        assert self.now - asked_at < (0 if force else GRACE_S) + ENDS_S
        assert self.outcome is not None
        if self.outcome.state != "cancelled":
            self._look_at_the_end()

    def _agree_who_leads(self) -> None:
        for one in self.superseded:
            one.is_cut_off = False
            self.wake(one, 0.0)
        self.newest.pace = 1.0
        self.run(lambda: self.leader is self.newest or self.outcome is not None, SOON)

    def _look_at_the_end(self) -> None:
        """It has finished, and all that it made is stored, or somebody is told what is not."""
        assert self.outcome is not None
        assert not self.living
        if self.outcome.result is None:
            self._look_at_failure()
            return
        assert self.outcome.result.step == self.total_steps
        assert sorted(self.rows) == list(range(1, self.total_steps + 1))
        unsaved = {event.step for event in self.events if event.kind == "checkpoint.failed"}
        assert self.total_steps in {step for _, step in self.checkpoints} | unsaved

    def _look_at_failure(self) -> None:
        """The only ends that nobody asked for: the states differed again before they had agreed beyond it, or one step
        hung again and again.
        """
        assert self.outcome is not None
        assert self.outcome.failure is not None, self.outcome
        if self.outcome.failure.reason == "hang":
            return  # it is only said where it was seen; see HANGS_AT_ONE_STEP
        assert self.outcome.failure.reason == "diverged", self.outcome
        assert sum(event.kind == "diverged" for event in self.events) > 1
