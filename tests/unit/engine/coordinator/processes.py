"""Simulated training processes that follow the protocol: what they do next, and how they come and go."""

from __future__ import annotations

import random

from rubato.engine.entry import bridge_owners
from rubato.errors import GenerationLost
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.actors import Feeder, Group, GroupEnd, Worker
from tests.unit.engine.coordinator.training import Move, Training


class Processes(Training):
    """All training processes, and the groups they form."""

    def __init__(self, schedule: random.Random, total_steps: int) -> None:
        super().__init__(schedule, total_steps)
        self.arithmetic: dict[str, dict[str, str]] = {}
        """What workers say of theirs, by incarnation."""
        self.may_join = True
        """Whether joiners can take over the state."""

    def _new_worker(self, incarnation: str, attempt: int) -> Worker:
        worker = self.workers[incarnation] = Worker(incarnation, attempt, lambda: self.now)
        worker.control.on_stripes = lambda command: self._obey_stripes(worker, command)
        return worker

    def lose(self, worker: Worker) -> list[wire.Message]:
        """Its node is lost: so is what it had said, unless somebody had it already. Returns that."""
        if worker.gone or not worker.alive:
            return []
        unheard = list(worker.outbox)
        worker.outbox.clear()
        worker.alive = False
        worker.inbox.clear()
        worker.say(wire.Exited(worker.incarnation, None, None, cause="its node was lost"))
        return unheard

    def withdraw_unplaced(self) -> int:
        """The nodes that take workers have changed: those without a place are taken back. Returns how many."""
        found = [worker for worker in self.workers.values() if not worker.placed and not worker.gone]
        for worker in found:
            worker.placed = True
            worker.say(wire.Exited(worker.incarnation, None, None, cause="it had no place yet", is_withdrawn=True))
        return len(found)

    def differ(self, worker: Worker) -> None:
        """It is told by a comparison that its state is not the others', says so, and ends itself."""
        if worker.alive and worker.record is not None and worker.step < self.total_steps:  # nothing is compared later
            place = (worker.incarnation, worker.record.number, worker.step)
            worker.say(wire.StateDiverged(*place, ("0", "1"), "states", agreed=worker.step))
            self.die(worker, code=71)

    def _obey(self, worker: Worker) -> None:
        worker.control.obey(worker.inbox.popleft())

    # --- what it does next --------------------------------------------------------------------------------------------

    def _next_move(self, worker: Worker) -> Move | None:
        """The main thread's next move, or one of a thread beside it; None where it waits."""
        control = worker.control
        for _, record in sorted(control.forming.items()):
            if (move := self._formation(worker, self.group_of(record))) is not None:
                return move
        if worker.feeder is not None and (move := self._feeding(worker, worker.feeder)) is not None:
            return move
        if worker.hangs_since is not None:
            return None
        if worker.said < 2:
            return lambda: self._warm_up(worker)
        if worker.entering is not None:
            return self._entry(worker, self.group_of(worker.entering))
        if worker.following is not None:
            return self._follow(worker, self.group_of(worker.following))
        if worker.waiting:
            return self._wait(worker)
        if control.ended is not None:
            return self._wait_for_release(worker)
        return self._train(worker)

    def _warm_up(self, worker: Worker) -> None:
        worker.said += 1
        control = worker.control
        if worker.said == 1:
            control.hello = wire.Hello(worker.incarnation, "host:1")
            control.say(control.hello)
            return
        control.standby = wire.Standby(
            *(worker.incarnation, "layout", "code", self.total_steps),
            arithmetic=self.arithmetic.get(worker.incarnation, {}),
        )
        control.stage("standby", 0)
        control.say(control.standby)
        worker.waiting, worker.told = True, control.revoked_through

    def _wait(self, worker: Worker) -> Move | None:
        control = worker.control
        if control.is_released:
            return lambda: self.die(worker, code=0)
        if number := control.enterable:
            found = control.look(number)
            assert found is not None
            if worker.incarnation in found[0].joining:
                return lambda: self._begin_following(worker, number)
            return lambda: self._begin_entry(worker)
        if control.revoked_through > worker.told:
            return lambda: self._say_broken(worker, control.revoked_through)
        return None

    # --- groups -------------------------------------------------------------------------------------------------------

    def _formation(self, worker: Worker, group: Group) -> Move | None:
        record, members = group.record, self._members(group)
        if worker.control.is_over(record):
            return lambda: worker.control.end_forming(record, GenerationLost("it is over"))
        is_met = all(record.number in one.control.forming or one.incarnation in group.ends for one in members)
        if is_met and (group.ends or all(one.alive for one in members)):
            return lambda: self._formed(worker, group)
        if any(self._is_out(one, group) for one in members):
            return lambda: worker.control.end_forming(record, GenerationLost("a member did not come"))
        return None

    def _formed(self, worker: Worker, group: Group) -> None:
        rank = group.record.rank_of(worker.incarnation)
        assert rank is not None
        end = group.ends[worker.incarnation] = GroupEnd(rank, group.record.world)
        worker.control.end_forming(group.record, end)

    # --- joins --------------------------------------------------------------------------------------------------------

    def _change(self, worker: Worker, feed: int, switch_to: int) -> None:
        control = worker.control
        if feed:
            self._begin_feeding(worker, feed)
        if control.look(switch_to) is not None and not control.is_revoked(switch_to):
            self.switch(worker, switch_to)
        feeder, failed = worker.feeder, 0
        if feeder is not None and feeder.has_failed:
            failed, worker.feeder = feeder.record.number, None
        if worker.alive:
            control.drop_failed(failed)

    def _begin_feeding(self, worker: Worker, number: int) -> None:
        record, end = worker.control.look(number) or (None, None)
        is_known = worker.feeder is not None and worker.feeder.record.number >= number
        if record is not None and end is not None and record.joining and not is_known:
            worker.feeder = Feeder(record)

    def _feeding(self, worker: Worker, feeder: Feeder) -> Move | None:
        """The joiners are brought up to date, or given up where one of the group is lost."""
        group = self.group_of(feeder.record)
        members, number = self._members(group), feeder.record.number
        if feeder.has_failed:
            return None
        if any(self._is_out(one, group) for one in members):
            return lambda: self._fail_feeding(worker, feeder)
        if not feeder.is_told and self.may_join and all(one.incarnation in group.ends for one in members):
            return lambda: self._tell_ready(worker, feeder, number)
        return None

    def _tell_ready(self, worker: Worker, feeder: Feeder, number: int) -> None:
        feeder.is_told = True
        worker.control.may_switch(number)

    def _fail_feeding(self, worker: Worker, feeder: Feeder) -> None:
        feeder.has_failed = True
        self.group_of(feeder.record).ends[worker.incarnation].bury()
        if not worker.control.is_revoked(feeder.record.number):
            worker.say(wire.FormFailed(worker.incarnation, feeder.record.number, "a joiner was lost"))

    def _begin_following(self, worker: Worker, number: int) -> None:
        worker.control.stage("sync")
        record, end = worker.control.take(number)
        worker.waiting, worker.following, worker.end = False, record, end  # type: ignore[assignment]

    def _follow(self, worker: Worker, group: Group) -> Move | None:
        """What it misses arrives; when the members have switched it is one of them."""
        if worker.control.is_over(group.record) or not self.may_join:
            return lambda: self._stop_following(worker, group.record.number)
        if group.switched_at is not None and self.random.random() < 0.7:
            return lambda: self._arrive_at_last(worker, group)
        if any(self._is_out(one, group) for one in self._members(group) if one is not worker):
            return lambda: self._stop_following(worker, group.record.number)
        return None if group.switched_at is None else (lambda: self._arrive_at_last(worker, group))

    def _arrive_at_last(self, worker: Worker, group: Group) -> None:
        assert group.switched_at is not None
        worker.following, worker.step, worker.completed = None, group.switched_at, group.last
        worker.handled, worker.lineage, worker.is_intact = group.handled, group.lineage, not self.changes_results
        worker.rows.take_over({}, group.rows, group.open_row)
        self._begin(worker, group, (worker.step, bridge_owners(group.record)))

    def _stop_following(self, worker: Worker, number: int) -> None:
        """Without the state it waits for another generation; in the middle of repeating steps it is of no more use."""
        control, worker.following = worker.control, None
        self._bury(worker)
        if control.is_revoked(number):
            self._say_broken(worker, control.revoked_through, "the generation to join was revoked")
        else:
            worker.waiting, worker.told = True, control.revoked_through
            control.stage("standby", 0)
            worker.say(wire.FormFailed(worker.incarnation, number, "a member was lost"))
        if self.random.random() < 0.5:
            worker.say(wire.Left(worker.incarnation, number, worker.step))
            self.die(worker, code=0)
