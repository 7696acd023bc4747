"""Membership: leaving a generation that is over, and entering the next one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rubato.engine.comm import Communicator
from rubato.engine.entry import EntryPlan, Standing, decide_entry, standing_bytes
from rubato.engine.results import Completed, pack_result, result_bytes, unpack_result
from rubato.engine.sync import share_state
from rubato.errors import GenerationLost
from rubato.wire import worker as wire

if TYPE_CHECKING:
    from rubato.engine.session import Session


class Membership:
    """The way of one session through the generations."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def recover(self, cause: str) -> None:
        """The generation is over: leave it, say so, and enter the next one."""
        session = self._session
        assert session.record is not None
        if session.comm is not None:
            session.comm.bury()
        session.comm = session.exchange = None
        through = max(session.record.number, session.control.revoked_through)
        self._say_broken(through, cause)
        self.wait_and_enter(told=through)

    def _say_broken(self, through: int, cause: str = "") -> None:
        session = self._session
        session.control.stage("enter", session.step)
        session.control.broken = wire.Broken(
            session.control.start.incarnation, through, session.has_state, session.step, cause
        )
        session.control.say(session.control.broken)

    def wait_and_enter(self, told: int) -> None:
        """Enter generations until one holds."""
        left: int | None = told
        while left is not None:
            record, comm = self._session.control.wait_for_generation(left, self._say_broken)
            left = self._try_to_enter(record, comm)

    def _try_to_enter(self, record: wire.GenerationRecord, comm: Communicator) -> int | None:
        """Enter a generation. Where it was lost meanwhile: the number through which this worker has said it is out."""
        try:
            self._enter(record, comm)
        except GenerationLost as error:
            comm.bury()
            told = max(record.number, self._session.control.revoked_through)
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
        rank = record.rank_of(session.control.start.incarnation)
        assert rank is not None
        plan = decide_entry(record, self._exchange_standings(record, comm))
        if plan.blank:
            session.control.stage("sync", session.step)
            extra = share_state(comm, session.state, plan.holders, session.extra())
            if rank in plan.blank:
                session.take_extra(extra)
        elif not plan.holders and record.origin.kind == "checkpoint":
            session.resume(Path(record.origin.folder))
        if plan.behind:
            self._catch_up(comm, plan, rank)
        session.record, session.rank, session.comm = record, rank, comm
        session.has_state, session.joined = True, plan.blank
        session.owners_of_step = plan.owners_of_step
        session.begin_generation(comm)
        session.control.record, session.control.broken = record, None
        session.control.stage("update", session.step)
        sizes = session.plan.sizes(plan.last[0] + 1) if plan.orphans else ()
        redone = sum(sizes[leaf] > 0 for leaf in plan.orphans)
        session.control.say(wire.Entered(session.control.start.incarnation, record.number, session.step, redone))

    def _exchange_standings(self, record: wire.GenerationRecord, comm: Communicator) -> list[Standing]:
        session = self._session
        mine = Standing(
            attempt=record.attempt,
            generation=record.number,
            has_state=session.has_state,
            last=session.completed.key,
            result_bytes=result_bytes(session.completed),
            working_on=session.step if session.partial_sums is not None else -1,
            held=frozenset(session.partial_sums.held) if session.partial_sums is not None else frozenset(),
        )
        size = standing_bytes(session.num_microbatches)
        table = torch.zeros(size * comm.world, dtype=torch.uint8)
        source = torch.frombuffer(bytearray(mine.pack(session.num_microbatches)), dtype=torch.uint8)
        comm.all_gather(table, source)
        return [Standing.unpack(bytes(row.numpy())) for row in table.view(comm.world, size)]

    def _catch_up(self, comm: Communicator, plan: EntryPlan, rank: int) -> None:
        """Give the result of the last exchange to those that missed it."""
        session = self._session
        sizes = torch.zeros(comm.world, dtype=torch.int64)
        comm.all_gather(sizes, torch.tensor([result_bytes(session.completed)]))
        size = int(sizes[plan.source])
        source = torch.empty(0, dtype=torch.uint8)
        if rank == plan.source:
            source = pack_result(session.completed).repeat(len(plan.behind))
        out = torch.empty(size if rank in plan.behind else 0, dtype=torch.uint8)
        out_sizes = [size if other == plan.source and rank in plan.behind else 0 for other in range(comm.world)]
        source_sizes = [size if rank == plan.source and other in plan.behind else 0 for other in range(comm.world)]
        comm.all_to_all(out, source, out_sizes, source_sizes)
        if rank in plan.behind:
            session.completed = Completed(plan.last, unpack_result(out, session.flat.dtype, session.flat.device))

    def switch(self, number: int) -> bool:
        """Go over to a generation that all agreed on. Returns False where this worker is not in it: it may leave."""
        session = self._session
        record, comm = session.control.take(number)
        old, session.comm = session.comm, comm
        if old is not None:
            old.bury()
        if comm is None:
            return False
        told = self._try_to_enter(record, comm)
        if told is not None:
            self.wait_and_enter(told)
        return True
