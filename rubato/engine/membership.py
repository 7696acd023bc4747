"""Membership: leaving a generation that is over, and entering the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.checkpoint.storage import open_folder
from rubato.engine.aggregated import AggregatedExchange
from rubato.engine.comm import Communicator, form
from rubato.engine.entry import EntryPlan, Standing, bridge_owners, decide_entry, standing_bytes
from rubato.engine.exchange import Exchange
from rubato.engine.header import header_bytes
from rubato.engine.join import Feeder, Follower
from rubato.engine.results import Completed, pack_result, result_bytes, unpack_result
from rubato.engine.settling import hear, tell_lost
from rubato.engine.sync import Snapshot
from rubato.engine.tree import balanced_owners
from rubato.errors import GenerationLost, LeaveTraining
from rubato.wire import worker as wire

if TYPE_CHECKING:
    from rubato.engine.session import Session


class Membership:
    """The way of one session through the generations."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prepared: dict[int, Exchange] = {}
        """By generation: formed, and its buffers touched, while another one trained."""
        self._former: Communicator | None = None
        """Of the generation before, whose last exchange others may be in still."""

    def form(self, record: wire.GenerationRecord, rank: int, is_revoked: Callable[[], bool]) -> Communicator:
        """Build the group of a generation and its buffers: called by the control's threads."""
        session = self._session
        self._forget_below(record.number)  # given up, nearly always; what is switched to all the same makes its own
        job = session.control.start.job_id
        comm = form(record, rank, job_id=job, host=session.host, device=session.device, is_revoked=is_revoked)
        try:
            self._prepared[record.number] = self._prepare(record, comm)
        except BaseException:  # there is no memory for it: the others of this group notice at once
            comm.bury()
            raise
        return comm

    def _prepare(self, record: wire.GenerationRecord, comm: Communicator) -> Exchange:
        """The reductions of a generation, their memory touched."""
        session = self._session
        exchange = self._make_exchange(comm)
        ownerships = {record.owners, bridge_owners(record)}
        exchange.touch(session.order, ownerships, session.exchange if record.follows else None)
        if record.follows:  # else everybody waits
            for owners in ownerships:
                session.sums.reserve(owners, comm.rank)
        return exchange

    def exchange_of(self, number: int, comm: Communicator | None) -> Exchange:
        """For the reductions of a generation that begins now; those of older ones are dropped."""
        found, aggregation = self._prepared.pop(number, None), self._session.aggregation
        self._forget_below(number)
        if aggregation is not None:
            aggregation.begin(comm.hosts if comm is not None else [0], counts=self._session.is_caught_up())
        return found or self._make_exchange(comm)

    def _forget_below(self, number: int) -> None:
        for old in [one for one in list(self._prepared) if one < number]:  # other threads put more into it
            self._prepared.pop(old, None)

    def drop_failed(self) -> None:
        """At a boundary, when what was agreed there is done: let go of what nobody will switch to any more."""
        session, feeder, failed = self._session, self._session.feeder, 0
        assert session.record is not None
        if feeder is not None and feeder.has_failed and feeder.record.number > session.record.number:
            failed, session.feeder = feeder.record.number, None
            self._prepared.pop(failed, None)
        session.control.drop_failed(failed)

    def _make_exchange(self, comm: Communicator | None) -> Exchange:
        session, flat = self._session, self._session.flat
        integers = flat.integer_bytes
        like = torch.empty(flat.length, dtype=flat.dtype, device="meta")
        multi = comm if comm is not None and comm.world > 1 else None
        header = header_bytes(session.num_microbatches)
        if session.aggregation is not None:
            return AggregatedExchange(multi, session.aggregation, flat, header, integers)
        return Exchange(multi, like, header, integers, flat.device, flat.gradients, flat.buckets)

    def begin_alone(self) -> None:
        """One worker without a controller: `python train.py`."""
        session, start = self._session, self._session.control.start
        member, origin = wire.Member(start.worker_id, start.incarnation), wire.Origin("fresh")
        owners = balanced_owners(session.num_microbatches, 1)
        session.record = wire.GenerationRecord(session.control.attempt, 1, (member,), owners, "", origin, "start", 0)
        if session.resume_from is not None:
            session.resume(session.resume_from)
        session.has_state = True
        session.begin_generation(self.exchange_of(1, None))

    def recover(self, cause: str) -> None:
        """The generation is over: leave it, say so, and enter the next one."""
        session = self._session
        assert session.record is not None
        session.sums.abandon()
        if session.aggregation is not None:
            session.aggregation.abandon()
        if session.comm is not None:
            session.comm.bury()
        self.bury_former()
        session.comm = session.exchange = session.feeder = None
        through = max(session.record.number, session.control.revoked_through)
        self._say_broken(through, cause)
        self.wait_and_enter(told=through)

    def bury_former(self) -> None:
        """An exchange of this generation is complete: everybody is out of the one before."""
        former, self._former = self._former, None
        if former is not None:
            former.bury()

    def _say_broken(self, through: int, cause: str = "") -> None:
        session = self._session
        session.control.stage("enter", session.step)
        # A step whose exchange is complete is beyond those who missed it, whether it is committed yet or not.
        step = max(session.step, session.completed.key[0] + 1)
        serves = self._servable_bytes() > 0
        broken = wire.Broken(session.control.start.incarnation, through, session.has_state, step, cause, serves)
        session.control.broken = broken
        session.control.say(broken)

    def _servable_bytes(self) -> int:
        """Size of the last exchange's result for a member that missed it; 0: it is gone, or the program changed it."""
        completed, sums = self._session.completed, self._session.sums
        is_reduction = completed.key[1] == 0
        return 0 if is_reduction and not sums.is_intact else result_bytes(completed)

    def wait_and_enter(self, told: int) -> None:
        """Enter generations until one holds."""
        left: int | None = told
        while left is not None:
            record, comm = self._session.control.wait_for_generation(left, self._say_broken)
            left = self._try_to_enter(record, comm)

    def _try_to_enter(self, record: wire.GenerationRecord, comm: Communicator) -> int | None:
        """Enter a generation. Where it was lost meanwhile: the number through which this worker has said it is out."""
        control = self._session.control
        is_joining = control.start.incarnation in record.joining
        try:
            if is_joining:
                self._follow(record, comm)
            else:
                self._enter(record, comm)
        except GenerationLost as error:
            comm.bury()
            self._prepared.pop(record.number, None)
            heard = control.revoked_through  # once: what is heard from here on is answered while it waits
            if is_joining and heard < record.number:
                control.stage("standby", 0)
                control.say(wire.FormFailed(control.start.incarnation, record.number, str(error)))  # members train on
                return heard
            told = max(record.number, heard)
            self._say_broken(told, str(error))
            return told
        return None

    def _enter(self, record: wire.GenerationRecord, comm: Communicator) -> None:
        """Compare standings with the other members and do what the plan says.

        Raises:
            GenerationLost: a member was lost meanwhile. What was installed by then is whole.
        """
        session = self._session
        session.control.stage("enter", session.step)
        plan = decide_entry(record, self._exchange_standings(record, comm))
        if not plan.holders and record.origin.kind == "checkpoint":
            session.control.stage("checkpoint")  # slow by nature: nobody is at fault for how long it takes
            session.rank = comm.rank  # of all that resume, the lowest tells what there is to tell
            session.resume(open_folder(record.origin.folder))
            session.control.stage("enter")
        if plan.behind:
            self._catch_up(comm, plan)
        sizes = session.plan.sizes(plan.last[0] + 1) if plan.orphans else ()
        redone = sum(sizes[leaf] > 0 for leaf in plan.orphans)
        self._begin(record, comm, plan.owners_of_step, redone)

    def _begin(
        self,
        record: wire.GenerationRecord,
        comm: Communicator,
        owners_of_step: tuple[int, tuple[int, ...]] | None,
        redone: int = 0,
    ) -> None:
        """Train in a generation from here on."""
        session = self._session
        if session.is_caught_up():
            hear(session, session.completed.result)
        session.record, session.rank, session.comm = record, comm.rank, comm
        session.has_state = True
        session.owners_of_step = owners_of_step
        session.begin_generation(self.exchange_of(record.number, comm))
        tell_lost(session, record)
        session.control.begin(record)
        session.control.stage("update", session.step)
        session.control.say(wire.Entered(session.control.start.incarnation, record.number, session.step, redone))

    # --- a joiner's way in --------------------------------------------------------------------------------------------

    def _follow(self, record: wire.GenerationRecord, comm: Communicator) -> None:
        """Take over the state of a boundary; user code then repeats the steps since, from the members' results."""
        session = self._session
        session.control.stage("sync")
        follower = Follower(record, comm, session.flat.dtype, session.flat.device)
        received = follower.snapshot(lambda: session.control.stage("sync"))
        session.state.install(received.document, received.tensors)
        session.take_extra(received.extra)
        session.sums.may_overlap = received.extra["may_overlap"]
        session.record, session.rank, session.comm, session.follower = record, comm.rank, comm, follower

    def next_result(self) -> None:
        """A joiner's next step: take the members' result of it, or, where none is missing any more, be one of them.

        Raises:
            LeaveTraining: the generation it was to join is no more. What it has is of no use to another, so it ends.
        """
        session = self._session
        follower, record, comm = session.follower, session.record, session.comm
        assert follower is not None
        assert record is not None
        assert comm is not None
        session.control.stage("sync", session.step)
        try:
            completed = follower.next()
        except GenerationLost as error:
            self._give_up(record, str(error))
        if completed is not None:
            session.completed = completed
            session.control.stage("update")
            return
        session.follower = None
        self._begin(record, comm, self._bridge(record))

    def _give_up(self, record: wire.GenerationRecord, cause: str) -> NoReturn:
        session = self._session
        incarnation = session.control.start.incarnation
        if session.control.is_revoked(record.number):
            self._say_broken(session.control.revoked_through, cause)
        else:
            session.control.say(wire.FormFailed(incarnation, record.number, cause))
        session.control.say(wire.Left(incarnation, record.number, session.step))
        raise LeaveTraining

    def miss_the_end(self) -> NoReturn:
        """The members finished while this worker was on its way: it is not one of those that end the job."""
        session = self._session
        assert session.record is not None
        session.control.say(wire.Left(session.control.start.incarnation, session.record.number, session.step))
        raise LeaveTraining

    def _bridge(self, record: wire.GenerationRecord) -> tuple[int, tuple[int, ...]] | None:
        """Owners of the first step with joiners: the others compute it, while these take in what they missed."""
        return (self._session.step, bridge_owners(record)) if record.joiners else None

    def _exchange_standings(self, record: wire.GenerationRecord, comm: Communicator) -> list[Standing]:
        session = self._session
        mine = Standing(
            attempt=record.attempt,
            generation=record.number,
            has_state=session.has_state,
            last=session.completed.key,
            result_bytes=self._servable_bytes(),
            working_on=session.step if session.sums.held is not None else -1,
            held=session.sums.held or frozenset(),
        )
        size = standing_bytes(session.num_microbatches)
        table = torch.zeros(size * comm.world, dtype=torch.uint8)
        source = bytes_tensor(mine.pack(session.num_microbatches))
        comm.all_gather(table, source)
        return [Standing.unpack(bytes(row.numpy())) for row in table.view(comm.world, size)]

    def _catch_up(self, comm: Communicator, plan: EntryPlan) -> None:
        """Give the result of the last exchange to those that missed it."""
        session, rank = self._session, comm.rank
        sizes = torch.zeros(comm.world, dtype=torch.int64)
        comm.all_gather(sizes, torch.tensor([self._servable_bytes()]))
        size = int(sizes[plan.source])
        if rank == plan.source:
            told = pack_result(session.completed)
            comm.pass_messages([], [(other, told) for other in plan.behind])
        elif rank in plan.behind:
            out = torch.empty(size, dtype=torch.uint8)
            comm.pass_messages([(plan.source, out)], [])
            session.completed = Completed(plan.last, unpack_result(out, session.flat.dtype, session.flat.device))

    def feed(self, number: int) -> None:
        """All members have formed a generation: begin to bring its joiners up to the state of this boundary."""
        session = self._session
        found = session.control.look(number)
        record, comm = found or (None, None)
        if record is None or comm is None or not record.joining:
            return  # nobody joins, or this worker is to leave
        if session.feeder is not None and session.feeder.record.number >= number:
            return

        def capture(part: int, parts: int) -> Snapshot:
            extra = {**session.extra(), "may_overlap": session.sums.may_overlap}
            return Snapshot(session.state, extra, part, parts)

        def on_failed(number: int, cause: str) -> None:
            if not session.control.is_revoked(number):
                session.control.say(wire.FormFailed(session.control.start.incarnation, number, cause))

        session.feeder = Feeder(record, comm, capture, session.control.may_switch, on_failed)

    def switch(self, number: int) -> None:
        """Go over to a generation that all agreed on.

        Raises:
            LeaveTraining: this worker is not in it, and has written what it owed.
        """
        session = self._session
        record, comm = session.control.take(number)
        self._former, session.comm = session.comm, comm
        if comm is None:
            self._leave()
        if session.feeder is not None and session.feeder.record.number == number:
            session.feeder.close()
        former = session.exchange
        self._begin(record, comm, self._bridge(record))
        if former is not None and session.exchange is not None:
            session.exchange.take_over(former)

    def _leave(self) -> NoReturn:
        session = self._session
        assert session.record is not None
        session.control.stage("checkpoint")  # a slow storage is no fault of this worker
        session.saver.wait()
        session.control.say(wire.Left(session.control.start.incarnation, session.record.number, session.step))
        raise LeaveTraining
