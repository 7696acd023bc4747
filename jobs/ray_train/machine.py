"""The decisions of one attempt at a Ray Train job. Pure: messages and ticks go in, orders come out.

One driver is one `fit()` of a fixed number of workers. Another number, a drained node or a crash is another driver,
which goes on from the newest checkpoint; so a change waits for a checkpoint that is about to come.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from jobs.ray_train import sentences
from jobs.ray_train.actions import Actions
from jobs.ray_train.messages import (
    DriverEnd,
    GroupStarted,
    GroupStarting,
    Member,
    Message,
    Remembered,
    Reported,
    WorkersFailed,
)
from rubato.engine.coordinator import Answer, Emit, End, Rows
from rubato.wire.cluster import (
    Desired,
    Failure,
    MetricRow,
    Observed,
    ObservedState,
    Outcome,
    Result,
    WorkerReport,
)
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.spec import JobSpec
from rubato.wire.status import Phase, WorkerState
from rubato.wire.units import utc_timestamp

WAITING_S = 5.0
"""A start that takes longer tells what it waits for."""
GAPS = 20
"""Steps whose median time is what a step takes."""

Stage = Literal["idle", "starting", "running", "stopping"]


@dataclass(frozen=True)
class Terms:
    """What is fixed for an attempt."""

    attempt: int
    max_restarts: int
    backoff_initial_s: float
    backoff_factor: float
    backoff_max_s: float
    stop_grace_s: float

    @classmethod
    def of(cls, attempt: int, spec: JobSpec) -> Terms:
        """From a job spec."""
        restart = spec.restart
        waits = (restart.backoff.initial, restart.backoff.factor, restart.backoff.max)
        return cls(attempt, restart.max_restarts, *waits, spec.limits.stop_grace)


@dataclass(frozen=True)
class StartDriver:
    """Start a driver."""

    run: int
    workers: int
    max_failures: int
    avoid_nodes: tuple[str, ...]


@dataclass(frozen=True)
class StopDriver:
    """Ask the driver to abort its run."""


@dataclass(frozen=True)
class KillDriver:
    """End the driver at once; Ray ends its actors."""


Order = StartDriver | StopDriver | KillDriver | Emit | Rows | Answer | End


@dataclass(frozen=True)
class DriverGone:
    """A driver and its workers have ended."""

    exit_text: str
    """How, such as `exit code 1`."""
    end: DriverEnd | None
    """Its last word; None: it crashed, or was stopped."""
    last_output: tuple[str, ...] = ()


class Machine:
    """One attempt."""

    def __init__(
        self, terms: Terms, desired: Desired, *, resume_step: int, last_step: int, restarts: int, scalings: int
    ) -> None:
        self._terms = terms
        self._wish = desired
        self._restarts, self._scalings = restarts, scalings
        self._resume_step = resume_step
        self._stage: Stage = "idle"
        self._run = self._workers = 0
        """Of the driver."""
        self._since = 0.0
        """When the stage began; in `idle`, from when on a driver may be started."""
        self._kill_at: float | None = None
        self._crashes = 0
        """Drivers that ended by themselves, since the last report."""
        self._failure: Failure | None = None
        """Decided: the attempt ends with it as soon as the driver is gone."""
        self._outcome: Outcome | None = None
        self._generation = 0
        self._members: tuple[Member, ...] = ()
        self._numbers: tuple[int, ...] = ()
        """Of the members, counted within the attempt."""
        self._num_members = 0
        self._cause = "start"
        self._trained = 0
        """Workers of the last group that reported."""
        self._is_formed = self._is_lost = False
        """The present group has reported; one of this attempt was lost, and none has reported since."""
        self._step, self._highest = 0, last_step
        self._reported_at: float | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._saved_at: float | None = None
        self._save_interval: float | None = None
        self._suspect: Failure | None = None
        """The train function raised last, and no later step was reported since."""
        self._wait_until: float | None = None
        """A change waits so long for the next checkpoint."""
        self._actions = Actions()
        self._is_asking_room = False

    # --- in -------------------------------------------------------------------------------------

    def wish(self, desired: Desired, now: float) -> list[Order]:
        """What is wanted has changed."""
        self._wish = desired
        answers = self._actions.take(desired.actions, self._node_of, desired.avoid_nodes)
        return [*answers, *self._decide(now)]

    def tick(self, now: float) -> list[Order]:
        """Time has passed."""
        return self._decide(now)

    def hear(self, run: int, message: Message, now: float) -> list[Order]:
        """Ray Train's processes said something; what a driver of before says is too late."""
        if run != self._run or self._outcome is not None or self._stage == "idle":
            return []
        match message:
            case Remembered():
                orders = self._on_remembered(message)
            case GroupStarting():
                orders = self._on_starting(message, now)
            case GroupStarted():
                orders = self._on_started(message, now)
            case Reported():
                orders = self._on_report(message, now)
            case WorkersFailed():
                orders = self._on_failed(message)
        return [*orders, *self._decide(now)]

    def gone(self, gone: DriverGone, now: float) -> list[Order]:
        """The driver has ended, and so have its workers."""
        was_stopping, self._stage = self._stage == "stopping", "idle"
        self._since, self._kill_at, self._wait_until = now, None, None
        self._members = self._numbers = ()
        end = gone.end
        if end is not None and end.kind == "finished" and self._failure is None:
            return self._end(Outcome("succeeded", Result(self._step, "")))
        drained = self._actions.on_group_gone()
        if self._failure is not None:
            failure = replace(self._failure, last_output=gone.last_output)
            return [*drained, *self._end(Outcome("failed", failure=failure))]
        if was_stopping or self._wish.run != "run":
            return [*drained, *self._decide(now)]
        return [*drained, *self._on_crash(gone, now)]

    # --- out ------------------------------------------------------------------------------------

    def observed(self, now: float) -> Observed:
        """How the job stands."""
        return Observed(
            state=self._state(),
            phase=self._phase().value,
            generation=self._generation,
            workers=len(self._members),
            joining=max(0, self._workers - len(self._members)) if self._stage != "idle" else 0,
            step=self._step or self._resume_step,
            total_steps=None,
            restarts=self._restarts,
            scalings=self._scalings,
            reason=self._reason(now),
        )

    def workers(self) -> tuple[WorkerReport, ...]:
        """The present members."""
        state = WorkerState.ACTIVE if self._is_formed else WorkerState.WARMING
        return tuple(
            WorkerReport(
                worker_id=self._worker_id(number),
                incarnation=f"{self._terms.attempt}.{number}",
                rank=member.rank,
                pid=member.pid,
                supervisor_pid=None,
                node=member.node,
                state=state.value,
                step=self._step,
                node_id=member.node_id,
            )
            for member, number in zip(self._members, self._numbers, strict=True)
        )

    def worker_of(self, rank: int) -> str:
        """The id of the worker of a rank; empty where there is none."""
        found = [self._worker_id(n) for one, n in zip(self._members, self._numbers, strict=True) if one.rank == rank]
        return found[0] if found else ""

    @property
    def run(self) -> int:
        """The number of the newest driver."""
        return self._run

    def _state(self) -> ObservedState:
        if self._is_leaving():
            return "stopping"
        if self._is_formed or self._cause.startswith("scale"):
            return "running"
        return "recovering" if self._is_lost else "starting"

    def _phase(self) -> Phase:
        if self._is_leaving():
            return Phase.DRAINING
        if self._is_formed and self._stage == "running":
            return Phase.TRAINING if self._workers == self._wish.workers else Phase.SCALING
        if self._cause == "start":
            return Phase.FORMING
        return Phase.SCALING if self._cause.startswith("scale") else Phase.REPAIRING

    def _is_leaving(self) -> bool:
        return self._wish.run != "run" or self._failure is not None or self._outcome is not None

    def _reason(self, now: float) -> str:
        if self._stage == "idle" and self._since > now and self._wish.run == "run":
            return f"waiting {self._since - now:.0f} s before the next start"
        if self._wait_until is not None:
            return sentences.WAITS_FOR_CHECKPOINT
        if self._stage == "starting" and now - self._since >= WAITING_S:
            return sentences.waits_for_room(self._workers) if self._is_asking_room else sentences.STARTS_DRIVER
        return ""

    def _worker_id(self, number: int) -> str:
        return f"w{self._terms.attempt}.{number}"

    # --- what happened --------------------------------------------------------------------------

    def _on_starting(self, message: GroupStarting, now: float) -> list[Order]:
        self._is_asking_room = True
        self._step = message.resume_step
        if self._generation == 0 and message.resume_step:
            self._cause = "restart"
        if self._stage == "running":
            self._stage, self._since = "starting", now
        self._members = self._numbers = ()
        return []

    def _on_started(self, message: GroupStarted, now: float) -> list[Order]:
        self._members = tuple(sorted(message.members, key=lambda one: one.rank))
        self._numbers = tuple(range(self._num_members + 1, self._num_members + 1 + len(self._members)))
        self._num_members += len(self._members)
        self._generation += 1
        self._is_formed = self._is_asking_room = False
        if self._stage == "starting":
            self._stage, self._since = "running", now
        return [
            Emit(
                EventKind.WORKER_STARTED,
                f"{self._worker_id(number)} started on {member.node} (pid {member.pid})",
                generation=self._generation,
                data={"worker_id": self._worker_id(number), "node": member.node, "pid": member.pid},
            )
            for member, number in zip(self._members, self._numbers, strict=True)
        ]

    def _on_remembered(self, message: Remembered) -> list[Order]:
        """What was reported before and never reached the service is passed on now."""
        orders: list[Order] = []
        for report in message.reports:
            if report.step > self._highest:
                self._highest = report.step
                orders += self._pass_on(report, report.values)
        return orders

    def _on_report(self, message: Reported, now: float) -> list[Order]:
        orders: list[Order] = []
        took = self._time_of(message.at)
        self._step, self._crashes = message.step, 0
        if self._suspect is not None and message.step > (self._suspect.step or 0):
            self._suspect = None
        if not self._is_formed:
            orders.append(self._form(message))
        self._highest = max(self._highest, message.step)
        self._reported_at = message.at
        values = dict(message.values) | ({} if took is None else {"step_seconds": round(took, 4)})
        orders += self._pass_on(message, values)
        if message.checkpoint is not None:
            self._save_interval = None if self._saved_at is None else now - self._saved_at
            self._saved_at = now
            if self._wait_until is not None:
                self._wait_until = now  # nothing would be lost now
        return orders

    def _pass_on(self, report: Reported, values: dict[str, float]) -> list[Order]:
        """The row of a report, and what became of checkpoints with it."""
        row = MetricRow(report.step, utc_timestamp(report.at), self._generation, report.workers, values)
        orders: list[Order] = [Rows((row,)), *(_deleted(one) for one in report.deleted)]
        if (seen := report.checkpoint) is not None:
            data = {"checkpoint_id": seen.checkpoint_id, "step": report.step, "bytes": seen.bytes}
            data |= {"metrics": report.values, "path": seen.path, "files": []}
            text = f"checkpoint {seen.checkpoint_id} was reported at step {report.step}"
            orders.append(Emit(EventKind.CHECKPOINT_COMMITTED, text, report.step, self._generation, data))
        return orders

    def _time_of(self, at: float) -> float | None:
        """Seconds since the report before, in the same group."""
        if not self._is_formed or self._reported_at is None:
            return None
        took = max(0.0, at - self._reported_at)
        self._gaps.append(took)
        return took

    def _form(self, first: Reported) -> Emit:
        """The first report of a group: the generation is formed."""
        self._is_formed, self._is_lost = True, False
        count, redone = len(self._members), max(0, self._highest - first.step + 1)
        cause, self._cause = self._cause, "recovery"
        paused = None
        if self._reported_at is not None:
            usual = statistics.median(self._gaps) if self._gaps else 0.0
            paused = round(max(0.0, first.at - self._reported_at - usual), 4)
        if cause in ("scale_up", "scale_down"):
            self._scalings += 1
        before, self._trained = self._trained, count
        members = [{"worker_id": self.worker_of(one.rank), "rank": one.rank} for one in self._members]
        data = {"cause": cause, "workers": count, "from_workers": before, "step": first.step, "members": members}
        data |= {"paused_seconds": paused, "redone_steps": redone}
        text = sentences.formed(self._generation, cause, count, first.step, paused, redone)
        return Emit(EventKind.GENERATION_FORMED, text, first.step, self._generation, data)

    def _on_failed(self, message: WorkersFailed) -> list[Order]:
        """Ray Train starts the group again; but not a program that raises twice at the same place."""
        if self._stage == "stopping":
            return []  # they were told to
        orders: list[Order] = [self._lost(one.rank, one.error, one.traceback) for one in message.errors]
        self._restarts += 1
        self._is_formed, self._is_lost, self._cause = False, True, "recovery"
        if any(one.is_death for one in message.errors):
            self._suspect = None  # what the others raised may come of that
            return orders
        before, self._suspect = self._suspect, self._user_failure(message)
        if before is not None:
            self._failure = self._suspect
        return orders

    def _lost(self, rank: int, error: str, traceback: str) -> Emit:
        data = {"worker_id": self.worker_of(rank), "rank": rank, "exit_code": None, "signal": None, "cause": error}
        data |= {"traceback": traceback or None, "last_output": []}
        text = f"{self.worker_of(rank) or 'A worker'} (rank {rank}) was lost: {error}"
        return Emit(EventKind.WORKER_LOST, text, self._step, self._generation, data)

    def _user_failure(self, message: WorkersFailed) -> Failure:
        first = min(message.errors, key=lambda one: one.rank)
        node = next((one.node for one in self._members if one.rank == first.rank), None)
        return Failure(
            "user",
            Reason.USER_CODE_ERROR,
            f"The train function raised {first.error}",
            worker_id=self.worker_of(first.rank) or None,
            rank=first.rank,
            node=node,
            step=self._step,
            traceback=first.traceback or None,
        )

    def _on_crash(self, gone: DriverGone, now: float) -> list[Order]:
        """A driver ended that nobody had told to."""
        end = gone.end
        if end is not None and end.kind == "workers_failed":
            return self._end(Outcome("failed", failure=self._given_up(end, gone)))
        what = end.error if end is not None else f"Ray Train's driver ended by itself ({gone.exit_text})"
        self._restarts += 1
        self._crashes += 1
        if self._restarts > self._terms.max_restarts:
            reason = Reason.MAX_RESTARTS_EXCEEDED if self._highest else Reason.START_FAILED
            trace = (end.traceback if end is not None else "") or None
            failure = Failure("infrastructure", reason, what, traceback=trace, last_output=gone.last_output)
            return self._end(Outcome("failed", failure=failure))
        terms = self._terms
        wait = min(terms.backoff_max_s, terms.backoff_initial_s * terms.backoff_factor ** (self._crashes - 1))
        self._since, self._is_formed, self._is_lost, self._cause = now + wait, False, True, "restart"
        data = {"restarts": self._restarts, "seconds": wait, "cause": what}
        text = f"the job starts again in {wait:g} s (restart {self._restarts} of {terms.max_restarts}): {what}"
        return [Emit(EventKind.RESTARTING, text, self._step, self._generation, data)]

    def _given_up(self, end: DriverEnd, gone: DriverGone) -> Failure:
        """Ray Train has restarted the group as often as it may."""
        if self._suspect is not None:
            return replace(self._suspect, last_output=gone.last_output)
        text = f"Ray Train lost workers more often than restart.max_restarts allows: {end.error}"
        reason = Reason.MAX_RESTARTS_EXCEEDED
        return Failure("infrastructure", reason, text, step=self._step, last_output=gone.last_output)

    # --- what is done ---------------------------------------------------------------------------

    def _decide(self, now: float) -> list[Order]:
        if self._outcome is not None:
            return []
        wish = self._wish
        is_forced = wish.force and wish.run != "run"
        if self._stage == "idle":
            if wish.run == "pause":
                return self._end(Outcome("paused"))
            if wish.run == "stop":
                return self._end(Outcome("cancelled"))
            return self._start(now) if now >= self._since else []
        if self._stage == "stopping":
            is_due = self._kill_at is not None and (now >= self._kill_at or is_forced)
            if is_due:
                self._kill_at = None
                return [KillDriver()]
            return []
        if self._failure is not None or wish.run == "stop" or is_forced:
            return self._stop(now, at_once=is_forced)
        if wish.run == "pause" or wish.workers != self._workers or self._actions.drains:
            if self._wait_until is None:
                self._wait_until = now + self._worth_waiting(now)
            return self._stop(now) if now >= self._wait_until else []
        self._wait_until = None
        return []

    def _worth_waiting(self, now: float) -> float:
        """Seconds until the next checkpoint, where one is likely within the grace; else 0."""
        if self._stage != "running" or self._saved_at is None or self._save_interval is None:
            return 0.0
        due = self._saved_at + self._save_interval - now
        return self._grace() if due <= self._grace() else 0.0

    def _grace(self) -> float:
        grace = self._terms.stop_grace_s if self._wish.grace_s is None else self._wish.grace_s
        return min([grace, *self._actions.hurry_s])

    def _start(self, now: float) -> list[Order]:
        self._workers = self._wish.workers
        if self._trained and self._cause != "restart":
            is_scaled = self._workers != self._trained
            self._cause = ("scale_up" if self._workers > self._trained else "scale_down") if is_scaled else "restart"
        self._run += 1
        self._stage, self._since, self._is_formed, self._is_asking_room = "starting", now, False, False
        left = max(0, self._terms.max_restarts - self._restarts)
        return [StartDriver(self._run, self._workers, left, self._wish.avoid_nodes)]

    def _stop(self, now: float, *, at_once: bool = False) -> list[Order]:
        self._stage, self._since, self._wait_until = "stopping", now, None
        if at_once:
            return [KillDriver()]
        self._kill_at = now + self._grace()
        return [StopDriver()]

    def _end(self, outcome: Outcome) -> list[Order]:
        self._outcome = outcome
        return [End(outcome)]

    def _node_of(self, worker_id: str) -> str | None:
        pairs = zip(self._members, self._numbers, strict=True)
        return next((one.node_id for one, number in pairs if self._worker_id(number) == worker_id), None)


def _deleted(checkpoint_id: str) -> Emit:
    text = f"checkpoint {checkpoint_id} was deleted by Ray Train"
    return Emit(EventKind.CHECKPOINT_DELETED, text, data={"checkpoint_id": checkpoint_id})
