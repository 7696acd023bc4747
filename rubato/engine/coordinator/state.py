"""What all procedures of the coordinator share: the facts of the job, and the verbs that put orders out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.changes import MOST_JOINS, Changes
from rubato.engine.coordinator.ledger import CheckpointLedger
from rubato.engine.coordinator.orders import Order, Terms, Wish
from rubato.engine.coordinator.owners import decide_first_owners
from rubato.engine.coordinator.roster import Roster, WorkerView
from rubato.engine.coordinator.starting import NEVER, Starting
from rubato.engine.coordinator.verdicts import Verdicts
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure
from rubato.wire.events import EventKind


class JobState:
    """The facts of one attempt at a job."""

    def __init__(self, terms: Terms, wish: Wish, restarts: int, scalings: int) -> None:
        self.terms = terms
        self.wish = wish
        self.roster = Roster()
        self.current: wire.GenerationRecord | None = None
        self.pending: wire.GenerationRecord | None = None
        """Minted, and not known to be trained in yet."""
        self.given_up: dict[int, wire.GenerationRecord] = {}
        """Pending once, by number: members may have agreed to switch before they could hear of it."""
        self.highest = 0
        """The highest number ever minted."""
        self.entered: set[str] = set()
        """Members that train in the current generation."""
        self.first_step = 0
        """Where the current generation began."""
        self.step = 0
        self.total_steps: int | None = None
        self.restarts = restarts
        self.scalings = scalings
        self.ledger = CheckpointLedger(
            terms.checkpoint_every_s,
            request=terms.attempt << 32,
            adapts=terms.adapts_interval,
            longest_s=terms.longest_interval_s,
        )
        self.verdicts = Verdicts()
        self.starting = Starting(terms.max_restarts)
        self.changes = Changes()
        self.reason = ""
        """Why the job is not as the user wishes, in a sentence."""
        self.spawned = 0
        """Workers started so far: the number of the newest one."""
        self._out: list[Order] = []

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the current generation; 0: none."""
        return self.current.number if self.current else 0

    @property
    def standby_workers(self) -> int:
        """Spare workers to keep warm besides those that train."""
        return self.terms.standby_workers if self.wish.standby is None else self.wish.standby

    @property
    def is_settled(self) -> bool:
        """Every member trains in the current generation, and no other is under way."""
        return self.current is not None and self.pending is None and len(self.entered) == self.current.world

    @property
    def is_trained(self) -> bool:
        """All steps are done: those who have the state keep it, and there is nothing left to join in.

        The last one is told as committed when the program is over only, which may be long behind its loop.
        """
        done = max((self.step, *(worker.step for worker in self.roster.of(self.current))))
        return self.total_steps is not None and done >= self.total_steps

    @property
    def is_sealed(self) -> bool:
        """The checkpoint behind the last step stands, with all that was kept for a step to come."""
        return self.total_steps is not None and max(self.step, self.ledger.committed_step) >= self.total_steps

    def is_member(self, worker: WorkerView) -> bool:
        """Of the current generation or of the pending one."""
        records = (self.current, self.pending)
        return any(record is not None and record.rank_of(worker.incarnation) is not None for record in records)

    def rank_of(self, worker: WorkerView) -> int | None:
        """In the current generation."""
        return self.current.rank_of(worker.incarnation) if self.current else None

    def has_joined(self, incarnation: str) -> bool:
        """Whether it came into the current generation while others trained on."""
        return self.current is not None and incarnation in self.current.joining

    def located(self, failure: Failure, worker: WorkerView) -> Failure:
        """The failure, with the place where it happened."""
        return replace(failure, worker_id=worker.worker_id, rank=self.rank_of(worker), node=worker.node or None)

    def forget_total(self) -> None:
        """All were lost: where they had stopped the steps they may not stop them again, or later."""
        said = [worker.standby.total_steps for worker in self.roster if worker.standby is not None]
        self.total_steps = min(said, default=None)

    def learn_total(self, total_steps: int) -> None:
        """A worker says how many steps there are: where its program has stopped them, fewer than all others say."""
        self.total_steps = total_steps if self.total_steps is None else min(self.total_steps, total_steps)

    # --- verbs --------------------------------------------------------------------------------------------------------

    def put(self, order: Order) -> None:
        """Give an order to the host."""
        self._out.append(order)

    def send(self, incarnation: str, command: wire.Command) -> None:
        """Give a command to a training process."""
        self.put(orders.Send(incarnation, command))

    def kill(self, worker: WorkerView, because: str, *, with_stacks: bool = False) -> None:
        """Have a worker ended; its exit will be reported."""
        if not worker.doom:
            worker.doom = because
            self.put(orders.Kill(worker.incarnation, because, with_stacks))

    def emit(self, kind: EventKind, message: str, *, step: int | None = None, **data: Any) -> None:
        """Tell a fact."""
        self.put(orders.Emit(kind.value, message, step, self.number or None, data))

    def spawn(self, count: int, now: float) -> None:
        """Start so many more workers, unless it is to be waited, or given up, after those that died on their way."""
        for _ in range(count if self.starting.may_start(now) else 0):
            self.spawned += 1
            incarnation = f"{self.terms.attempt}.{self.spawned}"
            self.roster.add(WorkerView("w" + incarnation, incarnation, self.spawned, now, heard_at=now))
            stands_at = self.step if self.current is not None else 0  # else it may go back
            self.put(orders.Spawn("w" + incarnation, incarnation, stands_at))

    def mint(
        self,
        workers: list[WorkerView],
        origin: wire.Origin,
        cause: wire.Cause,
        follows: int,
        owners: tuple[int, ...] | None = None,
    ) -> None:
        """Make the next generation and tell everybody who must act on it: old members, new members, leavers.

        Args:
            workers: the members, by rank.
            origin: where the state comes from.
            cause: why.
            follows: the generation whose members switch to it; 0: none.
            owners: the rank of each microbatch; None: equal shares, or what is known of slow members says.
        """
        self.highest += 1
        record = wire.GenerationRecord(
            attempt=self.terms.attempt,
            number=self.highest,
            members=tuple(wire.Member(worker.worker_id, worker.incarnation) for worker in workers),
            owners=owners or self._first_owners(workers),
            store=next((worker.hello.store for worker in workers if worker.hello is not None), ""),
            origin=origin,
            cause=cause,
            follows=follows,
            joining=tuple(one.incarnation for one in workers if follows and self.rank_of(one) is None),
        )
        self.pending = record
        leavers = self.roster.of(self.current) if follows else []
        for incarnation in {worker.incarnation: None for worker in (*workers, *leavers)}:
            self.send(incarnation, wire.Prepare(self.terms.attempt, record))

    def _first_owners(self, workers: Sequence[WorkerView]) -> tuple[int, ...]:
        former = self.current.owners if self.current is not None else ()
        return decide_first_owners(self.terms.num_microbatches, [one.pace for one in workers], former)

    def give_up_pending(self) -> None:
        """The pending generation will not come about, as far as can be seen here; the next one supersedes it."""
        if self.pending is not None:
            self.given_up[self.pending.number] = self.pending
        self.pending = None

    def fail_pending(self, cause: str, now: float) -> None:
        """The pending generation, which follows another one, failed: it is given up, told of, and tried again later."""
        record = self.pending
        assert record is not None
        joining = [member.worker_id for member in record.members if member.incarnation in record.joining]
        what = f"{', '.join(joining)} could not join" if joining else f"generation {record.number} was not formed"
        failed = self.changes.on_failed(now, joins=bool(joining))
        message = f"{what}: {cause}{failed.outlook}"
        if record.cause != "rebalance":  # whose failure leaves the members as they were wished
            self.changes.because = message
        if failed.times <= MOST_JOINS:  # what fails without end is told in `reason`
            facts = {"generation": record.number, "cause": cause, "joining": joining, "times": failed.times}
            seconds = None if failed.wait_s == NEVER else failed.wait_s
            self.emit(EventKind.CHANGE_FAILED, message, step=self.step, seconds=seconds, **facts)
        self.give_up_pending()

    def reassign_stripes(self) -> None:
        """Have survivors write what the dead owe."""
        for order in self.ledger.on_lost({one.incarnation for one in self.roster}):
            command = wire.WriteStripe(self.terms.attempt, order.generation, order.folder, order.index)
            self.send(order.incarnation, command)

    def flush(self) -> list[Order]:
        """The orders given since the last call."""
        out, self._out = self._out, []
        return out
