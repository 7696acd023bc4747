"""What a training process does between two lines of user code.

    start           stand by, then enter the first generation
    reduce          one reduction over the members; a loss in it is repaired, and the caller computes what is missing
    boundary        the capture point, after all user code of a step: commit, save, switch, leave
    finish          all steps are done: save, tell the digest, wait for the release

Only here, and in code called from here, may a generation change; user code never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from rubato.checkpoint.storage import Folder
from rubato.data.order import BatchPlan
from rubato.engine.agreement import Agreement, Audit, Disagreement, OthersDiffer, Trust, audit_of
from rubato.engine.arithmetic import arithmetic_of
from rubato.engine.comm import Communicator
from rubato.engine.control import Control
from rubato.engine.digests import StateDigests
from rubato.engine.ending import end
from rubato.engine.entry import BEFORE_ALL, Key
from rubato.engine.exchange import Exchange
from rubato.engine.flat import FlatLayout
from rubato.engine.header import Decision, Header, Leaving, decide
from rubato.engine.join import Feeder, Follower
from rubato.engine.labels import Other, describe_other_exchange, tell_other
from rubato.engine.loading import load_checkpoint, program_of
from rubato.engine.membership import Membership
from rubato.engine.merge import merge
from rubato.engine.reduction import Reduced
from rubato.engine.results import Completed
from rubato.engine.rows import Rows
from rubato.engine.saver import Saver
from rubato.engine.settling import alikeness, count, is_due, resume, settle
from rubato.engine.state import TrainingState
from rubato.engine.stopping import resume_stopped
from rubato.engine.streaming import keeping_of
from rubato.engine.sums import Sums
from rubato.engine.told import Told
from rubato.engine.tree import AnyOrder, Order, Tree, passes
from rubato.errors import Diverged, GenerationLost, NotOnAllWorkers
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec


class Session:
    """The engine of one training process."""

    def __init__(
        self, control: Control, spec: JobSpec, device: torch.device, host: str, code: Callable[[], str]
    ) -> None:
        self.control = control
        self.spec = spec
        self.device = device
        self.host = host
        self._code = code
        self.num_microbatches = spec.num_microbatches
        self.aggregation = keeping_of(spec)
        """Instead of the engine's own reduction."""
        self.order: Order = Tree.of(self.num_microbatches) if spec.reproducible else AnyOrder()
        self.membership = Membership(self)
        self.record: wire.GenerationRecord | None = None
        self.rank = 0
        self.resume_from: Folder | None = None
        """For a program that runs alone: the checkpoint to go on from."""
        self.step = 0
        """Committed steps: the 0-based index of the step that is trained now."""
        self.rows = Rows(control)
        self.saver = Saver(control.start.storage, control.start.incarnation, control.say, device)
        control.on_stripes = self.saver.obey
        self._state: TrainingState | None = None
        self._flat: FlatLayout | None = None
        self._plan: BatchPlan | None = None
        self.total_steps = 0
        """Of the whole job."""
        self.stopped_of: int | None = None
        """As many steps as there were to be, where the program has stopped them."""
        self.comm: Communicator | None = None
        self.exchange: Exchange | None = None
        self.completed = Completed(BEFORE_ALL, None)
        self.trust = Trust()
        self.owners_of_step: tuple[int, tuple[int, ...]] | None = None
        """After a recovery: the step that was interrupted, and who holds or computes its microbatches."""
        self.decision: Decision | None = None
        """Of the step whose reduction is known."""
        self._sums: Sums | None = None
        self.reduced = 0
        """Steps that the present generation has reduced."""
        self.digests = StateDigests()
        self.audit: int | None = None
        """Digest of the gradient of the step's lowest microbatch, where several compute it."""
        self.has_state = False
        self.feeder: Feeder | None = None
        """Brings the joiners of a generation to come up to date."""
        self.follower: Follower | None = None
        """This worker joins: it repeats the updates it missed."""
        self._handled_request = 0
        self.present_microbatch: int | None = None
        """The one that user code works on now."""
        self.present_part: range | None = None
        """What is read of it now, as `BatchPlan.parts` cuts it."""
        self.told = Told()
        self.sizes_seen: set[int] = set()
        """Sizes of microbatches that this process has computed before."""
        self.compute_ns = 0
        """Spent on microbatches of this step, without reading them and without waiting for others."""
        self.data_ns = 0
        """Spent on reading them."""
        self._saved: tuple[int, int] | None = None

    # --- what the seams need ------------------------------------------------------------------------------------------

    @property
    def state(self) -> TrainingState:
        """Set by `start`."""
        assert self._state is not None
        return self._state

    @property
    def flat(self) -> FlatLayout:
        """Set by `start`."""
        assert self._flat is not None
        return self._flat

    @property
    def plan(self) -> BatchPlan:
        """Set by `start`."""
        assert self._plan is not None
        return self._plan

    @property
    def present_step(self) -> int | None:
        """The step that is trained now, from 0; None before the first generation."""
        return self.step if self.record is not None else None

    @property
    def world(self) -> int:
        """Members of the present generation."""
        return self.record.world if self.record else 1

    @property
    def computing(self) -> int:
        """Members that have microbatches in the present step: those that just join have none yet."""
        return len(set(self.shares()))

    @property
    def sums(self) -> Sums:
        """Set by `start`."""
        assert self._sums is not None
        return self._sums

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, state: TrainingState, flat: FlatLayout, plan: BatchPlan, total_steps: int) -> None:
        """Stand by until the first generation of this worker, and enter it."""
        self._state, self._flat, self._plan, self.total_steps = state, flat, plan, total_steps
        self._sums = Sums(self.order, flat, plan)
        if self.aggregation is not None:
            self.aggregation.prepare(flat, plan)
        code = self._code()  # after the warm-up: what that has loaded counts, too
        self.saver.program = program_of(code, plan)
        if self.control.is_alone:
            self.membership.begin_alone()
            return
        incarnation = self.control.start.incarnation
        terms = () if state.is_steady else (flat.pieces,)  # of what optimizers keep, too
        digest = state.layout_digest(self.num_microbatches, plan, total_steps, *terms)
        self.control.standby = wire.Standby(incarnation, digest, code, total_steps, arithmetic_of(self.device))
        self.control.stage("standby", 0)
        self.control.say(self.control.standby)
        self.membership.wait_and_enter(told=self.control.revoked_through)

    def resume(self, folder: Folder) -> None:
        """Install the state of a checkpoint."""
        on_wait = partial(self.control.stage, "checkpoint")
        loaded = load_checkpoint(folder, on_wait, self.device, self.notice, self.saver.program)
        resume(self, self.state.install(loaded.document["state"], loaded.tensors))
        extra = loaded.document["extra"]
        # What is known of the run that wrote it holds for that run only.
        known = {"agreed": extra["step"], "handled_request": self._handled_request}
        self.take_extra({**extra, **known, **loaded.rows_of(self.control.start.job_id)})
        resume_stopped(self, extra.get("stopped_of"))

    def _extra(self) -> dict[str, Any]:
        """What a resumed job must know beside the state."""
        last, rows = list(self.completed.key), self.rows
        known = {"step": self.step, "last": last, "stopped_of": self.stopped_of}
        return {**known, "metrics": dict(rows.latest), "open_row": rows.open_row}

    def extra(self) -> dict[str, Any]:
        """What a joiner must know beside the state."""
        known = {"agreed": self.trust.agreed, "handled_request": self._handled_request}
        return {**self._extra(), **known, "rows": self.rows.untold()}

    def take_extra(self, extra: dict[str, Any]) -> None:
        """Take over what `extra` told."""
        self.step = int(extra["step"])
        self.completed = Completed((extra["last"][0], extra["last"][1]), None)
        self.trust = Trust(int(extra["agreed"]))
        self._handled_request = int(extra["handled_request"])
        self.rows.take_over(extra.get("metrics", {}), extra["rows"], extra.get("open_row"))

    def begin_generation(self, exchange: Exchange) -> None:
        """Buffers and marks of a new generation."""
        self.exchange = exchange
        self.reduced = 0
        self._saved = self.audit = None

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def next_pass(self) -> range:
        """The lowest microbatches of this step that are this worker's to compute next, in one pass; empty: none."""
        self.check((self.step, 0))
        return next(self.passes(self.step, self.owners(), self.sums.of(self.step).held), range(0))

    def passes(self, step: int, owners: tuple[int, ...], held: set[int]) -> Iterator[range]:
        """Those of this worker over a step's microbatches, without the ones that are held."""
        sizes = self.plan.sizes(step)
        mine = [leaf for leaf, size in enumerate(sizes) if size and owners[leaf] == self.rank and leaf not in held]
        return passes(self.order, mine)

    def owners(self) -> tuple[int, ...]:
        """Of the present step's microbatches, their ranks: of all the first one's, where that leads."""
        shares = self.shares()
        return (shares[0],) * len(shares) if self.spec.local_updates.is_led else shares

    def shares(self) -> tuple[int, ...]:
        """By microbatch of the present step, whose share of the work it is."""
        assert self.record is not None
        return self.owners_of_step[1] if self.owners_of_step and self.is_repaired else self.record.owners

    @property
    def is_repaired(self) -> bool:
        """Whether this step has owners of its own: it was interrupted, or bridges to a generation with joiners."""
        return self.owners_of_step is not None and self.owners_of_step[0] == self.step

    @property
    def audits(self) -> Audit:
        """What this worker does to compare the gradient of the step's lowest microbatch."""
        if self.record is None or not self.spec.reproducible or self.follower is not None or not self.state.is_steady:
            return Audit.NONE
        return audit_of(self.record, self.rank, self.step, self.reduced == 0, self.is_repaired)

    def check(self, key: Key) -> None:
        """Before an exchange: a joiner takes its result from the members; if the generation is revoked, recover.

        Raises:  NotOnAllWorkers: the members' next exchange is another one.
        """
        assert self.record is not None
        if self.follower is not None:
            self.membership.next_result()
            if self.follower is not None and self.completed.key != key:
                raise NotOnAllWorkers(describe_other_exchange(key, self.completed.key))
        elif self.control.is_revoked(self.record.number):
            self.membership.recover("the controller revoked the generation")

    def is_caught_up(self) -> bool:
        """Whether the reduction of the present step is known already: from a recovery, or to a joiner."""
        return self.completed.key == (self.step, 0)

    def reduce(self, slots: dict[int, tuple[float, float]], integers: bytes) -> Reduced | None:
        """Reduce the step over all members.

        Args:    slots: (loss, weight) by microbatch computed here.  integers: of this worker's integer buffers.
        Returns: the result; None: a member was lost and this worker has recovered, so look again what is due.
        """
        if not self.is_caught_up():
            assert self.record is not None
            assert self.exchange is not None
            self.control.stage("exchange", self.step)
            try:
                agreement = self.agreement(self.record)
                found = self.digests.of(self.state, self.step, agreement.parts)
                header = self._header(slots, agreement, agreement.digest(found))
                self.finish_feeding()
                begun, was_wrong = self.sums.take_begun()
                header = replace(header, again=was_wrong)
                result = self.exchange.reduce(self.sums.of(self.step), self.owners(), header, integers, begun)
                agreement.check(result.headers)
                self._complete(Completed((self.step, 0), result))
                self.reduced += 1
                self.membership.bury_former()
            except Disagreement as error:
                self.diverge(error)
            except GenerationLost as error:
                self._recover(error)
                if not self.is_caught_up():
                    return None
        if self.feeder is not None:
            self.feeder.wait_copied()
        known = self.completed.result
        assert isinstance(known, Reduced)
        known = count(self, known)
        self.decision = decide(known.headers)
        self.sums.deliver(self.step, known, self.decision.weight)
        if self.world == 1:
            # Nobody can have missed it, and its buffer is in use again.
            self.completed = Completed(self.completed.key, None)
        self.control.stage("update")
        return known

    def _complete(self, completed: Completed) -> None:
        self.completed = completed
        if self.feeder is not None:
            self.feeder.add(completed)

    def finish_feeding(self) -> None:
        """In the first exchange with joiners: what they missed must be with them before the group is used again."""
        assert self.record is not None
        if self.feeder is not None and self.feeder.record.number == self.record.number:
            feeder, self.feeder = self.feeder, None
            feeder.finish()

    def agreement(self, record: wire.GenerationRecord) -> Agreement:
        """What is to be compared in the present step of a generation."""
        is_last = self.step + 1 == self.total_steps
        return Agreement(record, self.rank, self.step, self.reduced, is_last, self.trust, *alikeness(self))

    def _header(self, slots: dict[int, tuple[float, float]], agreement: Agreement, digest: int | None) -> Header:
        assert self.record is not None
        request, number = self.control.checkpoint_request, self.record.number
        waits = agreement.awaits_judgement  # nobody comes or goes before the joiners' state is known to be right
        return Header(
            attempt=self.record.attempt,
            generation=number,
            step=self.step,
            formed=number if waits else max(self.control.formed, number),
            ready=number if waits else max(self.control.ready, number),
            leaving=Leaving.NO if waits else self.control.leaving,
            checkpoint=request if request > self._handled_request else 0,
            is_finite=True,
            digest=digest,
            audit=self.audit,
            compute_ns=self.compute_ns + self.data_ns,
            slots=tuple(slots.get(leaf, (0.0, 0.0)) for leaf in range(self.num_microbatches)),
        )

    def diverge(self, error: Disagreement) -> NoReturn:
        """This worker's part is over: it is not the same as the others'."""
        self._tell_divergence(error)
        raise Diverged(f"the {error.what} differ at step {self.step}, and this worker is not among a majority")

    def _recover(self, error: GenerationLost) -> None:
        """Leave the group; who is not the same as the others is named, as that may cut it off before it knows."""
        if isinstance(error, OthersDiffer):
            self._tell_divergence(error, error.ranks)
        self.membership.recover(str(error))

    def _tell_divergence(self, error: Disagreement | OthersDiffer, ranks: tuple[int, ...] = ()) -> None:
        assert self.record is not None
        me, out = self.control.start.incarnation, tuple(self.record.members[rank].incarnation for rank in ranks)
        found = error.digests, error.what
        self.control.say(wire.StateDiverged(me, self.record.number, self.step, *found, self.trust.agreed, out))

    def knows_table(self, key: Key) -> bool:
        """Whether this evaluation is complete already, from a recovery."""
        return self.completed.key == key

    def gather_table(self, key: Key, table: torch.Tensor, kind: Other = Other.EVALUATE) -> torch.Tensor:
        """Merge a float64 table of which every member holds some rows; rows nobody holds are nan.

        Raises:  GenerationLost: a member was lost.  NotOnAllWorkers: some have no such table, or of another size.
        """
        if self.completed.key == key and isinstance(self.completed.result, torch.Tensor):
            return self.completed.result.view_as(table)
        if self.comm is None or self.world == 1:
            return table
        self.finish_feeding()
        return merge(self.comm, table, self.announce(key, kind, table.numel()))

    def announce(self, key: Key, kind: Other, remark: int = 0) -> list[int]:
        """Tell the other members which exchange comes now, see `tell_other`. Returns: by rank, its remark."""
        assert self.record is not None
        assert self.comm is not None
        device = self.flat.device if self.aggregation is None else torch.device("cpu")
        return tell_other(self.comm, (self.record.attempt, self.record.number, key[0]), kind, device, remark)

    def complete_table(self, key: Key, table: torch.Tensor) -> None:
        """An evaluation is complete: keep its result for a peer that missed it."""
        if not self.knows_table(key):
            self._complete(Completed(key, table.flatten().clone()))

    def complete_together(self, key: Key, exchange: Callable[[], torch.Tensor]) -> None:
        """Exchange with all members what belongs to no step, over losses; who misses it gets its result from another.

        Args:    exchange: gives the result, equal on all; done again after each loss.
        """
        while True:
            self.check(key)
            if self.knows_table(key):
                return
            try:
                table = exchange()
            except GenerationLost as error:
                self._recover(error)
            else:
                self.complete_table(key, table)

    # --- the capture point --------------------------------------------------------------------------------------------

    def commit(self, row: MetricRow) -> None:
        """All user code of the step is done: the step counts. The last row waits for what is logged at the end."""
        self.step += 1
        self.rows.commit(row)
        if self.step < self.total_steps:
            self.rows.keep()
            if self.follower is None:  # else others have told it
                self._tell_rows()

    def _tell_rows(self) -> None:
        assert self.record is not None
        # Where one worker leads, it owns all microbatches, and they say nothing of what the others do.
        decision, is_led = self.decision, self.spec.local_updates.is_led
        self.rows.tell(self.record.number, self.rank, self.step, decision.pace if decision and not is_led else ())

    def boundary(self) -> None:
        """Between two steps: save, leave or switch, as all members decided from the same headers.

        Raises:
            LeaveTraining: this worker's part is over.
        """
        decision = self.decision
        assert decision is not None
        assert self.record is not None
        self.decision = None
        every = self.spec.checkpoint.every_steps
        if decision.checkpoint:
            self._handled_request = max(self._handled_request, decision.checkpoint)
        saves = bool(decision.checkpoint) or (every is not None and self.step % every == 0)
        if is_due(self, decision, saves=saves):
            settle(self)
        if self.follower is not None:
            return  # what the members decided is theirs to do
        if decision.leaving is not Leaving.NO:
            end(self, "paused" if decision.leaving is Leaving.PAUSE else "stopped")
        if saves:
            self.save()
        if decision.feed:
            self.membership.feed(decision.feed)
        agreed = self.control.look(decision.switch_to)
        if agreed is not None and not self.control.is_revoked(decision.switch_to):
            self.membership.switch(decision.switch_to)
        self.membership.drop_failed()

    @property
    def has_saved(self) -> bool:
        """Whether this worker has begun its part of a checkpoint of the present boundary."""
        assert self.record is not None
        return self._saved == (self.record.number, self.step)

    def save(self, *, is_last: bool = False) -> None:
        """Begin this worker's part of a checkpoint of the present boundary."""
        assert self.record is not None
        if self.has_saved or self.follower is not None:
            return
        self._saved, self.trust.is_due = (self.record.number, self.step), True
        self.control.stage("checkpoint")
        told = {"extra": self._extra(), "metrics": self.rows.latest}
        self.saver.save(self.state, self.record, self.rank, step=self.step, is_last=is_last, **told)
        self.control.stage("update")

    def finish(self, digest: str, logged: dict[str, float]) -> None:
        """All steps are done and user code has returned: wait until the controller has what it needs.

        Args:    logged: what was logged after the last step; it goes into the last row.
        """
        if self.follower is not None:
            self.membership.miss_the_end()
        self.rows.add(logged)
        self.rows.keep()
        self._tell_rows()
        end(self, "finished", digest)

    def tell_rows_again(self) -> None:
        """After a loss behind the last step: the lowest rank may have gone with rows untold, and no step is to come."""
        assert self.record is not None
        if self.rank == 0:
            self.rows.tell(self.record.number, self.rank, self.step)

    def tell(self, kind: EventKind, message: str) -> None:
        """Tell what concerns this worker alone for the event log."""
        start, text = self.control.start, f"{self.control.start.worker_id}: {message}"
        self.control.say(wire.Notice(start.incarnation, kind.value, text, self.step, {"worker_id": start.worker_id}))

    def notice(self, kind: EventKind, message: str, **data: Any) -> None:
        """Tell a fact for the event log; only the lowest rank does."""
        if self.rank == 0:
            self.control.say(wire.Notice(self.control.start.incarnation, kind.value, message, self.step, data))
