"""What people want done to single workers: drain, kill, stack. Each is done once and answered once.

The service lists an action until its answer is stored, so a wish that comes again changes nothing. Workers are named by
ids that are never used twice: after a change of controllers the successor does again only what was not done, and finds
those gone that were killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.hangs import describe_place
from rubato.engine.coordinator.roster import Drain, WorkerView
from rubato.engine.coordinator.state import JobState
from rubato.engine.coordinator.verdicts import describe_exit
from rubato.wire import worker as wire
from rubato.wire.cluster import ActionAnswer, ActionState, WorkerAction

STACKS_S = 20.0
"""For a supervisor that was asked for stacks. It answers within some seconds, also of a process that does not run."""
MAX_STACKS_CHARS = 64 * 1024
"""Some hundred threads of a usual depth. More is cut: the main thread comes first."""


@dataclass(frozen=True)
class _Open:
    """An action that was begun."""

    action: WorkerAction
    incarnation: str
    begun_at: float


class Actions:
    """Begins what is listed, withdraws what no longer is, and answers."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._taken: set[int] = set()
        self._open: dict[int, _Open] = {}

    def advance(self, now: float) -> None:
        """One look at the list and the clock."""
        listed = {action.number for action in self._job.wish.actions}
        for number in [number for number in self._open if number not in listed]:
            self._withdraw(self._open.pop(number))
        for action in self._job.wish.actions:
            if action.number not in self._taken:
                self._taken.add(action.number)
                self._begin(action, now)
            elif action.number in self._open and action.kind == "drain":
                self._hurry(action, now)
        for one in list(self._open.values()):
            if one.action.kind == "stack" and now - one.begun_at > STACKS_S:
                self._answer(one.action, "failed", f"the supervisor of {one.action.worker_id} did not answer")

    def on_stacks(self, worker: WorkerView, event: wire.Stacks) -> None:
        """The answer to `TellStacks`; one that nobody waits for any more is dropped."""
        one = self._open.get(event.number)
        if one is None or one.incarnation != worker.incarnation:
            return
        text = event.text
        if len(text) > MAX_STACKS_CHARS:
            text = f"{text[:MAX_STACKS_CHARS]}\n... ({len(text) - MAX_STACKS_CHARS} characters cut)\n"
        message = ", ".join([self._place_of(worker), *([event.cause] if event.cause else [])])
        self._answer(one.action, "done" if text else "failed", message, text)

    def on_exited(self, worker: WorkerView, event: wire.Exited, *, is_planned: bool) -> None:
        """A worker is gone, whatever ended it."""
        for one in [one for one in self._open.values() if one.incarnation == worker.incarnation]:
            kind, name = one.action.kind, worker.worker_id
            if kind == "kill":
                self._answer(one.action, "done", f"{name} {describe_exit(event)}")
            elif kind == "drain" and is_planned:
                after = f" after step {worker.step}" if worker.step else ""
                self._answer(one.action, "done", f"{name} left{after}")
            else:
                self._answer(one.action, "gone", f"{name} {describe_exit(event)} before it could {_VERBS[kind]}")

    # --- one action ---------------------------------------------------------------------------------------------------

    def _begin(self, action: WorkerAction, now: float) -> None:
        worker = next((one for one in self._job.roster if one.worker_id == action.worker_id), None)
        if action.kind not in _VERBS:
            self._answer(action, "failed", f"this controller does not know how to {action.kind} a worker")
            return
        if worker is None:
            self._answer(action, "gone", f"{action.worker_id} had ended before")
            return
        self._open[action.number] = _Open(action, worker.incarnation, now)
        match action.kind:
            case "kill":
                worker.is_killed_by_hand = True
                self._job.kill(worker, f"{action.by} had it killed")
            case "drain":
                worker.drain = (worker.drain or Drain(now)).due_within(action.within_s, now)
            case "stack" if worker.is_placed:
                self._job.send(worker.incarnation, wire.TellStacks(self._job.terms.attempt, action.number))
            case "stack":
                self._answer(action, "failed", f"{worker.worker_id} waits for a slot: it has no process yet")

    def _hurry(self, action: WorkerAction, now: float) -> None:
        """Its node may have come to be taken away since."""
        worker = self._job.roster.get(self._open[action.number].incarnation)
        if worker is not None and worker.drain is not None:
            worker.drain = worker.drain.due_within(action.within_s, now)

    def _withdraw(self, one: _Open) -> None:
        worker = self._job.roster.get(one.incarnation)
        if worker is None or one.action.kind != "drain":
            return
        worker.drain = None
        for other in self._open.values():  # a person and the drain of its node may want the same
            if other.incarnation == one.incarnation and other.action.kind == "drain":
                drain = worker.drain or Drain(other.begun_at)
                worker.drain = drain.due_within(other.action.within_s, other.begun_at)

    def _answer(self, action: WorkerAction, state: ActionState, message: str, text: str = "") -> None:
        self._open.pop(action.number, None)
        self._job.put(orders.Answer(ActionAnswer(action.number, state, message, text)))

    def _place_of(self, worker: WorkerView) -> str:
        rank = self._job.rank_of(worker)
        who = worker.worker_id + ("" if rank is None else f" (rank {rank})")
        place = "" if worker.beat is None else f", in {describe_place(worker.beat)}"
        return f"{who}, pid {worker.pid} on {worker.node}{place}"


_VERBS = {"drain": "leave", "kill": "be killed", "stack": "answer"}
