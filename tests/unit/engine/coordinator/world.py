"""Simulated workers that follow the protocol, and hosts that carry out orders: no process, no clock, no tensor.

Everything asynchronous is an action that the schedule may take now or later: a command or a message is delivered (in
order for one worker, in any order between workers), a main thread moves on, a worker dies, a controller takes the next
step of a takeover. Both directions deliver a few things twice, as a transport does that sends again what was not
acknowledged; to it a lost message is a late one, or one of a worker that is gone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rubato.checkpoint.manifest import read_manifest
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
from rubato.wire.cluster import ActionAnswer, Distrust, MetricRow, Outcome, WorkerAction
from rubato.wire.codec import from_json
from rubato.wire.status import WorkerState
from tests.unit.engine.coordinator.actors import Group, Worker
from tests.unit.engine.coordinator.controllers import Act, Controller, Fate
from tests.unit.engine.coordinator.processes import Processes
from tests.unit.engine.coordinator.storage import SteppedArchive, whole_checkpoints
from tests.unit.engine.coordinator.training import NUM_MICROBATCHES

STAGE_S = 2.0
"""So long a microbatch may take where somebody waits for it; simulated ones take no time."""


class World(Processes):
    """Workers of a job, their controllers, service and storage."""

    def __init__(
        self, schedule: random.Random, *, workers: int = 3, total_steps: int = 20, slots: int = 8, **terms: object
    ) -> None:
        super().__init__(schedule, total_steps)
        self.slots = slots
        usual = {
            "num_microbatches": NUM_MICROBATCHES,
            "backoff_initial_s": 0.5,
            "hangs": HangPolicy(stage_s=STAGE_S),
        }
        self.terms: dict[str, object] = {**usual, **terms}
        self.wish = Wish("run", workers)
        self.rows: dict[int, MetricRow] = {}
        """At the service."""
        self.takes_rows = True
        self.distrusted: list[Distrust] = []
        """As the service knows of."""
        self.outcome: Outcome | None = None
        self.events: list[Emit] = []
        self.done: dict[int, ActionAnswer] = {}
        self.actions = 0
        self.revokes: list[tuple[str, int]] = []
        self.minted: list[wire.GenerationRecord] = []
        self.granted = 1
        """The newest attempt."""
        self.leader = self._make_controller()
        """The newest one that leads."""
        self.others: list[Controller] = []
        """Older ones that are not gone, and one that takes over."""
        self._beat_at = self.now
        self.leader.leads = True
        self.carry_out(self.coordinator.tick(self.now), self.leader)

    def _make_controller(self) -> Controller:
        attempt = self.granted
        terms = Terms("job", attempt, **self.terms)  # type: ignore[arg-type]
        answers: deque[object] = deque()
        archive = SteppedArchive(
            self.storage,
            attempt,
            terms.num_microbatches,
            tuple(self.distrusted),
            answers.append,
            lambda: self.granted > attempt and not made.is_cut_off,
        )
        row_step = max(self.rows, default=0)
        coordinator = Coordinator(terms, self.wish, row_step=row_step, distrusted=tuple(self.distrusted))
        made = Controller(attempt, coordinator, archive, answers)
        made.ticked_at = self.now
        return made

    @property
    def coordinator(self) -> Coordinator:
        """Of the newest controller that leads."""
        return self.leader.coordinator

    @property
    def answers(self) -> deque[object]:
        """On their way to the one that leads."""
        return self.leader.answers

    @answers.setter
    def answers(self, answers: deque[object]) -> None:
        self.leader.answers.clear()
        self.leader.answers.extend(answers)

    @property
    def checkpoints(self) -> list[tuple[int, int]]:
        """(attempt, step) of those that exist, oldest first."""
        return whole_checkpoints(self.storage)

    @property
    def may_commit(self) -> bool:
        """Whether there is room for a manifest."""
        return not self.storage.is_full

    @may_commit.setter
    def may_commit(self, may: bool) -> None:
        self.storage.is_full = not may

    # --- hosts --------------------------------------------------------------------------------------------------------

    def carry_out(self, orders: list[Order], by: Controller) -> None:
        counts = by.attempt == self.granted
        for order in orders:
            assert by is not self.leader or self.outcome is None or not counts, f"{order} after the end"
            match order:
                case Spawn():
                    assert order.incarnation not in self.workers, "an incarnation was used twice"
                    worker = self._new_worker(order.incarnation, by.attempt)
                    worker.is_stray = any(one.calls is not None for one in self._after(by))
                case Kill():
                    self._kill(order, by)
                case Send():
                    self._send(order, by)
                case FindCheckpoint():
                    by.archive.find()
                case CommitManifest():
                    stripes = [file for file in order.files if file["name"].startswith("stripe")]
                    parts = {self.lineages[order.folder, order.generation, at] for at in range(len(stripes))}
                    assert len(parts) == 1, f"checkpoint {order.folder} is of two states"
                    by.archive.commit(order)
                case DropCheckpoints():
                    by.archive.drop(order)
                case Rows():
                    by.spool.append(order.rows)
                case Emit() if counts:
                    self._take_event(order)
                case Answer() if counts:
                    self._take_answer(order.answer)
                case End() if counts:
                    others = [one for one in self.workers.values() if not one.gone and not one.is_stray]
                    assert not others, "ended with living workers"
                    self.outcome = order.outcome
                case Emit() | Answer() | End():
                    pass  # refused by the service

    def _after(self, controller: Controller) -> list[Controller]:
        return [one for one in (*self.others, self.leader) if one.attempt > controller.attempt]

    def _take_event(self, event: Emit) -> None:
        self.events.append(event)
        if "distrusted" in event.data:
            self.distrusted.append(from_json(Distrust, event.data["distrusted"]))

    def _kill(self, order: Kill, by: Controller) -> None:
        worker = self.workers[order.incarnation]
        if not self.passes_on(worker, by) and worker.placed:
            return  # refused by its supervisor
        # Who can still write its stacks ends by that.
        is_first = order.with_stacks and self.random.random() < 0.5
        self.die(worker, "SIGABRT" if is_first else "SIGKILL")

    def _send(self, order: Send, by: Controller) -> None:
        worker = self.workers[order.incarnation]
        is_told = worker.gone and not worker.is_stray  # of a stray its own controller hears some time
        assert not is_told or by is not self.leader, f"{order.command} to a worker whose exit was reported"
        command = order.command
        if isinstance(command, wire.Prepare):
            key = (command.record.attempt, command.record.number)
            known = self.groups.get(key)
            if known is None:
                mine = [number for attempt, number in self.groups if attempt == by.attempt]
                assert key[0] == by.attempt
                assert key[1] > max(mine, default=0), "generation numbers must grow"
                assert len(set(command.record.members)) == command.record.world
                self.groups[key] = Group(command.record)
                self.minted.append(command.record)
            else:
                assert known.record == command.record, "one number, two memberships"
        if isinstance(command, wire.Revoke) and by is self.leader:
            self.revokes.append((order.incarnation, command.through))
        if not self.passes_on(worker, by) or worker.gone:
            return
        for _ in range(2 if self.random.random() < 0.05 else 1):
            worker.tell(command)

    def passes_on(self, worker: Worker, by: Controller) -> bool:
        """Whether the supervisor takes what this controller says."""
        return by.attempt >= worker.attempt

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

    def handle(self, event: object, to: Controller | None = None) -> None:
        to = to or self.leader
        if to.fate is not Fate.LIVES or (to is self.leader and self.outcome is not None):
            return
        if isinstance(event, CheckpointFound):
            self.look_at(event, to)
        self.carry_out([event] if isinstance(event, Emit) else to.coordinator.handle(event, self.now), to)

    def look_at(self, found: CheckpointFound, by: Controller) -> None:
        """Nobody begins with a state that was found to be wrong."""
        if not found.folder or by.attempt < self.granted:
            return
        manifest = read_manifest(self.storage / found.folder.rpartition("/")[2])
        for which in self.distrusted:
            is_before = manifest.attempt < which.attempt or manifest.generation <= which.generation
            is_covered = manifest.attempt <= which.attempt and is_before and manifest.step > which.after_step
            assert not is_covered, f"{found.folder} does not count: {which}"

    def ask(self, **changes: object) -> None:
        """The user's wish changes."""
        self.wish = Wish(**{**vars(self.wish), **changes})  # type: ignore[arg-type]
        if self.leader.attempt == self.granted:  # else it is refused, and its successor hears
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
        lines += [f"attempt {one.attempt}: {one.fate}, calls {one.calls}" for one in (self.leader, *self.others)]
        return "\n".join(lines)

    @property
    def is_as_wished(self) -> bool:
        """As many train, and as many stand by, as they should."""
        spares = [one for one in self.coordinator.job.roster if one.state is WorkerState.STANDBY]
        is_full = len(self.living) == self.wish.workers + len(spares)
        return self.is_settled and is_full and len(spares) == self.coordinator.job.terms.standby_workers

    @property
    def is_settled(self) -> bool:
        """All wished-for workers train together under the newest controller, or the job is over."""
        job = self.coordinator.job
        is_whole = job.is_settled and job.current is not None and job.current.world == self.wish.workers
        return self.outcome is not None or (is_whole and self.leader.attempt == self.granted)

    @property
    def is_whole(self) -> bool:
        """Whether the members train in the newest generation that there is."""
        job = self.coordinator.job
        return job.is_settled and job.number == self.minted[-1].number

    @property
    def living(self) -> list[Worker]:
        """Workers of the job that live."""
        return [worker for worker in self.workers.values() if worker.alive and not worker.is_stray]

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.now - self._beat_at >= 1.0:
            self._beat_at = self.now
            for worker in self.workers.values():
                if worker.said and worker.alive:
                    worker.say(self._sign_of_life(worker))
        for one in (self.leader, *self.others):
            if one.leads and one.fate is Fate.LIVES and self.now - one.ticked_at >= 0.1 and self.outcome is None:
                one.ticked_at = self.now
                self.carry_out(one.coordinator.tick(self.now), one)

    def _actions(self) -> list[Act]:
        if self.outcome is not None:
            return []
        actions: list[Act] = []
        for one in (self.leader, *self.others):
            if one.fate is Fate.LIVES:
                self._add_actions_of(one, actions)
        taken = sum(worker.placed and not worker.gone for worker in self.workers.values())
        for worker in self.workers.values():
            if worker.gone:
                continue
            if not worker.placed and taken < self.slots:
                actions.append(lambda w=worker: self._place(w))
            if worker.outbox and (to := self._listener(worker)) is not None:
                actions.append(lambda w=worker, to=to: self._deliver(w, to))
            if worker.alive and worker.inbox and worker.said:
                actions.append(lambda w=worker: self._obey(w))
            if worker.alive and worker.unwritten and self.writes != "hang":
                actions.append(lambda w=worker: w.unwritten.popleft()())
            if worker.alive and (move := self._next_move(worker)) is not None:
                actions.append(move)
        return actions

    def _add_actions_of(self, one: Controller, actions: list[Act]) -> None:
        if one.answers:
            actions.append(lambda: self.handle(one.answers.popleft(), one))
        for lane in (one.archive.lane, one.archive.clearing):
            if lane.tasks:
                actions.append(lambda lane=lane: lane.tasks.popleft()())
        if one.spool and self.takes_rows and one.attempt == self.granted:
            actions.append(lambda: self._store_rows(one))

    def _store_rows(self, of: Controller) -> None:
        rows = of.spool.popleft()
        self.rows |= {row.step: row for row in rows}
        of.num_rows += len(rows)
        self.handle(RowsStored(of.num_rows), of)

    def _place(self, worker: Worker) -> None:
        worker.placed = worker.alive = True
        worker.spawned = wire.Spawned(worker.incarnation, 1, 1, "node")
        worker.say(worker.spawned)

    def _listener(self, worker: Worker) -> Controller | None:
        """Who asks this worker what is new, and is answered."""
        for one in (self.leader, *self.others):
            if one.leads and one.fate is Fate.LIVES and one.attempt == worker.attempt:
                return one
        return None

    def _deliver(self, worker: Worker, to: Controller) -> None:
        message = worker.outbox.popleft()
        if isinstance(message, wire.Exited):
            worker.gone = True
        self.handle(message, to)
        if self.random.random() < 0.05 and self.outcome is None:
            self.handle(message, to)
