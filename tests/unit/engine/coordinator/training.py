"""Simulated training processes that enter generations, take steps together and save.

What the engine decides in pure functions is decided by these here: `decide_entry`, `decide` on headers,
`bridge_owners`, and by the whole `Control`, with its fence, and `Rows`. What `Session`, `Membership`, `Feeder` and
`Saver` do between two of these decisions holds tensors, groups and files. It is a copy: a change there is one here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rubato.checkpoint.manifest import MANIFEST_NAME, key_of, read_manifest, verify
from rubato.checkpoint.stripes import write_document
from rubato.engine.agreement import Agreement, Trust
from rubato.engine.entry import Standing, bridge_owners, decide_entry
from rubato.engine.header import Header, Leaving, decide
from rubato.errors import GenerationLost
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from tests.unit.engine.coordinator.actors import Completed, Group, Result, Worker
from tests.unit.engine.coordinator.storage import MemoryFolder

Move = Callable[[], None]
NUM_MICROBATCHES = 8
Writes = Literal["well", "fail", "hang"]
LEAVING: dict[Leaving, Literal["paused", "stopped"]] = {Leaving.PAUSE: "paused", Leaving.STOP: "stopped"}


class Training:
    """What members do together takes effect for each at a time of its own, so that deaths fall between."""

    def __init__(self, schedule: random.Random, total_steps: int) -> None:
        self.random = schedule
        self.total_steps = total_steps
        self.evaluates_behind = False
        """Programs stay in an exchange behind their loops."""
        self.now = 1000.0
        self.workers: dict[str, Worker] = {}
        self.groups: dict[tuple[int, int], Group] = {}
        self.storage = MemoryFolder()
        self.lineages: dict[tuple[str, int, int], Result | None] = {}
        self.open_rows: dict[tuple[str, int], dict[str, Any] | None] = {}
        """In the document of each checkpoint, which lies beside its first part."""
        """Of each part on storage, by folder, generation and index."""
        self.writes: Writes = "well"
        """What becomes of parts that are written from now on; those that hang are written when it changes."""
        self.slowness: dict[str, float] = {}
        """By incarnation: times the usual duration of a microbatch."""
        self.changes_results = False
        """The program changes its gradients, so that nobody can have them from a worker that went on."""
        self.raises_at: int | None = None
        self.raises: tuple[str, ...] = ("a peer was lost: no memory",)
        """The step whose exchange raises on every worker, each time it is tried."""

    def die(self, worker: Worker, signal: str = "SIGKILL", code: int | None = None, cause: str = "") -> None:
        """The process ends; what it had said before is still delivered, then its exit."""
        if worker.gone or (worker.placed and not worker.alive):
            return
        worker.alive, worker.placed, worker.has_left = False, True, code == 0
        worker.inbox.clear()
        output = (f"the last line of {worker.incarnation}",)
        worker.say(wire.Exited(worker.incarnation, code, signal if code is None else None, output, cause))

    def group_of(self, record: wire.GenerationRecord) -> Group:
        return self.groups[record.attempt, record.number]

    def _members(self, group: Group) -> list[Worker]:
        return [self.workers[member.incarnation] for member in group.record.members]

    def _is_out(self, worker: Worker, group: Group) -> bool:
        """Dead, or its end of the group is buried, or will never be."""
        if not worker.alive:
            return worker.placed
        number, control = group.record.number, worker.control
        end = group.ends.get(worker.incarnation)
        if end is None:
            return number <= control.highest and number not in control.forming
        return end.is_buried

    # --- entering -----------------------------------------------------------------------------------------------------

    def _say_broken(self, worker: Worker, through: int, cause: str = "") -> None:
        control = worker.control
        control.stage("enter", worker.step)
        step = max(worker.step, worker.completed.key[0] + 1)
        worker.waiting, worker.told, worker.entering = True, through, None
        control.broken = wire.Broken(worker.incarnation, through, worker.has_state, step, cause, worker.serves)
        control.say(control.broken)

    def _recover(self, worker: Worker, cause: str) -> None:
        """The generation is over."""
        assert worker.record is not None
        self._bury(worker)
        worker.control.ended = worker.feeder = None
        self._say_broken(worker, max(worker.record.number, worker.control.revoked_through), cause)

    def _bury(self, worker: Worker) -> None:
        end, worker.end = worker.end, None
        if end is not None:
            end.bury()

    def _begin_entry(self, worker: Worker) -> None:
        record, end = worker.control.take(worker.control.enterable)
        worker.waiting, worker.entering, worker.end = False, record, end  # type: ignore[assignment]
        self.group_of(record).entering.add(worker.incarnation)

    def _entry(self, worker: Worker, group: Group) -> Move | None:
        members, number = self._members(group), group.record.number
        if group.plan is None:
            if all(one.alive and one.entering is group.record for one in members):
                standings = [self._standing(one, group.record) for one in members]
                group.plan = decide_entry(group.record, standings)
                group.missed = members[group.plan.source].completed if group.plan.behind else None
            elif worker.control.is_revoked(number) or any(self._is_out(one, group) for one in members):
                return lambda: self._miss_entry(worker, number)
            else:
                return None
        if any(not one.alive for one in members) and self.random.random() < 0.5:
            return lambda: self._miss_entry(worker, number)
        return lambda: self._enter(worker, group)

    def _miss_entry(self, worker: Worker, number: int) -> None:
        self._bury(worker)
        self._say_broken(worker, max(number, worker.control.revoked_through), "a member was lost at the entry")

    def _standing(self, worker: Worker, record: wire.GenerationRecord) -> Standing:
        is_holding = worker.held is not None
        return Standing(
            attempt=record.attempt,
            generation=record.number,
            has_state=worker.has_state,
            last=worker.completed.key,
            result_bytes=int(worker.serves),
            working_on=worker.step if is_holding else -1,
            held=worker.held or frozenset(),
        )

    def _enter(self, worker: Worker, group: Group) -> None:
        record, plan = group.record, group.plan
        assert plan is not None
        rank = record.rank_of(worker.incarnation)
        if not plan.holders:
            assert record.origin.kind != "members", "members without any state"
            if record.origin.kind == "checkpoint":
                self._resume(worker, record.origin.folder.rpartition("/")[2])
        if rank in plan.behind:
            assert group.missed is not None
            assert group.missed.result is not None, "nobody has what it missed"
            worker.completed, worker.held, worker.is_intact = group.missed, None, True
            worker.result = group.missed.result if group.missed.result.decision is not None else None
        worker.entering = None
        self._begin(worker, group, plan.owners_of_step, len(plan.orphans))

    def _resume(self, worker: Worker, name: str) -> None:
        """Every member loads the checkpoint."""
        manifest = read_manifest(self.storage / name)
        worker.step, worker.completed = manifest.step, Completed((manifest.step - 1, 0), None)
        worker.lineage = self.lineages[name, manifest.generation, 0]
        worker.rows.take_over({}, map(asdict, manifest.rows), self.open_rows[name, manifest.generation])

    def _begin(
        self, worker: Worker, group: Group, owners: tuple[int, tuple[int, ...]] | None = None, redone: int = 0
    ) -> None:
        """Train in a generation from here on."""
        control = worker.control
        worker.has_state, worker.owners_of_step, worker.reduced = True, owners, 0
        control.begin(group.record)
        control.stage("update", worker.step)
        control.say(wire.Entered(worker.incarnation, group.record.number, worker.step, redone))

    # --- steps --------------------------------------------------------------------------------------------------------

    def _train(self, worker: Worker) -> Move | None:
        record, step, number = worker.record, worker.step, worker.completed.key[1]
        assert record is not None
        if worker.ending:
            return lambda: self._say_ended(worker)
        if worker.result is not None and worker.completed.key == (step, 0):
            return lambda: self._commit(worker)
        is_behind = step >= self.total_steps and number > 0
        if is_behind and not self.evaluates_behind:
            return lambda: self._finish(worker)
        if worker.control.is_revoked(record.number):
            return lambda: self._recover(worker, "the controller revoked the generation")
        if is_behind:
            return None
        if step == self.raises_at:
            return lambda: self._recover(worker, self.random.choice(self.raises))
        if step >= self.total_steps and not self._has_saved(worker):
            return lambda: self._save(worker)  # and then meet the others, as if for another step
        group = self.group_of(record)
        key = (step - 1, 1) if step >= self.total_steps else (step, 0)
        if worker.incarnation not in group.arrived.setdefault(key, {}):
            return lambda: self._arrive(worker, group, key)
        result = group.decided.get(key)
        members = self._members(group)
        if result is None:
            is_lost = any(self._is_out(one, group) for one in members)
        else:  # who left has sent all that it owed
            is_lost = any(not one.alive and not one.has_left for one in members)
        if result is not None and not (is_lost and self.random.random() < 0.3):
            return lambda: self._complete(worker, result)
        return (lambda: self._recover(worker, "a peer was lost")) if is_lost else None

    def _arrive(self, worker: Worker, group: Group, key: tuple[int, int]) -> None:
        """Its microbatches are computed: it is in the exchange, which is over when the last one is."""
        record, rank = group.record, group.record.rank_of(worker.incarnation)
        owners = record.owners
        if worker.owners_of_step is not None and worker.owners_of_step[0] == worker.step:
            owners = worker.owners_of_step[1]
        mine = frozenset(leaf for leaf, owner in enumerate(owners) if owner == rank)
        if key[1] == 0:
            worker.held = (worker.held or frozenset()) | mine
        worker.control.stage("exchange", worker.step)
        arrived, members = group.arrived[key], self._members(group)
        arrived[worker.incarnation] = self._header(worker, record, worker.held or frozenset())
        if len(arrived) < len(members) or any(self._is_out(one, group) for one in members):
            return
        if key[1]:
            group.decided[key] = Result(key, None)
            return
        decision = decide([arrived[one.incarnation] for one in members])
        assert decision.weight == NUM_MICROBATCHES, f"microbatches of step {worker.step} were left out"
        group.decided[key] = Result(key, decision)

    def _header(self, worker: Worker, record: wire.GenerationRecord, held: frozenset[int]) -> Header:
        control, number = worker.control, record.number
        rank = record.rank_of(worker.incarnation)
        assert rank is not None
        is_last = worker.step + 1 == self.total_steps
        waits = Agreement(record, rank, worker.step, worker.reduced, is_last, Trust()).awaits_judgement
        each_ns = self.slowness.get(worker.incarnation, 1.0) * self.random.uniform(9e6, 11e6)
        return Header(
            attempt=record.attempt,
            generation=number,
            step=worker.step,
            formed=number if waits else max(control.formed, number),
            ready=number if waits else max(control.ready, number),
            leaving=Leaving.NO if waits else control.leaving,
            checkpoint=control.checkpoint_request if control.checkpoint_request > worker.handled else 0,
            is_finite=True,
            digest=None,
            compute_ns=int(each_ns * len(held)),
            slots=tuple((1.0, float(leaf in held)) for leaf in range(NUM_MICROBATCHES)),
        )

    def _complete(self, worker: Worker, result: Result) -> None:
        """What follows is the program's, up to the boundary."""
        assert worker.record is not None
        worker.completed = Completed(result.key, result if worker.record.world > 1 else None)
        if result.decision is None:
            worker.has_changed = self.random.random() < 0.3
            return
        worker.result, worker.is_intact, worker.held = result, True, None
        worker.reduced += 1

    def _commit(self, worker: Worker) -> None:
        record, result = worker.record, worker.result
        assert record is not None
        assert result is not None
        assert result.decision is not None
        decision, worker.result, worker.lineage = result.decision, None, result
        worker.is_intact = not self.changes_results
        worker.step += 1
        time = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)).isoformat()
        worker.rows.commit(MetricRow(worker.step, time, record.number, record.world, {"loss": 1.0}))
        rank = record.rank_of(worker.incarnation)
        assert rank is not None
        if worker.step < self.total_steps:
            worker.rows.keep()
            worker.rows.tell(record.number, rank, worker.step, decision.pace)
        worker.handled = max(worker.handled, decision.checkpoint)
        if decision.leaving is not Leaving.NO:
            worker.ending = LEAVING[decision.leaving]
            return
        if decision.checkpoint:
            self._save(worker)
        self._change(worker, decision.feed, decision.switch_to)

    def _change(self, worker: Worker, feed: int, switch_to: int) -> None:
        """At a boundary: begin to bring joiners up to date, or go over, as all decided."""
        raise NotImplementedError

    def switch(self, worker: Worker, number: int) -> None:
        """Go over to a generation that all agreed on."""
        assert worker.record is not None
        record, end = worker.control.take(number)
        worker.end = end  # type: ignore[assignment]
        if end is None:
            worker.say(wire.Left(worker.incarnation, worker.record.number, worker.step))
            self.die(worker, code=0)
            return
        if worker.feeder is not None and worker.feeder.record.number == number:
            worker.feeder = None
        group = self.group_of(record)
        assert group.switched_at in (None, worker.step), "members switched at different steps"
        group.switched_at, group.last, group.handled = worker.step, worker.completed, worker.handled
        group.rows, group.open_row = worker.rows.untold() if record.joining else (), worker.rows.open_row
        group.lineage = worker.lineage
        self._begin(worker, group, (worker.step, bridge_owners(record)))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, worker: Worker) -> None:
        """All steps are done."""
        record = worker.record
        assert record is not None
        worker.ending = "finished"
        worker.rows.keep()
        worker.rows.tell(record.number, record.rank_of(worker.incarnation) or 0, worker.step)

    def _say_ended(self, worker: Worker) -> None:
        control, record = worker.control, worker.record
        assert record is not None
        if not worker.reduced and record.rank_of(worker.incarnation) == 0:
            worker.rows.tell(record.number, 0, worker.step)  # the lowest rank may have gone with rows untold
        if worker.ending == "paused" and not self._has_saved(worker):
            self._save(worker)
        control.stage("done", worker.step)
        control.ended = wire.Ended(worker.incarnation, worker.ending, worker.step, "d")  # type: ignore[arg-type]
        control.say(control.ended)

    def _wait_for_release(self, worker: Worker) -> Move | None:
        control, record = worker.control, worker.record
        assert record is not None
        if control.is_released or control.is_revoked(record.number) or control.lost_step == worker.step:
            return lambda: self._be_released(worker, record.number)
        return None

    def _be_released(self, worker: Worker, number: int) -> None:
        try:
            is_released = worker.control.wait_for_release(number, worker.step)
        except GenerationLost as error:
            self._recover(worker, str(error))
            return
        if is_released:
            self.die(worker, code=0)
        else:
            self._save_again(worker)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, worker: Worker) -> None:
        record = worker.record
        assert record is not None
        rank = record.rank_of(worker.incarnation)
        assert rank is not None
        worker.has_copies, worker.saved, worker.saved_row = True, worker.lineage, worker.rows.open_row
        members = tuple(member.incarnation for member in record.members)
        place = (record.number, worker.step, f"{record.attempt}-{worker.step}", rank, record.world)
        worker.stripe = wire.StripeWritten(worker.incarnation, *place, (), members=members)
        self._write_part(worker, rank)

    def _write_part(self, worker: Worker, index: int) -> None:
        """Its own, or that of a dead neighbour."""
        kept, saved, row = worker.stripe, worker.saved, worker.saved_row
        assert kept is not None

        def write() -> None:
            if self.writes == "fail":
                worker.say(wire.StripeFailed(worker.incarnation, kept.folder, kept.step, "no space", kept.generation))
            else:
                self.lineages[kept.folder, kept.generation, index] = saved
                worker.say(replace(kept, index=index, files=self._files_of(worker, kept, index, row)))

        if self.writes == "hang" or worker.unwritten:  # each worker writes one after the other
            worker.unwritten.append(write)
        else:
            write()

    def _files_of(
        self, worker: Worker, kept: wire.StripeWritten, index: int, row: dict[str, Any] | None
    ) -> tuple[dict[str, Any], ...]:
        """A part on storage: equal steps are equal bytes, whoever computed them.

        But the document beside the first one holds times that its writer measured.
        """
        folder = self.storage / kept.folder
        files = [folder.write(f"stripe-{index}-of-{kept.count}", [str(kept.step).encode()])]
        if index == 0:
            files.append(write_document(folder, {"seconds": worker.incarnation}, []))
            self.open_rows[kept.folder, kept.generation] = row
        if folder.exists(MANIFEST_NAME):
            verify(folder, read_manifest(folder))  # what counts stays as it is
        return tuple(asdict(file) for file in files)

    def _obey_stripes(self, worker: Worker, command: wire.WriteStripe | wire.ForgetStripes) -> None:
        kept = worker.stripe
        if kept is None or kept.folder != command.folder:
            return
        if isinstance(command, wire.ForgetStripes):
            worker.has_copies = False
        elif worker.has_copies and kept.generation == command.generation:
            self._write_part(worker, command.index)

    def _has_saved(self, worker: Worker) -> bool:
        """In this generation, at this step."""
        kept, record = worker.stripe, worker.record
        return kept is not None and record is not None and (kept.generation, kept.step) == (record.number, worker.step)

    def _save_again(self, worker: Worker) -> None:
        if self._has_saved(worker):
            return
        if not worker.has_changed:
            self._save(worker)
            return
        assert worker.record is not None
        folder = f"{worker.record.attempt}-{worker.step}"
        assert key_of(folder)
        worker.say(wire.StripeFailed(worker.incarnation, folder, worker.step, "changed", worker.record.number))
