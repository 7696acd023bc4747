"""Simulated workers that follow the protocol, and a host that carries out orders: no process, no clock, no tensor.

Everything asynchronous is an action that the schedule may take now or later: a command or a message is delivered (in
order for one worker, in any order between workers), a main thread moves on, a worker dies. Both directions deliver a
few things twice, as a transport does that sends again what was not acknowledged; to it a lost message is a late one, or
one of a worker that is gone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rubato.engine.coordinator import (
    Answer,
    CheckpointFound,
    CommitManifest,
    Coordinator,
    DropCheckpoints,
    Emit,
    End,
    FindCheckpoint,
    Kill,
    ManifestCommitted,
    Order,
    Rows,
    RowsStored,
    Send,
    Spawn,
    Terms,
    Wish,
)
from rubato.engine.coordinator.hangs import HangPolicy
from rubato.wire import worker as wire
from rubato.wire.cluster import ActionAnswer, MetricRow, Outcome, WorkerAction
from rubato.wire.status import WorkerState
from tests.unit.engine.coordinator.actors import Group, Worker
from tests.unit.engine.coordinator.processes import Processes

STAGE_S = 2.0
"""So long a microbatch may take where somebody waits for it; simulated ones take no time."""


class Cluster(Processes):
    """The world around one coordinator."""

    def __init__(
        self, schedule: random.Random, *, workers: int = 3, total_steps: int = 20, slots: int = 8, **terms: object
    ) -> None:
        super().__init__(schedule, total_steps)
        self.slots = slots
        usual = {"num_microbatches": 8, "backoff_initial_s": 0.5, "hangs": HangPolicy(stage_s=STAGE_S)}
        self.terms: dict[str, object] = {**usual, **terms}
        self.attempt = 1
        self.wish = Wish("run", workers)
        self.rows: dict[int, MetricRow] = {}
        """On storage."""
        self.spool: deque[tuple[MetricRow, ...]] = deque()
        """On their way there: they go with the controller."""
        self.num_rows = 0
        """That were told by this controller and are stored."""
        self.takes_rows = True
        self.coordinator = self._make_coordinator()
        self.answers: deque[object] = deque()
        self.checkpoints: list[tuple[int, int]] = []
        self.outcome: Outcome | None = None
        self.events: list[Emit] = []
        self.done: dict[int, ActionAnswer] = {}
        self.actions = 0
        self.revokes: list[tuple[str, int]] = []
        self.minted: list[wire.GenerationRecord] = []
        self.may_commit = True
        self._ticked_at = self.now
        self._beat_at = self.now
        self.carry_out(self.coordinator.tick(self.now))

    def _make_coordinator(self) -> Coordinator:
        terms = Terms("job", self.attempt, **self.terms)  # type: ignore[arg-type]
        return Coordinator(terms, self.wish, row_step=max(self.rows, default=0))

    # --- the host ---------------------------------------------------------------------------------------------------

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            assert self.outcome is None, f"{order} after the end"
            match order:
                case Spawn():
                    assert order.incarnation not in self.workers, "an incarnation was used twice"
                    self.workers[order.incarnation] = Worker(order.incarnation, self.attempt)
                case Kill():
                    # Who can still write its stacks ends by that.
                    is_first = order.with_stacks and self.random.random() < 0.5
                    self.die(self.workers[order.incarnation], "SIGABRT" if is_first else "SIGKILL")
                case Send():
                    self._send(order)
                case FindCheckpoint():
                    newest = max(self.checkpoints, default=None)
                    folder = f"/{newest[0]}-{newest[1]}" if newest else ""
                    step, rows = (newest[1], self.saved_rows[folder]) if newest else (0, ())
                    self.answers.append(CheckpointFound(folder, step, rows=rows))
                case CommitManifest():
                    attempt = int(order.folder.split("-")[0])
                    error = "" if self.may_commit else "the disk is full"
                    if not error:
                        self.checkpoints.append((attempt, order.step))
                        self.saved_rows[f"/{attempt}-{order.step}"] = order.rows
                    self.answers.append(ManifestCommitted(order.folder, order.step, order.generation, error))
                case DropCheckpoints():
                    self.checkpoints = [one for one in self.checkpoints if one[1] <= order.which.after_step]
                case Rows():
                    self.spool.append(order.rows)
                case Emit():
                    self.events.append(order)
                case Answer():
                    self._take_answer(order.answer)
                case End():
                    assert all(worker.gone for worker in self.workers.values()), "ended with living workers"
                    self.outcome = order.outcome

    def _send(self, order: Send) -> None:
        worker = self.workers[order.incarnation]
        assert not worker.gone, f"{order.command} to a worker whose exit was reported"
        command = order.command
        if isinstance(command, wire.Prepare):
            key = (command.record.attempt, command.record.number)
            known = self.groups.get(key)
            if known is None:
                assert key > max(self.groups, default=(0, 0)), "generation numbers must grow"
                assert len(set(command.record.members)) == command.record.world
                self.groups[key] = Group(command.record)
                self.minted.append(command.record)
            else:
                assert known.record == command.record, "one number, two memberships"
        if isinstance(command, wire.Revoke):
            self.revokes.append((order.incarnation, command.through))
        worker.inbox.append(command)
        if self.random.random() < 0.05:
            worker.inbox.append(command)

    def _take_answer(self, answer: ActionAnswer) -> None:
        """As the service does: an action is not listed any more once its answer is stored."""
        listed = {action.number for action in self.wish.actions}
        assert answer.number in listed, f"{answer} to what nobody asks, or asks no more"
        assert answer.number not in self.done, f"{answer} is the second one"
        self.done[answer.number] = answer
        left = tuple(action for action in self.wish.actions if action.number != answer.number)
        self.wish = replace(self.wish, actions=left)

    def act(self, kind: str, worker_id: str, within_s: float | None = None) -> int:
        """Somebody wants something done to a worker."""
        self.actions += 1
        self.ask(actions=(*self.wish.actions, WorkerAction(self.actions, kind, worker_id, "somebody", within_s)))
        return self.actions

    def withdraw(self, number: int) -> None:
        """Nobody wants it any more."""
        self.ask(actions=tuple(one for one in self.wish.actions if one.number != number))

    def handle(self, event: object) -> None:
        self.carry_out(self.coordinator.handle(event, self.now))

    def ask(self, **changes: object) -> None:
        """The user's wish changes."""
        self.wish = Wish(**{**vars(self.wish), **changes})  # type: ignore[arg-type]
        if self.outcome is None:
            self.handle(self.wish)

    # --- workers that stand still -------------------------------------------------------------------------------------

    def hang(self, worker: Worker) -> None:
        """It stands still in its own code, until it is killed or goes on."""
        if worker.record is not None and worker.hangs_since is None:
            worker.hangs_since = self.now

    def go_on(self, worker: Worker) -> None:
        """It was only slow."""
        worker.hangs_since = None

    def _sign_of_life(self, worker: Worker) -> wire.Beat:
        """What its supervisor reads from the progress word."""
        number = worker.record.number if worker.record else 0
        is_idle = worker.hangs_since is None and not worker.inbox and self._next_move(worker) is None
        worker.waits_since = (worker.waits_since or self.now) if is_idle else None
        since = worker.hangs_since if worker.hangs_since is not None else worker.waits_since
        stage = self._stage_of(worker) if is_idle else "compute"
        seconds = self.now - since if since is not None else 0.0
        usual = {"compute": 0.01}
        return wire.Beat(worker.incarnation, number, worker.step, stage, seconds, usual=usual, memory_bytes=2**30)

    @staticmethod
    def _stage_of(worker: Worker) -> str:
        if worker.entering is not None:
            return "enter"
        if worker.following is not None:
            return "sync"
        return "done" if worker.ended is not None else "standby" if worker.waiting else "exchange"

    # --- time and choice ----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take one action, chosen by the schedule; time passes a little, or more where there is nothing to do."""
        actions = self._actions()
        if actions:
            self.random.choice(actions)()
            self._pass_time(0.002)
        else:
            self._pass_time(0.1)

    def run(self, until: Callable[[], bool], limit: int = 20_000) -> None:
        """Advance until something holds."""
        for _ in range(limit):
            if until():
                return
            self.advance()
        raise AssertionError(f"it never came to pass: {self.describe()}")

    def describe(self) -> str:
        job = self.coordinator.job
        lines = [f"current {job.current}", f"pending {job.pending}", f"wish {job.wish}", f"outcome {self.outcome}"]
        lines += [f"{worker}" for worker in self.workers.values() if not worker.gone]
        lines += [f"seen {view}" for view in job.roster]
        return "\n".join(lines)

    @property
    def is_as_wished(self) -> bool:
        """As many train, and as many stand by, as they should."""
        spares = [one for one in self.coordinator.job.roster if one.state is WorkerState.STANDBY]
        is_full = len(self.living) == self.wish.workers + len(spares)
        return self.is_settled and is_full and len(spares) == self.coordinator.job.terms.standby_workers

    @property
    def is_settled(self) -> bool:
        """All wished-for workers train together, or the job is over."""
        job = self.coordinator.job
        return self.outcome is not None or (
            job.is_settled and job.current is not None and job.current.world == self.wish.workers
        )

    @property
    def is_whole(self) -> bool:
        """Whether the members train in the newest generation that there is."""
        job = self.coordinator.job
        return job.is_settled and job.number == self.minted[-1].number

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.alive]

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.now - self._beat_at >= 1.0:
            self._beat_at = self.now
            for worker in self.living:
                if worker.said:
                    worker.say(self._sign_of_life(worker))
        if self.now - self._ticked_at >= 0.1 and self.outcome is None:
            self._ticked_at = self.now
            self.carry_out(self.coordinator.tick(self.now))

    def _actions(self) -> list[Callable[[], None]]:
        if self.outcome is not None:
            return []
        actions: list[Callable[[], None]] = []
        if self.answers:
            actions.append(lambda: self.handle(self.answers.popleft()))
        if self.spool and self.takes_rows:
            actions.append(self._store_rows)
        taken = sum(worker.placed and not worker.gone for worker in self.workers.values())
        for worker in self.workers.values():
            if not worker.placed and not worker.gone and taken < self.slots:
                actions.append(lambda w=worker: self._place(w))
            if worker.outbox:
                actions.append(lambda w=worker: self._deliver(w))
            if worker.alive and worker.inbox and worker.said:
                actions.append(lambda w=worker: self._obey(w))
            if worker.alive and (move := self._next_move(worker)) is not None:
                actions.append(move)
        return actions

    def _store_rows(self) -> None:
        rows = self.spool.popleft()
        self.rows |= {row.step: row for row in rows}
        self.num_rows += len(rows)
        self.handle(RowsStored(self.num_rows))

    def _place(self, worker: Worker) -> None:
        worker.placed = worker.alive = True
        worker.say(wire.Spawned(worker.incarnation, 1, 1, "node"))

    def _deliver(self, worker: Worker) -> None:
        message = worker.outbox.popleft()
        if isinstance(message, wire.Exited):
            worker.gone = True
        self.handle(message)
        if self.random.random() < 0.05 and self.outcome is None:
            self.handle(message)

    # --- another controller -------------------------------------------------------------------------------------------

    def replace_controller(self) -> None:
        """The controller dies and a new one attaches, as `jobs` does it: living workers answer with a snapshot."""
        self.attempt += 1
        self.answers.clear()
        self.spool.clear()
        self.num_rows = 0
        self.coordinator = self._make_coordinator()
        snapshots, placed, backlog = [], [], []
        for worker in self.workers.values():
            if not worker.placed and not worker.gone:
                worker.gone = True  # never got a place: ended by the new controller
            if worker.gone:
                continue
            if not worker.alive:
                worker.gone = True
                continue
            self._adopt(worker, snapshots, placed, backlog)
        if snapshots:
            self.carry_out(self.coordinator.adopt(snapshots, placed, self.now))
        self.carry_out(self.coordinator.tick(self.now))
        for message in backlog:
            self.handle(message)

    def _adopt(
        self,
        worker: Worker,
        snapshots: list[wire.Snapshot],
        placed: list[wire.Spawned],
        backlog: list[wire.Message],
    ) -> None:
        placed.append(wire.Spawned(worker.incarnation, 1, 1, "node"))
        told = (wire.Notice, wire.Left, wire.UserFailed, wire.FormFailed, wire.StripeFailed)
        if not worker.said:
            snapshots.append(wire.Snapshot(worker.incarnation, None, None, None, 0, None, None, 0))
            worker.outbox.clear()
            worker.inbox.append(wire.Attach(self.attempt))
            return
        while worker.inbox:
            self._obey(worker)
        worker.attempt = self.attempt
        backlog += [message for message in worker.outbox if isinstance(message, told)]
        worker.outbox.clear()
        if worker.stripe is not None:
            backlog += [worker.stripe, *worker.inherited]
        snapshots.append(self.snapshot_of(worker))
