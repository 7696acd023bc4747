"""The cluster protocol as a state machine: hypothesis chooses who asks what, what is lost, and at which await it ends.

The service is the real one, on SQLite, called without HTTP; controllers, agent and people are models. A *crash* throws
into a request at some await: its transaction is stored or not, and nobody hears. Held after every rule:

    one holder    an attempt that was superseded is refused everything; numbers of attempts strictly grow
    one log       positions have no gap; of each attempt exactly the first events are stored, in order, each once
    acknowledged  what was acknowledged is there: events, wishes, actions, a cancel
    one end       the final status is written once, and stays
    versions      of what is desired grow only
    at most once  no worker is acted on twice; what was answered is not listed any more

Each fault is counted where it took effect; a run in which one never did proves nothing about it, and fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import delete, select

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import (
    Acquired,
    AcquireRequest,
    ActionAnswer,
    ControllerSeen,
    Desired,
    EventReport,
    Observed,
    Outcome,
    ProcessIdentity,
    Report,
    Result,
    WorkerReport,
)
from rubato.wire.status import FINAL, Status
from service import jobs, wishes, workers
from service.access import Principal, Role
from service.attempts import acquire, desired
from service.errors import ErrorKind, ServiceError
from service.ingest import ingest
from service.models import Event, Job, WorkerActionRow
from service.requests import Asked
from service.settings import Settings
from service.startup import run_service
from tests.callers import an_admin
from tests.integration.service.protocol_models import (
    AT_COMMIT,
    EFFECTS,
    GUARDS,
    LEASE_S,
    SOMEWHERE,
    Bench,
    Controller,
    ManualClock,
    Played,
    expect,
    give_whole_leases,
)

pytestmark = pytest.mark.timeout(1800)

TIME = "2026-01-31T12:00:00.000000Z"
FEW, MANY = (settings(max_examples=count, suppress_health_check=list(HealthCheck)) for count in (20, 50))
CASES = [("sqlite", FEW), *(pytest.param(one, MANY, marks=pytest.mark.long) for one in ("sqlite", "postgres"))]


class Protocol(Played):
    """Two places for controllers, an agent, and people, around one job."""

    @initialize()
    def begin(self) -> None:
        name = f"job-{next(self.bench.names)}"
        spec = jobs.read_spec({"name": name, "recipe": "image-classifier", "workers": {"initial": 2, "max": 4}})
        self.job_id = self.call(jobs.submit(self.context, spec, asked=Asked(an_admin())))["id"]
        self.pids = itertools.count(100)
        self.controllers: list[Controller] = []
        self.places: list[Controller | None] = [None, None]
        self.granted: list[int] = []
        self.confirmed: set[int] = set()
        self.last_renewal = self.bench.clock.now
        self.versions: list[int] = []
        self.workers = {f"w{number}" for number in range(1, 5)}
        self.acted: Counter[int] = Counter()
        self.asked: dict[int, tuple[str, str]] = {}
        self.answered: set[int] = set()
        self.has_cancel = False
        self.final: str | None = None
        self.schedule()
        self.asks_for_an_attempt(0, None, looks=False)
        self.reports(0, 1, None, None)

    # --- controllers --------------------------------------------------------------------------------------------------

    @rule(place=st.integers(0, 1))
    def a_controller_starts(self, place: int) -> None:
        """In the place of one that is stopped and may wake up, or as the first one."""
        self.places[place] = Controller(ProcessIdentity("node-1", "boot-1", next(self.pids), 7))
        self.controllers.append(self.places[place])  # type: ignore[arg-type]

    @rule(which=st.integers(0, 30))
    def a_process_dies(self, which: int) -> None:
        living = [one for one in self.controllers if one.is_alive]
        if living:
            living[which % len(living)].is_alive = False

    @rule(place=st.integers(0, 1), after=st.none() | SOMEWHERE, looks=st.booleans())
    def asks_for_an_attempt(self, place: int, after: int | None, looks: bool) -> None:
        """`looks`: it tells whether it sees the process of the holder to be gone."""
        one = self.places[place]
        if one is None or not one.is_alive:
            self.a_controller_starts(place)
            one = self.places[place]
            assert one is not None
        before = self.job()
        holder = self._holder(before)
        gone = holder.attempt if looks and holder is not None and not holder.is_alive else 0
        request = AcquireRequest(self.job_id, WIRE_VERSION, one.process, gone)
        ticket = Principal(Role.TICKET, "ticket", job_id=self.job_id)
        if holder is not None and holder is not one and holder.is_alive:
            EFFECTS["two controllers asked"] += 1
        try:
            reply = self.cut(acquire(self.context, request, ticket), after)
        except ServiceError as error:
            self._was_refused(error, before, holder)
            return
        stored = self.job().attempt
        if reply is None:
            is_stored = stored > before.attempt
            EFFECTS[f"acquire cut off, {'granted' if is_stored else 'nothing stored'}"] += 1
            if is_stored:
                # Nobody knows the token: the holder is this process, which must ask again.
                self.granted.append(stored)
                one.begin(stored)
                one.is_over = True
                self.last_renewal = self.bench.clock.now
            return
        self._was_granted(one, reply, before, holder, gone)

    def _holder(self, job: Job) -> Controller | None:
        if not job.is_attempt_live:
            return None
        return next((one for one in self.controllers if one.attempt == job.attempt), None)

    def _was_refused(self, error: ServiceError, before: Job, holder: Controller | None) -> None:
        if error.kind is ErrorKind.CONFLICT:
            assert Status(before.status) in FINAL or before.status in ("queued", "paused"), before.status
            return
        expect(error, ErrorKind.LEASE_HELD)
        assert holder is not None, "nobody holds it"
        if holder.is_alive:
            EFFECTS["lease held by a living process"] += 1

    def _was_granted(self, one: Controller, reply: Acquired, before: Job, holder: Controller | None, gone: int) -> None:
        assert not self.granted or reply.attempt > max(self.granted), "an attempt was granted twice"
        assert reply.attempt == before.attempt + 1
        if holder is not None and holder.process == one.process:
            EFFECTS["asked again by the same process"] += 1
        elif holder is not None and gone == holder.attempt:
            EFFECTS["granted at once: seen to be gone"] += 1
        elif holder is not None and holder.attempt in self.confirmed:
            EFFECTS["granted at once: the agent confirmed"] += 1
        elif holder is not None:
            silence = (self.bench.clock.now - self.last_renewal).total_seconds()
            assert silence >= LEASE_S, f"granted {silence} s after the holder was heard"
            EFFECTS["granted after the lease"] += 1
        self.granted.append(reply.attempt)
        one.begin(reply.attempt)
        self.last_renewal = self.bench.clock.now
        self._hear(one, reply.desired)

    # --- reports and polls --------------------------------------------------------------------------------------------

    def _leader(self, which: int) -> Controller | None:
        """One that believes to lead."""
        leading = [one for one in self.controllers if one.is_alive and one.attempt and not one.is_over]
        return leading[which % len(leading)] if leading else None

    @rule(
        which=st.integers(0, 3),
        count=st.integers(0, 3),
        after=st.none() | SOMEWHERE,
        ends=st.sampled_from([None] * 7 + ["succeeded"]),
    )
    def reports(self, which: int, count: int, after: int | None, ends: str | None) -> None:
        """The next batch, or the last one again until it is acknowledged."""
        one = self._leader(which)
        if one is None:
            return
        if self.has_cancel and count == 3:
            ends = "succeeded"  # it had just finished when the cancel came
        if one.unsent is None:
            one.unsent = self._next_report(one, count, ends)
            one.sent.append(one.unsent)
        self._send(one, one.unsent, after)

    @rule(which=st.integers(0, 3), count=st.integers(1, 3), after=st.integers(0, 5) | st.just(AT_COMMIT))
    def a_report_is_cut_off(self, which: int, count: int, after: int) -> None:
        self.reports(which, count, after, None)

    def _next_report(self, one: Controller, count: int, ends: str | None) -> Report:
        begun = len(one.events)
        one.events += [f"{one.attempt}.{begun + index}" for index in range(1, count + 1)]
        events = tuple(
            EventReport(number, TIME, "worker.ready", one.events[number - 1])
            for number in range(begun + 1, begun + count + 1)
        )
        one.batch += 1
        reported = tuple(
            WorkerReport(name, name, index, 1, 1, "node-1", "active") for index, name in enumerate(sorted(self.workers))
        )
        outcome = None if ends is None else Outcome("succeeded", result=Result(9, "d" * 64))
        observed = Observed("running", "training", 1, len(self.workers), 0, one.batch, 100, 0, 0)
        answers = tuple(one.answers)
        return Report(
            one.attempt, one.batch, WIRE_VERSION, observed, reported, events, answers=answers, outcome=outcome
        )

    def _send(self, one: Controller, report: Report, after: int | None) -> None:
        before = self.job()
        caller = Principal(Role.ATTEMPT, "attempt", job_id=self.job_id, attempt=one.attempt)
        try:
            reply = self.cut(ingest(self.context, self.job_id, report, caller), after)
        except ServiceError as error:
            expect(error, ErrorKind.FENCED)
            assert before.attempt != one.attempt or not before.is_attempt_live
            one.is_over = True
            return
        if reply is None:
            now = self.job()
            if report.events:
                is_stored = now.last_pos > before.last_pos
                EFFECTS[f"report cut off, {'stored' if is_stored else 'nothing stored'}"] += 1
            if now.lease_expires_at != before.lease_expires_at:
                self.last_renewal = self.bench.clock.now
            return
        self.last_renewal = self.bench.clock.now
        assert reply.ack == report.batch
        if before.status in FINAL:
            EFFECTS["outcome told twice"] += 1
        one.acknowledged = len(one.events)
        for answer in report.answers:
            self.answered.add(answer.number)
        one.answers = [answer for answer in one.answers if answer not in report.answers]
        one.unsent = None
        if report.outcome is not None:
            one.is_over = True
            if before.desired_run == "stop" and before.status not in FINAL:
                EFFECTS["cancel won over an outcome"] += 1

    @rule(which=st.integers(0, 30), batch=st.integers(0, 30))
    def a_report_comes_late_or_twice(self, which: int, batch: int) -> None:
        """Copies that were under way, also of controllers that are superseded or dead."""
        known = [one for one in self.controllers if one.sent and one.attempt]
        if not known:
            return
        one = known[which % len(known)]
        report = one.sent[-1 - batch % len(one.sent)]
        if report.attempt != one.attempt or report is one.unsent:
            return
        before = self.job()
        caller = Principal(Role.ATTEMPT, "attempt", job_id=self.job_id, attempt=report.attempt)
        try:
            reply = self.call(ingest(self.context, self.job_id, report, caller))
        except ServiceError as error:
            expect(error, ErrorKind.FENCED)
            EFFECTS["late report of a superseded attempt refused"] += 1
        else:
            assert reply.ack == report.batch
            is_current = before.attempt == report.attempt and before.is_attempt_live
            EFFECTS["report doubled" if is_current else "late report acknowledged, nothing stored"] += 1
            EFFECTS["outcome told twice"] += report.outcome is not None
            if is_current:
                self.last_renewal = self.bench.clock.now
        after = self.job()
        assert (after.last_pos, after.status, after.workers) == (before.last_pos, before.status, before.workers)

    @rule(which=st.integers(0, 3))
    def polls(self, which: int) -> None:
        one = self._leader(which)
        if one is None:
            return
        before = self.job()
        caller = Principal(Role.ATTEMPT, "attempt", job_id=self.job_id, attempt=one.attempt)
        try:
            found = self.call(desired(self.context, self.job_id, caller, one.version, 0.0))
        except ServiceError as error:
            expect(error, ErrorKind.FENCED)
            assert before.attempt != one.attempt or not before.is_attempt_live
            one.is_over = True
            return
        self.last_renewal = self.bench.clock.now
        self._hear(one, found)

    def _hear(self, one: Controller, found: Desired) -> None:
        """Take in the wishes, and do what is asked, each once."""
        assert found.version >= one.version, "versions grow"
        one.version = found.version
        for action in found.actions:
            assert action.number not in self.answered, "it was answered"
            if action.number in one.taken:
                continue
            one.taken.add(action.number)
            if action.worker_id in self.workers:
                self.workers.discard(action.worker_id)
                self.acted[action.number] += 1
                EFFECTS["action done"] += 1
                one.answers.append(ActionAnswer(action.number, "done", "it left"))
            else:
                if self.acted[action.number]:
                    EFFECTS["action of a predecessor found done"] += 1
                one.answers.append(ActionAnswer(action.number, "gone", "it had ended before"))

    # --- people, the agent, the service itself ------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(["drain", "kill"]),
        worker=st.integers(1, 4),
        key=st.integers(0, 2),
        after=st.none() | SOMEWHERE,
    )
    def somebody_acts_on_a_worker(self, kind: Any, worker: int, key: int, after: int | None) -> None:
        before = self.job()
        asked = Asked(an_admin(), f"{self.job_id}-{kind}-{worker}-{key}")
        try:
            acted = self.cut(workers.act(self.context, self.job_id, f"w{worker}", kind, asked=asked), after)
        except ServiceError as error:
            expect(error, ErrorKind.NOT_FOUND, ErrorKind.CONFLICT, ErrorKind.JOB_FINAL)
            return
        added = self.job().last_action - before.last_action
        if acted is None:
            EFFECTS[f"action cut off, {'stored' if added else 'nothing stored'}"] += 1
            return
        number = acted.action["number"]
        known = self.asked.setdefault(number, (kind, f"w{worker}"))
        assert known == (kind, f"w{worker}")
        if not added:
            EFFECTS["action asked for again"] += 1

    @precondition(lambda self: not self.has_cancel)
    @rule(chance=st.integers(0, 5))
    def somebody_cancels(self, chance: int) -> None:
        if chance < 3:  # else nearly every run would end soon
            return
        try:
            self.call(wishes.cancel(self.context, self.job_id, force=False, asked=Asked(an_admin())))
        except ServiceError as error:
            expect(error, ErrorKind.JOB_FINAL)
        else:
            self.has_cancel = True

    @rule(which=st.integers(0, 3), chance=st.integers(0, 3))
    def somebody_cancels_as_it_ends(self, which: int, chance: int) -> None:
        if chance == 3 and self._leader(which) is not None and not self.has_cancel:
            self.somebody_cancels(5)
            for _ in range(2):  # what was not acknowledged comes first
                self.reports(which, 1, None, "succeeded")

    @rule(place=st.integers(0, 1), after=st.sampled_from([0, 1, 2, AT_COMMIT, AT_COMMIT]))
    def a_successor_is_cut_off(self, place: int, after: int) -> None:
        if (holder := self._holder(self.job())) is not None:
            holder.is_alive = False
        self.asks_for_an_attempt(place, after, looks=True)

    @rule(place=st.integers(0, 1))
    def a_holder_dies_before_the_eyes_of_the_agent(self, place: int) -> None:
        holder = self._holder(self.job())
        if holder is not None:
            holder.is_alive = False
            self.the_agent_looks(confirms=True)
            self.asks_for_an_attempt(place, None, looks=False)

    @rule(confirms=st.booleans())
    def the_agent_looks(self, confirms: bool) -> None:
        """It confirms only processes that are dead."""
        dead = [one for one in self.controllers if one.attempt and not one.is_alive] if confirms else []
        self.schedule(*(ControllerSeen(self.job_id, "gone", one.attempt) for one in dead))
        self.confirmed |= {one.attempt for one in dead}

    @rule(seconds=st.sampled_from([-3600.0, -40.0, 1.0, 20.0, 46.0, 46.0, 3600.0]))
    def the_clock_moves(self, seconds: float) -> None:
        self.bench.clock.now += timedelta(seconds=seconds)
        EFFECTS["clock set back" if seconds < 0 else "clock set forward"] += 1

    @rule(place=st.integers(0, 1))
    def the_lease_runs_out(self, place: int) -> None:
        """And somebody asks who sees nothing of the holder."""
        self.bench.clock.now += timedelta(seconds=LEASE_S + 1)
        self.asks_for_an_attempt(place, None, looks=False)

    @rule()
    def the_service_restarts(self) -> None:
        """All silence was its own: whoever lives gets a whole lease."""
        self.call(give_whole_leases(self.context))
        self.last_renewal = self.bench.clock.now
        EFFECTS["service restarted"] += 1

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        if not hasattr(self, "job_id"):
            return
        job, events = self.job(), self.events()
        assert self.granted == sorted(set(self.granted))
        assert job.attempt == max(self.granted, default=0)
        assert [event.position for event in events] == list(range(1, job.last_pos + 1)), "a gap"
        for one in self.controllers:
            stored = [event for event in events if event.attempt == one.attempt and event.seq is not None]
            if not one.attempt or not one.events:
                continue
            assert [event.message for event in stored] == one.events[: len(stored)], "lost, doubled or disordered"
            assert len(stored) >= one.acknowledged
        assert not self.versions or job.desired_version >= self.versions[-1]
        self.versions.append(job.desired_version)
        assert max(self.acted.values(), default=0) <= 1
        self._look_at_the_end(job, events)
        self._look_at_the_fence(job)

    def _look_at_the_end(self, job: Job, events: list[Event]) -> None:
        ends = [event.data["to"] for event in events if event.kind == "job.status" and event.data["to"] in FINAL]
        assert len(ends) <= 1
        assert ends == ([job.status] if job.status in FINAL else [])
        assert self.final in (None, job.status), "a final status changed"
        self.final = job.status if job.status in FINAL else None
        if self.has_cancel and self.final is not None:
            assert self.final == "cancelled", "an acknowledged cancel wins"

    def _look_at_the_fence(self, job: Job) -> None:
        """The newest of those that were superseded: whatever it asks is refused."""
        old = [one for one in self.controllers if one.attempt and one.attempt < job.attempt]
        if old:
            one = max(old, key=lambda found: found.attempt)
            caller = Principal(Role.ATTEMPT, "attempt", job_id=self.job_id, attempt=one.attempt)
            with pytest.raises(ServiceError) as refused:
                self.call(desired(self.context, self.job_id, caller, 0, 0.0))
            assert refused.value.kind is ErrorKind.FENCED
            EFFECTS["superseded attempt refused a poll"] += 1

    def teardown(self) -> None:
        if not hasattr(self, "job_id"):
            return
        self._settle()
        self.look()

        async def forget() -> None:
            async with self.context.database.write() as session:
                await session.execute(delete(Job).where(Job.id == self.job_id))

        self.call(forget())

    def _settle(self) -> None:
        """When nothing fails any more a new controller leads, and every wish that was acknowledged is answered."""
        for one in self.controllers:
            one.is_alive = False
        self.schedule(*(ControllerSeen(self.job_id, "gone", number) for number in self.granted))
        self.confirmed |= set(self.granted)
        if self.job().status not in ("starting", "running", "recovering", "stopping"):
            return
        self.a_controller_starts(0)
        self.asks_for_an_attempt(0, None, looks=True)
        self.reports(0, 1, None, None)
        self.reports(0, 1, None, None)

        async def look() -> list[WorkerActionRow]:
            async with self.context.database.read() as session:
                return list(await session.scalars(select(WorkerActionRow).where(WorkerActionRow.job_id == self.job_id)))

        rows = {row.number: row for row in self.call(look())}
        assert self.asked.keys() <= rows.keys(), "an acknowledged action was lost"
        assert {row.state for row in rows.values()} <= {"done", "gone"}, "one is open still"
        assert not self.job().desired_actions


@pytest.mark.parametrize(("database_url", "how"), CASES, indirect=["database_url"])
def test_whatever_is_lost_late_or_doubled_the_protocol_holds(tmp_path: Path, database_url: str, how: settings) -> None:
    clock = ManualClock()
    EFFECTS.clear()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        service = run_service(Settings(home=tmp_path / "home", database_url=database_url), clock=clock, with_loop=False)
        running = runner.run(stack.enter_async_context(service))
        try:
            Protocol.bench = Bench(runner, running, clock)
            Protocol.bench.watch_commits()
            run_state_machine_as_test(Protocol, settings=how)
        finally:
            runner.run(stack.aclose())
    assert not (never := sorted(name for name in GUARDS if not EFFECTS[name])), f"never took effect: {never}"
