"""The controller: the Ray actor that leads one job. Named, detached, restarted by Ray until it leaves by itself.

It holds nothing that cannot be lost. Its attempt is acquired while it runs, never handed in: Ray replays constructor
arguments, so both twins of a split brain would hold the same one. Workers outlive it; it attaches to those that live.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import Any

import ray

from jobs.fleet import RayFleet
from jobs.names import NAMESPACE, controller_name
from jobs.ray_train.leader import RayTrainLeader
from jobs.reporter import Reporter, ReportLink
from jobs.service_link import Fenced, LeaseHeld, NotWanted, Refused, ServiceLink, Unreachable
from jobs.supervisor import WorkerOrder
from jobs.wishes import follow_wishes
from rubato.checkpoint.storage import open_folder
from rubato.cli.keeper.process_table import identify, pid_namespace
from rubato.engine.coordinator import Coordinator, Terms, Wish
from rubato.errors import RubatoError
from rubato.home import RecordedProcess
from rubato.launch.archive import ArchiveTerms, StorageArchive
from rubato.launch.host import Host
from rubato.wire import worker as wire
from rubato.wire.cluster import Acquired, Desired, Failure, Observed, Outcome, ProcessIdentity
from rubato.wire.reasons import Reason
from rubato.wire.spec import JobSpec, parse_spec
from rubato.wire.storage import StorageUri, parse_storage

RETRY_S = 1.0
CRASH_PAUSE_S = 2.0
"""Ray starts a crashed controller again at once: not in a tight loop, please."""
MAX_CAUSE = 500
"""Characters of an error that nobody foresaw."""
BEGIN_AGAIN_S = 30.0
"""Between attempts that could not begin here."""


class JobController:
    """The actor. Threaded: the attempt is led in its own thread, so that calls are answered meanwhile."""

    def __init__(self, job_id: str, ticket: str, url: str) -> None:
        self._job_id = job_id
        self._ticket = ticket
        self._url = url
        self._attempt = 0
        self._process = own_process()
        self._ray_train: RayTrainLeader | None = None
        threading.Thread(target=self._run, name="lead", daemon=True).start()

    def identity(self) -> tuple[ProcessIdentity, int]:
        """Which process this is, and the attempt it holds (0: none yet)."""
        return self._process, self._attempt

    def hear(self, attempt: int, run: int, source: str, first_seq: int, messages: tuple[Any, ...]) -> bool:
        """What processes of Ray Train say: whether their run counts (see `jobs.ray_train.line`)."""
        if self._ray_train is None:
            return attempt >= self._attempt  # this one has only just begun
        return self._ray_train.hear(attempt, run, source, first_seq, messages)

    def leave(self) -> None:
        """End the actor for good: any other end is a crash to Ray, which starts it again."""
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        try:
            self._lead()
        except BaseException:
            traceback.print_exc()
            crash()
        handle = ray.get_actor(controller_name(self._job_id), namespace=NAMESPACE)
        handle.leave.remote()

    def _lead(self) -> None:
        acquired = acquire(self._url, self._ticket, self._job_id, self._process)
        if acquired is None:
            return
        self._attempt = acquired.attempt
        say(f"{self._job_id}: attempt {acquired.attempt}")
        with ServiceLink(self._url, acquired.token) as link, ServiceLink(self._url, acquired.token) as poll_link:
            try:
                leader = self._leader_of(acquired, link, poll_link)
            except Exception as error:  # whatever it is: to crash would only begin it again
                say(f"{self._job_id}: attempt {acquired.attempt} could not begin: {_describe(error)}")
                if acquired.attempt > 1:  # it was led before: maybe another node can
                    time.sleep(BEGIN_AGAIN_S)
                    raise
                report_no_start(link, self._job_id, acquired, error)
            else:
                leader.lead()

    def _leader_of(self, acquired: Acquired, link: ServiceLink, poll_link: ServiceLink) -> Leader | RayTrainLeader:
        if acquired.spec.get("backend", "rubato") == "rubato":
            return Leader(self._job_id, acquired, self._url, link, poll_link)
        self._ray_train = RayTrainLeader(self._job_id, acquired, link, poll_link, crash)
        return self._ray_train


class Leader:
    """One attempt, from its grant to its end."""

    def __init__(self, job_id: str, acquired: Acquired, url: str, link: ServiceLink, poll_link: ServiceLink) -> None:
        self._job_id = job_id
        self._acquired = acquired
        self._link = link
        self._poll_link = poll_link
        self._is_over = threading.Event()
        spec = parse_spec(acquired.spec, strict=False)
        storage = parse_storage(acquired.storage)
        terms = Terms.of(job_id, acquired.attempt, spec)
        self._coordinator = Coordinator(
            terms,
            wish_of(acquired.desired),
            row_step=acquired.last_step,
            restarts=acquired.restarts,
            scalings=acquired.scalings,
            resume_step=acquired.resume_step,
            distrusted=acquired.distrusted,
        )
        self._host = Host(self._coordinator)
        self._reporter = Reporter(link, job_id, acquired.attempt, self._host.post, self._let_go, crash)
        self._fleet = RayFleet(
            worker_order(job_id, acquired, spec, url, storage / job_id),
            spec.resources_per_worker,
            self._host.post,
            self._let_go,
            crash,
        )
        root = open_folder(storage)
        origin = root / spec.checkpoint.resume_from if spec.checkpoint.resume_from else None
        archive_terms = ArchiveTerms.of(
            job_id, root / job_id, spec, acquired.attempt, origin, acquired.distrusted, acquired.newest_checkpoint
        )
        self._archive = StorageArchive(archive_terms, self._host.post, self._is_superseded)

    def lead(self) -> None:
        """Lead until the outcome is acknowledged, or a newer attempt leads."""
        adopted = self._fleet.attach_all()
        self._fleet.take_over(adopted)
        orders = []
        if adopted:
            say(f"{self._job_id}: took over {', '.join(one.incarnation for one in adopted)}")
            snapshots = [one.reply.snapshot for one in adopted if one.reply.snapshot is not None]
            placed = [one.reply.spawned for one in adopted if one.reply.spawned is not None]
            orders = self._host.adopt(snapshots, placed)
        self._fleet.avoid(self._acquired.desired.avoid_nodes)
        self._reporter.start()
        threading.Thread(target=self._follow_wishes, name="desired", daemon=True).start()
        outcome = self._host.run(self._fleet, self._reporter, self._archive, orders)
        if outcome is not None:
            say(f"{self._job_id}: {outcome.state}")
            self._reporter.wait_acknowledged()
        self._is_over.set()
        self._reporter.close()
        self._archive.close()
        self._fleet.close()

    def _is_superseded(self) -> bool:
        """Ask the service: this process may have been stopped for long. One that does not answer grants nobody."""
        try:
            self._link.desired(self._job_id, after=0, wait_s=0.0)
        except (Fenced, NotWanted):
            return True
        except RubatoError:
            pass
        return False

    def _let_go(self) -> None:
        """A newer attempt leads, or the job is over for the service: leave everything as it is."""
        say(f"{self._job_id}: attempt {self._acquired.attempt} no longer counts")
        self._host.let_go()
        self._reporter.close()

    def _follow_wishes(self) -> None:
        version = self._acquired.desired.version
        follow_wishes(self._poll_link, self._job_id, version, self._is_over, self._take_wishes, self._let_go, crash)

    def _take_wishes(self, wishes: Desired) -> None:
        self._fleet.avoid(wishes.avoid_nodes)
        self._host.post(wish_of(wishes))


def report_no_start(link: ReportLink, job_id: str, acquired: Acquired, error: Exception) -> None:
    """The job fails where this machine cannot lead it: another attempt here would do no better."""
    reporter = Reporter(link, job_id, acquired.attempt, lambda _: None, lambda: None, crash)
    restarts, scalings = acquired.restarts, acquired.scalings
    reporter.observe(Observed("starting", "", 0, 0, 0, acquired.resume_step, None, restarts, scalings), ())
    message = f"The controller could not begin: {_describe(error)}"
    reporter.end(Outcome("failed", failure=Failure("infrastructure", Reason.START_FAILED, message)))
    reporter.start()
    reporter.wait_acknowledged()


def _describe(error: Exception) -> str:
    """What is not ours in one line: a driver that cannot be loaded may tell a hundred."""
    if isinstance(error, RubatoError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:MAX_CAUSE]}"


def acquire(url: str, ticket: str, job_id: str, process: ProcessIdentity) -> Acquired | None:
    """Ask for an attempt until it is granted; None where the job is not to run."""
    gone, is_away = 0, False
    with ServiceLink(url, ticket) as link:
        while True:
            try:
                return link.acquire(job_id, process, gone)
            except (NotWanted, Fenced, Refused) as error:
                say(f"{job_id}: no attempt: {error}")
                return None
            except LeaseHeld as held:
                if gone != held.attempt and has_ended(held.process):
                    gone = held.attempt
                    continue
                time.sleep(min(max(held.retry_after_s, 0.1), RETRY_S))
            except Unreachable as error:
                if not is_away:
                    say(f"{job_id}: no word from the service at {url} ({error}); asking until there is one")
                is_away = True
                time.sleep(RETRY_S)


def has_ended(process: ProcessIdentity) -> bool:
    """Whether a predecessor's process is known to be gone: it ran where this one does, and does not any more.

    Of one that a release before told, which said the boot only, nothing is known: it may live in another container.
    """
    if not process.boot_id or process.boot_id != pid_namespace():
        return False
    return identify(process.pid) != RecordedProcess(process.pid, process.start_time)


def own_process() -> ProcessIdentity:
    """This process."""
    recorded = identify(os.getpid())
    assert recorded is not None, "this process lives"
    node_id = str(ray.get_runtime_context().get_node_id())
    return ProcessIdentity(node_id, pid_namespace(), recorded.pid, recorded.start_time)


def wish_of(desired: Desired) -> Wish:
    """What the coordinator needs of the wishes."""
    return Wish(
        desired.run,
        desired.workers,
        desired.checkpoint_request,
        desired.force,
        desired.standby,
        desired.actions,
        desired.grace_s,
    )


def worker_order(job_id: str, acquired: Acquired, spec: JobSpec, url: str, storage: StorageUri) -> WorkerOrder:
    """What all workers of an attempt have in common."""
    start = wire.Start(
        attempt=acquired.attempt,
        job_id=job_id,
        worker_id="",
        incarnation="",
        spec=acquired.spec,
        host="",
        storage=str(storage),
    )
    return WorkerOrder(start, url, acquired.token, spec.package, spec.env, has_secrets=bool(spec.secrets))


def crash() -> None:
    """End this process: Ray starts the actor again, whose attempt takes the workers over."""
    time.sleep(CRASH_PAUSE_S)
    os._exit(1)


def say(text: str) -> None:
    """To the actor's log."""
    print(f"controller: {text}", file=sys.stderr, flush=True)
