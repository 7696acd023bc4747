"""Simulated training processes that follow the protocol: what they do next, alone and together.

What several do together (form a group, enter it, reduce a step) takes effect for each at a time of its own, so that
deaths fall between.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from tests.unit.engine.coordinator.actors import Decision, Group, Worker


class Processes:
    """All training processes, and the groups they form."""

    def __init__(self, schedule: random.Random, total_steps: int) -> None:
        self.random = schedule
        self.total_steps = total_steps
        self.arithmetic: dict[str, dict[str, str]] = {}
        """What workers say of theirs, by incarnation."""
        self.now = 1000.0
        self.workers: dict[str, Worker] = {}
        self.groups: dict[tuple[int, int], Group] = {}
        self.slowness: dict[str, float] = {}
        """By incarnation: times the usual duration of a microbatch."""
        self.saved_rows: dict[str, tuple[MetricRow, ...]] = {}
        """That a checkpoint took along, by its folder."""
        self.raises_at: int | None = None
        self.raises: tuple[str, ...] = ("a peer was lost: no memory",)
        """The step whose exchange raises on every worker, each time it is tried."""
        self.may_join = True
        """Whether joiners can take over the state."""

    def die(self, worker: Worker, signal: str = "SIGKILL", code: int | None = None, cause: str = "") -> None:
        """The process ends; what it had said before is still delivered, then its exit."""
        if worker.gone or (worker.placed and not worker.alive):
            return
        worker.alive, worker.placed = False, True
        worker.inbox.clear()
        output = (f"the last line of {worker.incarnation}",)
        worker.say(wire.Exited(worker.incarnation, code, signal if code is None else None, output, cause))

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
        if worker.alive and worker.record is not None:
            place = (worker.incarnation, worker.record.number, worker.step)
            worker.say(wire.StateDiverged(*place, ("0", "1"), "states", agreed=worker.step))
            self.die(worker, code=71)

    # --- a training process: commands ---------------------------------------------------------------------------------

    def _obey(self, worker: Worker) -> None:
        command = worker.inbox.popleft()
        if command.attempt < worker.attempt:
            return
        worker.attempt = command.attempt
        match command:
            case wire.Prepare(record=record):
                if record.number > worker.highest:
                    worker.highest = record.number
                    worker.forming[record.number] = record
            case wire.Revoke(through=through):
                worker.revoked = max(worker.revoked, through)
                worker.highest = max(worker.highest, through)
            case wire.Checkpoint(request=request, lost_step=lost_step):
                worker.request, worker.lost_step = max(worker.request, request), lost_step
            case wire.Leave(how=how):
                worker.leaving = how
            case wire.Release():
                worker.released = True
            case wire.WriteStripe(generation=generation, folder=folder, index=index):
                kept = worker.stripe
                if worker.has_copies and kept is not None and (kept.generation, kept.folder) == (generation, folder):
                    file = {"name": f"s{index}", "bytes": 1, "sha256": "0" * 64}
                    worker.inherited.append(replace(kept, incarnation=worker.incarnation, index=index, files=(file,)))
                    worker.say(worker.inherited[-1])
            case wire.ForgetStripes(folder=folder):
                worker.saved_step = max(worker.saved_step, int(folder.rsplit("-", 1)[1]))
                if worker.stripe is not None and worker.stripe.folder == folder:
                    worker.has_copies = False
            case wire.Acknowledge(step=step):
                worker.rows = [row for row in worker.rows if row.step > step]
            case wire.Attach():
                worker.say(self.snapshot_of(worker))
            case wire.TellStacks(number=number):
                worker.say(wire.Stacks(worker.incarnation, number, "Thread MainThread"))

    def snapshot_of(self, worker: Worker) -> wire.Snapshot:
        return wire.Snapshot(
            *(worker.incarnation, worker.hello, worker.standby, worker.record, worker.highest),
            *(worker.broken, worker.ended, worker.step, tuple(worker.rows), worker.saved_step),
        )

    # --- a training process: what it does next ------------------------------------------------------------------------

    def _next_move(self, worker: Worker) -> Callable[[], None] | None:
        """The main thread's next move, or a background formation; None where it waits."""
        for _, record in sorted(worker.forming.items()):
            if (move := self._formation(worker, self.group_of(record))) is not None:
                return move
        for _, record in sorted(worker.formed.items()):
            if (move := self._feeding(worker, self.group_of(record))) is not None:
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
        if worker.ended is not None:
            return self._wait_for_release(worker)
        return self._train(worker)

    def _warm_up(self, worker: Worker) -> None:
        worker.said += 1
        if worker.said == 1:
            worker.hello = wire.Hello(worker.incarnation, "host:1")
            worker.say(worker.hello)
        else:
            worker.standby = wire.Standby(
                *(worker.incarnation, "layout", "code", self.total_steps),
                arithmetic=self.arithmetic.get(worker.incarnation, {}),
            )
            worker.say(worker.standby)
            worker.waiting, worker.told = True, worker.revoked

    def group_of(self, record: wire.GenerationRecord) -> Group:
        return self.groups[record.attempt, record.number]

    def _members(self, group: Group) -> list[Worker]:
        return [self.workers[member.incarnation] for member in group.record.members]

    def _formation(self, worker: Worker, group: Group) -> Callable[[], None] | None:
        number = group.record.number
        members = self._members(group)
        if worker.revoked >= number:
            return lambda: worker.forming.pop(number)
        if worker not in members:
            return lambda: self._formed(worker, group)
        there = [one for one in members if number in one.forming or one.incarnation in group.formed]
        if len(there) == len(members) and all(one.alive for one in members):
            return lambda: self._formed(worker, group)
        if group.formed and len(there) == len(members):
            return lambda: self._formed(worker, group)  # they had met before the death
        if any(not one.alive and one.placed for one in members):
            return lambda: self._form_failed(worker, number)
        return None

    def _formed(self, worker: Worker, group: Group) -> None:
        number = group.record.number
        worker.forming.pop(number)
        if self._is_stale(worker, group.record):
            return
        group.formed.add(worker.incarnation)
        worker.formed[number] = group.record
        if not group.record.joining or worker not in self._members(group):
            worker.ready = max(worker.ready, number)
        worker.say(wire.Formed(worker.incarnation, number))

    def _is_stale(self, worker: Worker, record: wire.GenerationRecord) -> bool:
        """It was to follow a generation that this worker is out of."""
        return worker.record is not None and 0 < record.follows < worker.record.number

    def _form_failed(self, worker: Worker, number: int) -> None:
        worker.forming.pop(number)
        worker.say(wire.FormFailed(worker.incarnation, number, "a member did not come"))

    # --- a training process: joins ------------------------------------------------------------------------------------

    def _feeding(self, worker: Worker, group: Group) -> Callable[[], None] | None:
        """In the background: the joiners are brought up to date, or given up where one of the group is lost."""
        number, members = group.record.number, self._members(group)
        is_joiner = worker.incarnation in group.record.joining
        if not group.record.joining or is_joiner or worker not in members or number in worker.fed:
            return None
        if any(not one.alive and one.placed for one in members):
            return lambda: self._give_up_feeding(worker, number)
        if any(self._has_dropped(one, number) for one in members if one.incarnation in group.formed):
            return lambda: self._give_up_feeding(worker, number)
        if self.may_join and all(one.incarnation in group.formed for one in members):
            return lambda: self._fed(worker, number)
        return None

    def _fed(self, worker: Worker, number: int) -> None:
        worker.fed.add(number)
        worker.ready = max(worker.ready, number)

    def _give_up_feeding(self, worker: Worker, number: int) -> None:
        worker.fed.add(number)
        if worker.revoked < number:
            worker.say(wire.FormFailed(worker.incarnation, number, "a joiner was lost"))

    def _begin_following(self, worker: Worker, record: wire.GenerationRecord) -> None:
        worker.formed = {number: one for number, one in worker.formed.items() if number > record.number}
        worker.waiting, worker.following = False, record

    def _follow(self, worker: Worker, group: Group) -> Callable[[], None] | None:
        """What it misses arrives; when the members have switched it is one of them."""
        number = group.record.number
        if worker.revoked >= number or max(worker.formed, default=0) > number or not self.may_join:
            return lambda: self._stop_following(worker, number)
        if group.entry_step is not None and self.random.random() < 0.7:
            return lambda: self._arrive_at_last(worker, group)
        holders = [one for one in self._members(group) if one.incarnation not in group.record.joining]
        if any(self._has_dropped(one, number) for one in self._members(group) if one is not worker) or not holders:
            return lambda: self._stop_following(worker, number)
        return None if group.entry_step is None else (lambda: self._arrive_at_last(worker, group))

    def _has_dropped(self, worker: Worker, number: int) -> bool:
        """Dead, or its end of the group is buried."""
        if not worker.alive:
            return worker.placed
        held = {record.number for record in (worker.record, worker.following, worker.entering) if record is not None}
        return number not in held and number not in worker.formed and number not in worker.forming

    def _arrive_at_last(self, worker: Worker, group: Group) -> None:
        worker.following = None
        self._enter(worker, group)

    def _stop_following(self, worker: Worker, number: int) -> None:
        """Without the state it waits for another generation; in the middle of repeating steps it is of no more use."""
        worker.following = None
        if worker.revoked >= number:
            self._say_broken(worker, worker.revoked, "the generation to join was revoked")
        else:
            worker.waiting, worker.told = True, worker.revoked
            worker.say(wire.FormFailed(worker.incarnation, number, "a member was lost"))
        if self.random.random() < 0.5:
            worker.say(wire.Left(worker.incarnation, number, worker.step))
            self.die(worker, code=0)

    # --- a training process: entering ---------------------------------------------------------------------------------

    def _wait(self, worker: Worker) -> Callable[[], None] | None:
        for number, record in sorted(worker.formed.items(), reverse=True):
            if number > worker.revoked and record.rank_of(worker.incarnation) is not None:
                if worker.incarnation in record.joining:
                    return lambda: self._begin_following(worker, record)
                if not record.follows:
                    return lambda: self._begin_entry(worker, record)
        if worker.revoked > worker.told:
            return lambda: self._say_broken(worker, worker.revoked)
        return None

    def _say_broken(self, worker: Worker, through: int, cause: str = "") -> None:
        worker.waiting, worker.told, worker.entering = True, through, None
        worker.broken = wire.Broken(worker.incarnation, through, worker.has_state, worker.step, cause)
        worker.ended = None
        worker.say(worker.broken)

    def _begin_entry(self, worker: Worker, record: wire.GenerationRecord) -> None:
        worker.formed = {number: one for number, one in worker.formed.items() if number > record.number}
        worker.waiting, worker.entering = False, record
        self.group_of(record).entering.add(worker.incarnation)

    def _entry(self, worker: Worker, group: Group) -> Callable[[], None] | None:
        members, number = self._members(group), group.record.number
        if group.entry_step is None:
            if all(one.alive and one.incarnation in group.entering for one in members):
                self._agree_on_entry(group, members)
            elif worker.revoked >= number or any(not one.alive and one.placed for one in members):
                return lambda: self._say_broken(worker, max(number, worker.revoked), "a member was lost at the entry")
            else:
                return None
        if any(not one.alive for one in members) and self.random.random() < 0.5:
            return lambda: self._say_broken(worker, max(number, worker.revoked), "a member was lost in the entry")
        return lambda: self._enter(worker, group)

    def _agree_on_entry(self, group: Group, members: list[Worker]) -> None:
        holders = [one for one in members if one.has_state]
        if holders:
            group.entry_completed = max(
                (one.completed for one in holders if one.completed), key=lambda one: one.step, default=None
            )
            group.entry_step = min(one.step for one in holders)
            group.is_sealed = any(one.is_sealed for one in holders)
        else:
            assert group.record.origin.kind != "members", "members without any state"
            kind, folder = group.record.origin.kind, group.record.origin.folder
            group.entry_step = int(folder.rsplit("-", 1)[1]) if kind == "checkpoint" else 0
            group.rows = list(self.saved_rows.get(folder, ()))

    def _enter(self, worker: Worker, group: Group) -> None:
        assert group.entry_step is not None
        if not worker.has_state:
            worker.step, worker.rows = group.entry_step, list(group.rows)
        if group.entry_completed is not None and group.entry_completed.step > worker.step:
            worker.completed = group.entry_completed  # caught up: the reduction it missed
        elif group.entry_completed is not None and not worker.has_state:
            worker.completed = group.entry_completed
        worker.is_sealed = group.is_sealed
        worker.has_state, worker.record, worker.entering, worker.broken = True, group.record, None, None
        worker.formed = {one: other for one, other in worker.formed.items() if not self._is_stale(worker, other)}
        worker.say(wire.Entered(worker.incarnation, group.record.number, worker.step))

    def _wait_for_release(self, worker: Worker) -> Callable[[], None] | None:
        assert worker.record is not None
        if worker.released:
            return lambda: self.die(worker, code=0)
        if worker.revoked >= worker.record.number:
            return lambda: self._say_broken(worker, max(worker.record.number, worker.revoked), "revoked at the end")
        if worker.lost_step == worker.step:
            return lambda: self._save_again(worker)
        return None

    # --- a training process: steps ------------------------------------------------------------------------------------

    def _train(self, worker: Worker) -> Callable[[], None] | None:
        record = worker.record
        assert record is not None
        if worker.completed is not None and worker.completed.step == worker.step + 1:
            return lambda: self._commit(worker)
        if worker.step >= self.total_steps and worker.is_sealed:
            return lambda: self._end(worker, "finished", record)
        if worker.revoked >= record.number:
            return lambda: self._say_broken(worker, worker.revoked, "revoked")
        group = self.group_of(record)
        if worker.step == self.raises_at:
            return lambda: self._say_broken(worker, max(record.number, worker.revoked), self.random.choice(self.raises))
        arrived = group.arrived.setdefault(worker.step, set())
        if worker.step >= self.total_steps and not self._has_saved(worker):
            return lambda: self._save(worker)  # and then meet the others, as if for another step
        if worker.incarnation not in arrived:
            return lambda: self._arrive(worker, group)
        members = self._members(group)
        decision = group.decided.get(worker.step)
        lost = [one for one in members if not one.alive or (decision is None and self._has_left(one, record))]
        if decision is not None and not (lost and self.random.random() < 0.3):
            return lambda: self._complete(worker, decision)
        if lost:
            through = max(record.number, worker.revoked)
            return lambda: self._say_broken(worker, through, "a peer was lost")
        return None

    def _has_left(self, worker: Worker, record: wire.GenerationRecord) -> bool:
        """It dropped the group, or switched to a later one."""
        has_dropped = worker.waiting and worker.told >= record.number
        return has_dropped or (worker.record is not None and worker.record.number > record.number)

    def _arrive(self, worker: Worker, group: Group) -> None:
        arrived = group.arrived[worker.step]
        arrived.add(worker.incarnation)
        members = self._members(group)
        if len(arrived) < len(members) or not all(one.alive for one in members):
            return
        ready = {max(one.ready, group.record.number) for one in members}
        agreed = ready.pop() if len(ready) == 1 else 0
        leaving = {one.leaving for one in members}
        group.decided[worker.step] = Decision(
            step=worker.step + 1,
            switch_to=agreed if agreed > group.record.number else 0,
            leaving="stop" if "stop" in leaving else "pause" if "pause" in leaving else "",
            request=max(one.request if one.request > one.handled else 0 for one in members),
        )

    def _complete(self, worker: Worker, decision: Decision) -> None:
        if worker.step >= self.total_steps:
            worker.is_sealed, worker.has_changed = True, self.random.random() < 0.3
            return
        worker.completed = decision
        self._commit(worker)

    def _pace(self, record: wire.GenerationRecord) -> tuple[tuple[int, int], ...]:
        """What each member spent on its microbatches, with some noise."""
        counts = [record.owners.count(rank) for rank in range(record.world)]
        usual = [self.slowness.get(one.incarnation, 1.0) * self.random.uniform(9e6, 11e6) for one in record.members]
        return tuple((int(time * count), count) for time, count in zip(usual, counts, strict=True))

    def _commit(self, worker: Worker) -> None:
        decision, record = worker.completed, worker.record
        assert decision is not None
        assert record is not None
        worker.step += 1
        time = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)).isoformat()
        worker.rows.append(MetricRow(worker.step, time, record.number, record.world, {"loss": 1.0}))
        rows: tuple[MetricRow, ...] = ()
        if record.rank_of(worker.incarnation) == 0:
            rows = tuple(worker.rows) if worker.rows_told_in != record.number else (worker.rows[-1],)
            worker.rows_told_in = record.number
        pace = self._pace(record) if record.rank_of(worker.incarnation) == 0 else ()
        worker.say(wire.Committed(worker.incarnation, record.number, worker.step, rows, pace))
        if decision.request:
            worker.handled = max(worker.handled, decision.request)
        if decision.leaving:
            self._end(worker, "paused" if decision.leaving == "pause" else "stopped", record)
            return
        if decision.request:
            self._save(worker)
        if decision.switch_to in worker.formed and worker.revoked < decision.switch_to:
            self._switch(worker, decision.switch_to)

    def _switch(self, worker: Worker, number: int) -> None:
        record = worker.formed.pop(number)
        if record.rank_of(worker.incarnation) is not None:
            group = self.group_of(record)
            assert group.entry_step in (None, worker.step), "members switched at different steps"
            group.entry_step, group.entry_completed, group.rows = worker.step, worker.completed, list(worker.rows)
            worker.formed = {one: other for one, other in worker.formed.items() if one > number}
            self._enter(worker, group)
            return
        assert worker.record is not None
        worker.say(wire.Left(worker.incarnation, worker.record.number, worker.step))
        self.die(worker, code=0)

    def _save(self, worker: Worker) -> None:
        record = worker.record
        assert record is not None
        rank = record.rank_of(worker.incarnation)
        assert rank is not None
        folder = f"{record.attempt}-{worker.step}"
        file = {"name": f"s{rank}", "bytes": 1, "sha256": "0" * 64}
        worker.inherited.clear()
        worker.has_copies = True
        worker.stripe = wire.StripeWritten(
            *(worker.incarnation, record.number, worker.step, folder, rank, record.world, (file,)),
            members=tuple(member.incarnation for member in record.members),
        )
        worker.say(worker.stripe)

    def _has_saved(self, worker: Worker) -> bool:
        """In this generation, at this step."""
        kept, record = worker.stripe, worker.record
        return kept is not None and record is not None and (kept.generation, kept.step) == (record.number, worker.step)

    def _save_again(self, worker: Worker) -> None:
        worker.lost_step = -1
        if self._has_saved(worker):
            return
        if not worker.has_changed:
            self._save(worker)
            return
        assert worker.record is not None
        folder = f"{worker.record.attempt}-{worker.step}"
        worker.say(wire.StripeFailed(worker.incarnation, folder, worker.step, "changed", worker.record.number))

    def _end(self, worker: Worker, how: str, record: wire.GenerationRecord) -> None:
        if record.rank_of(worker.incarnation) == 0 and worker.rows_told_in != record.number:
            worker.rows_told_in = record.number
            worker.say(wire.Committed(worker.incarnation, record.number, worker.step, tuple(worker.rows)))
        if how == "paused":
            self._save(worker)
        worker.ended = wire.Ended(worker.incarnation, how, worker.step, "d")  # type: ignore[arg-type]
        worker.say(worker.ended)
