"""The decisions of an attempt at a Ray Train job: tables, and that no order of events leads to two drivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jobs.ray_train.machine import DriverGone, KillDriver, Machine, StartDriver, StopDriver, Terms
from jobs.ray_train.messages import (
    CheckpointSeen,
    DriverEnd,
    GroupStarted,
    GroupStarting,
    Member,
    Remembered,
    Reported,
    WorkerError,
    WorkersFailed,
)
from rubato.engine.coordinator import Answer, Emit, End, Rows
from rubato.wire.cluster import Desired, WorkerAction

TERMS = Terms(
    attempt=1, max_restarts=2, backoff_initial_s=1.0, backoff_factor=2.0, backoff_max_s=8.0, stop_grace_s=30.0
)
RUN = Desired(1, "run", 2)
STOPPED = DriverGone("exit code 1", None)
FINISHED = DriverGone("exit code 0", DriverEnd("finished"))


class Job:
    """A machine, its clock, and what it ordered."""

    def __init__(self, desired: Desired = RUN, terms: Terms = TERMS, last_step: int = 0) -> None:
        self.machine = Machine(terms, desired, resume_step=0, last_step=last_step, restarts=0, scalings=0)
        self.now = 100.0
        self.desired = desired
        self.orders: list[Any] = []
        self.workers = 0
        self.tick()

    def took(self, orders: list[Any]) -> list[Any]:
        self.orders += orders
        return orders

    def tick(self, seconds: float = 0.0) -> list[Any]:
        self.now += seconds
        return self.took(self.machine.tick(self.now))

    def wish(self, **changes: Any) -> list[Any]:
        self.desired = replace(self.desired, version=self.desired.version + 1, **changes)
        return self.took(self.machine.wish(self.desired, self.now))

    def hear(self, message: Any) -> list[Any]:
        return self.took(self.machine.hear(self.machine.run, message, self.now))

    def gone(self, gone: DriverGone = STOPPED) -> list[Any]:
        return self.took(self.machine.gone(gone, self.now))

    def group(self, workers: int, resume_step: int = 0) -> None:
        self.workers = workers
        self.hear(GroupStarting(workers, resume_step))
        self.hear(GroupStarted(tuple(Member(rank, 100 + rank, "host", f"node{rank}") for rank in range(workers))))

    def report(self, step: int, *, saved: bool = False, seconds: float = 1.0) -> list[Any]:
        self.now += seconds
        seen = CheckpointSeen(f"1-{step}", f"job/c{step}", 10) if saved else None
        return self.hear(Reported(step, self.now, {"loss": 1.0}, self.workers, seen))

    def told(self, kind: str) -> list[Emit]:
        return [one for one in self.orders if isinstance(one, Emit) and one.kind == kind]

    def outcome(self) -> Any:
        ends = [one.outcome for one in self.orders if isinstance(one, End)]
        assert len(ends) <= 1
        return ends[0] if ends else None


def test_what_a_lost_controller_was_told_is_passed_on_by_its_successor_and_nothing_twice() -> None:
    job = Job(last_step=4)
    reports = tuple(
        Reported(step, 10.0 + step, {"loss": step / 10}, 2, CheckpointSeen(f"1-{step}", f"job/c{step}", 10), deleted)
        for step, deleted in ((3, ()), (4, ("1-2",)), (5, ("1-3",)), (6, ("1-4",)))
    )
    job.hear(Remembered(reports))
    job.group(2, resume_step=6)
    job.report(7)
    rows = [row for order in job.orders if isinstance(order, Rows) for row in order.rows]
    assert [(row.step, row.values["loss"], row.workers) for row in rows] == [(5, 0.5, 2), (6, 0.6, 2), (7, 1.0, 2)]
    assert rows[0].time == "1970-01-01T00:00:15.000000Z"
    assert [one.data["checkpoint_id"] for one in job.told("checkpoint.committed")] == ["1-5", "1-6"]
    assert [one.data["checkpoint_id"] for one in job.told("checkpoint.deleted")] == ["1-3", "1-4"]
    (formed,) = job.told("generation.formed")
    assert (formed.step, formed.data["cause"]) == (7, "restart")
    assert job.hear(Remembered(reports)) == []


def test_a_job_is_started_reports_and_succeeds() -> None:
    job = Job()
    assert job.orders == [StartDriver(1, 2, 2, ())]
    assert job.machine.observed(job.now).state == "starting"
    job.group(2)
    job.report(1)
    job.report(2, saved=True)
    assert job.machine.observed(job.now).state == "running"
    assert job.machine.observed(job.now).workers == 2
    (formed,) = job.told("generation.formed")
    assert (formed.data["cause"], formed.data["workers"], formed.data["from_workers"], formed.step) == (
        "start",
        2,
        0,
        1,
    )
    rows = [row for one in job.orders if isinstance(one, Rows) for row in one.rows]
    assert [(row.step, row.values) for row in rows] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 1.0, "step_seconds": 1.0}),
    ]
    (saved,) = job.told("checkpoint.committed")
    assert (saved.data["checkpoint_id"], saved.data["bytes"], saved.data["path"]) == ("1-2", 10, "job/c2")
    assert [one.worker_id for one in job.machine.workers()] == ["w1.1", "w1.2"]
    job.gone(FINISHED)
    assert (job.outcome().state, job.outcome().result.step, job.outcome().result.digest) == ("succeeded", 2, "")


def test_another_count_is_another_driver_and_repeated_steps_are_told() -> None:
    job = Job()
    job.group(2)
    job.report(1, saved=True)
    job.report(2)
    assert job.wish(workers=3) == [StopDriver()]
    assert job.machine.observed(job.now).workers == 2
    job.now += 4.0
    assert job.gone() == [StartDriver(2, 3, 2, ())]
    assert job.machine.observed(job.now).state == "running"
    job.group(3, resume_step=1)
    job.report(2)
    formed = job.told("generation.formed")[-1]
    assert (formed.data["cause"], formed.data["from_workers"], formed.data["redone_steps"]) == ("scale_up", 2, 1)
    assert formed.data["paused_seconds"] == 4.0
    assert "step 2 computed again" in formed.message
    assert job.machine.observed(job.now).scalings == 1


def test_a_change_waits_for_a_checkpoint_that_is_about_to_come_and_for_no_other() -> None:
    job = Job()
    job.group(2)
    job.report(1, saved=True, seconds=10.0)
    job.report(2, saved=True, seconds=10.0)
    job.tick(5.0)
    assert job.wish(workers=1) == []
    assert "next checkpoint" in job.machine.observed(job.now).reason
    assert StopDriver() in job.report(3, saved=True, seconds=5.0)
    rare = Job()
    rare.group(2)
    rare.report(1, saved=True)
    rare.report(2, saved=True, seconds=300.0)
    assert rare.wish(workers=1) == [StopDriver()]


def test_a_driver_that_does_not_stop_is_killed() -> None:
    job = Job()
    job.group(2)
    job.report(1)
    assert job.wish(run="pause") == [StopDriver()]
    assert job.tick(29.0) == []
    assert job.tick(2.0) == [KillDriver()]
    assert job.tick(9.0) == []
    job.gone()
    assert job.outcome().state == "paused"
    forced = Job()
    assert forced.wish(run="stop", force=True) == [KillDriver()]
    forced.gone()
    assert forced.outcome().state == "cancelled"


def test_a_pause_that_is_forced_waits_for_nothing() -> None:
    def about_to_save() -> Job:
        job = Job()
        job.group(2)
        for step in (1, 2):
            job.report(step, saved=True, seconds=10.0)
        return job

    at_once = about_to_save()
    assert at_once.wish(run="pause", force=True) == [KillDriver()]
    at_once.gone()
    assert at_once.outcome().state == "paused"
    later = about_to_save()
    assert later.wish(run="pause") == []
    later.tick(TERMS.stop_grace_s)
    assert later.orders[-1] == StopDriver()
    assert later.wish(force=True) == [KillDriver()]
    resumed = about_to_save()
    assert resumed.wish(workers=3, force=True) == [], "the force of a wish that is over"


def test_a_lost_worker_is_a_recovery_that_ray_train_makes() -> None:
    job = Job()
    job.group(2)
    job.report(1, saved=True)
    job.report(2)
    died = WorkerError(1, is_death=True, error="its process ended (ActorDiedError)")
    job.hear(WorkersFailed((WorkerError(0, is_death=False, error="RuntimeError: peer", traceback="..."), died)))
    assert job.machine.observed(job.now).state == "recovering"
    assert len(job.told("worker.lost")) == 2
    job.group(2, resume_step=1)
    job.report(2)
    formed = job.told("generation.formed")[-1]
    assert (formed.data["cause"], formed.data["redone_steps"]) == ("recovery", 1)
    assert job.machine.observed(job.now).restarts == 1


def test_a_function_that_raises_twice_at_one_place_fails_the_job() -> None:
    job = Job()
    raised = WorkersFailed((WorkerError(0, is_death=False, error="ValueError: no", traceback="Traceback ..."),))
    job.group(2)
    job.report(1)
    assert [one.kind for one in job.hear(raised)] == ["worker.lost"]
    job.group(2)
    assert StopDriver() in job.hear(raised)
    job.gone(replace(STOPPED, last_output=("bye",)))
    failure = job.outcome().failure
    assert (job.outcome().state, failure.failure_class, failure.reason) == ("failed", "user", "user_code_error")
    assert (failure.traceback, failure.rank, failure.last_output) == ("Traceback ...", 0, ("bye",))
    assert "ValueError: no" in failure.message


def test_a_function_that_raises_fails_at_once_where_no_restart_is_allowed() -> None:
    job = Job(terms=replace(TERMS, max_restarts=0))
    raised = WorkersFailed((WorkerError(1, is_death=False, error="ValueError: no", traceback="Traceback ..."),))
    job.group(2)
    job.hear(raised)
    job.gone(DriverGone("exit code 1", DriverEnd("workers_failed", "WorkerGroupError: ...")))
    assert (job.outcome().failure.reason, job.outcome().failure.traceback) == ("user_code_error", "Traceback ...")


def test_workers_that_die_too_often_are_the_clusters_fault() -> None:
    job = Job(terms=replace(TERMS, max_restarts=0))
    job.group(2)
    job.hear(WorkersFailed((WorkerError(1, is_death=True, error="gone"),)))
    job.gone(DriverGone("exit code 1", DriverEnd("workers_failed", "WorkerGroupError: ...")))
    failure = job.outcome().failure
    assert (failure.failure_class, failure.reason) == ("infrastructure", "max_restarts_exceeded")


def test_a_driver_that_crashes_is_started_again_after_a_wait_and_not_for_ever() -> None:
    job = Job()
    crashed = DriverGone("SIGSEGV", None, ("last line",))
    assert [one.kind for one in job.gone(crashed)] == ["job.restarting"]
    assert job.tick(0.5) == []
    assert job.tick(0.6) == [StartDriver(2, 2, 1, ())]
    job.gone(crashed)
    assert job.tick(1.0) == []
    assert job.tick(1.1) == [StartDriver(3, 2, 0, ())]
    job.gone(crashed)
    failure = job.outcome().failure
    assert (failure.failure_class, failure.reason, failure.last_output) == (
        "infrastructure",
        "start_failed",
        ("last line",),
    )


def test_a_drained_node_moves_the_group_and_other_actions_are_refused() -> None:
    job = Job()
    job.group(2)
    job.report(1)
    kill, stack = WorkerAction(1, "kill", "w1.1", "ada"), WorkerAction(2, "stack", "w1.9", "ada")
    first, second = (one.answer for one in job.wish(actions=(kill, stack)) if isinstance(one, Answer))
    assert (first.state, second.state) == ("failed", "gone")
    alone, moved = WorkerAction(3, "drain", "w1.1", "ada"), WorkerAction(4, "drain", "w1.2", "ada")
    orders = job.wish(actions=(alone, moved), avoid_nodes=("node1",))
    assert [(one.answer.number, one.answer.state) for one in orders if isinstance(one, Answer)] == [(3, "failed")]
    assert StopDriver() in orders
    orders = job.gone()
    assert [(one.answer.number, one.answer.state) for one in orders if isinstance(one, Answer)] == [(4, "done")]
    assert orders[-1] == StartDriver(2, 2, 2, ("node1",))


def test_a_slow_start_says_what_it_waits_for() -> None:
    job = Job()
    job.tick(6.0)
    assert job.machine.observed(job.now).reason == "starting Ray Train's driver"
    job.hear(GroupStarting(2, 0))
    assert job.machine.observed(job.now).reason == "waiting for room for 2 Ray Train workers"


def test_steps_that_an_attempt_before_has_reported_are_told_as_repeated() -> None:
    job = Job(last_step=9)
    job.group(2, resume_step=6)
    job.report(7)
    formed = job.told("generation.formed")[-1]
    assert (formed.data["cause"], formed.data["redone_steps"]) == ("restart", 3)


def test_what_an_old_driver_says_changes_nothing() -> None:
    job = Job()
    job.group(2)
    job.wish(workers=1)
    job.gone()
    assert job.machine.hear(1, Reported(5, 0.0, {}, 1), job.now) == []
    assert job.machine.observed(job.now).step == 0


MOVES = st.sampled_from(
    ["tick", "long", "group", "report", "save", "died", "raised", "gone", "finished", "failed", "grow", "pause", "stop"]
)


@given(st.lists(MOVES, max_size=40))
def test_there_is_never_a_second_driver_and_at_most_one_end(moves: list[str]) -> None:
    job = Job()
    is_alive, step = True, 0
    for move in moves:
        before = len(job.orders)
        match move:
            case "tick" | "long":
                job.tick(0.3 if move == "tick" else 40.0)
            case "grow":
                job.wish(workers=job.desired.workers % 4 + 1)
            case "pause" | "stop":
                job.wish(run=move)
            case "gone" | "finished" | "failed" if is_alive:
                is_alive = False
                job.gone({"gone": STOPPED, "finished": FINISHED}.get(move, DriverGone("1", DriverEnd("failed", "x"))))
            case "group" if is_alive:
                job.group(2, resume_step=step)
            case "report" | "save" if is_alive and job.machine.workers():
                step += 1
                job.report(step, saved=move == "save")
            case "died" | "raised" if is_alive and job.machine.workers():
                job.hear(WorkersFailed((WorkerError(0, is_death=move == "died", error="x"),)))
        for order in job.orders[before:]:
            if isinstance(order, StartDriver):
                assert not is_alive
                is_alive = True
            if isinstance(order, StopDriver | KillDriver):
                assert is_alive
            if isinstance(order, End):
                assert not is_alive
        job.outcome()
