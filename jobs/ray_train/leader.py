"""One attempt at a Ray Train job: carries out what the machine decides, and passes on what comes of it.

All decisions are taken in one thread. A driver is a child of this process; what Ray Train's own processes say comes
through the job's controller actor (`hear`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import ray

from jobs.package import WorkerFolder
from jobs.ray_train.machine import DriverGone, KillDriver, Machine, Order, StartDriver, StopDriver, Terms
from jobs.ray_train.messages import DriverEnd, DriverPlan, GroupStarted, WorkerOutput
from jobs.ray_train.outputs import Outputs
from jobs.ray_train.process import DriverProcess
from jobs.reporter import Reporter
from jobs.service_link import ServiceLink, Unreachable
from jobs.wishes import follow_wishes
from rubato.checkpoint.storage import open_folder
from rubato.engine.coordinator import Answer, Emit, End, Rows
from rubato.errors import StorageUnreachable, UserError
from rubato.wire.cluster import Acquired, Desired, LogLine, Outcome
from rubato.wire.spec import parse_spec
from rubato.wire.storage import parse_storage
from rubato.wire.units import utc_timestamp

TICK_S = 0.2
FETCH_TRIES = 10
SHADOWING = ("jobs", "rubato")
"""Modules that Ray's processes load of ours: a folder of such a name in the package would come before them."""


class RayTrainLeader:
    """One attempt, from its grant to its end.

    Raises:
        RubatoError: the package cannot be had or used, or the storage cannot be written to.
    """

    def __init__(
        self, job_id: str, acquired: Acquired, link: ServiceLink, poll_link: ServiceLink, crash: Callable[[], None]
    ) -> None:
        self._job_id = job_id
        self._acquired = acquired
        self._poll_link = poll_link
        self._crash = crash
        self._spec = parse_spec(acquired.spec, strict=False)
        self._storage = parse_storage(acquired.storage) / job_id
        storage = open_folder(self._storage)
        if acquired.newest_checkpoint and not storage.folders():
            raise StorageUnreachable(
                f"nothing of the job lies in {storage}, but {acquired.newest_checkpoint} was saved there: is the "
                "storage mounted? Where all was deleted on purpose, cancel the job and begin it anew"
            )
        storage.prepare()
        self._folder = WorkerFolder(f"{job_id}-{acquired.attempt}.driver")
        try:
            self._code = self._prepare(link)
        except BaseException:
            self._folder.remove()
            raise
        self._machine = Machine(
            Terms.of(acquired.attempt, self._spec),
            acquired.desired,
            resume_step=acquired.resume_step,
            last_step=acquired.last_step,
            restarts=acquired.restarts,
            scalings=acquired.scalings,
        )
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._has_let_go = False
        self._reporter = Reporter(link, job_id, acquired.attempt, lambda _: None, self._let_go, crash)
        self._driver: DriverProcess | None = None
        self._outputs = Outputs()
        self._seen: dict[str, int] = {}
        """Messages taken of each sender."""

    def lead(self) -> None:
        """Lead until the outcome is acknowledged, or a newer attempt leads."""
        self._reporter.start()
        threading.Thread(target=self._follow_wishes, name="desired", daemon=True).start()
        outcome = self._run()
        if self._driver is not None:
            self._driver.kill()
            self._driver.join()
        if outcome is not None and not self._has_let_go:
            self._reporter.end(outcome)
            self._reporter.wait_acknowledged()
        self._is_over.set()
        self._reporter.close()
        self._folder.remove()

    def _prepare(self, link: ServiceLink) -> Path:
        """The package, unpacked: the service may be restarting meanwhile."""
        for number in range(1, FETCH_TRIES):
            try:
                code = self._folder.prepare(self._spec.package, link.fetch_package)
                break
            except Unreachable:
                time.sleep(0.5 * number)
        else:
            code = self._folder.prepare(self._spec.package, link.fetch_package)
        shadowed = [one for one in SHADOWING if any((code / end).exists() for end in (one, f"{one}.py"))]
        if shadowed:
            raise UserError(
                f"the working folder holds {shadowed[0]!r}, which hides a module of that name that Ray Train's "
                "processes need; rename it"
            )
        return code

    def hear(self, attempt: int, run: int, source: str, first_seq: int, messages: Sequence[Any]) -> bool:
        """Take messages of a sender in, each once; whether the run counts. From any thread."""
        if attempt != self._acquired.attempt or run < self._machine.run or self._is_over.is_set():
            return False
        self._events.put((run, source, first_seq, tuple(messages)))
        return True

    # --- the loop -------------------------------------------------------------------------------

    def _run(self) -> Outcome | None:
        outcome: Outcome | None = None
        while outcome is None and not self._has_let_go:
            try:
                event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                event = None
            now = time.monotonic()
            orders = self._machine.tick(now) if event is None else self._take(event, now)
            outcome = self._carry_out(orders)
            self._reporter.observe(self._machine.observed(now), self._machine.workers())
        return outcome

    def _take(self, event: Any, now: float) -> list[Order]:
        match event:
            case Desired():
                return self._machine.wish(event, now)
            case DriverGone():
                self._driver = None
                self._log(self._outputs.end())
                return self._machine.gone(event, now)
            case (int(run), str(source), int(first), tuple(messages)):
                return self._take_messages(run, source, first, messages, now)
            case _:
                return []

    def _take_messages(self, run: int, source: str, first: int, messages: tuple[Any, ...], now: float) -> list[Order]:
        """Without those that came before: an answer that was lost has them sent again."""
        orders: list[Order] = []
        known = self._seen.get(source, 0)
        self._seen[source] = max(known, first + len(messages))
        for message in messages[max(0, known - first) :]:
            if isinstance(message, WorkerOutput):
                if run == self._machine.run:
                    self._log(self._outputs.take(message))
                continue
            if isinstance(message, GroupStarted) and self._driver is not None:
                here = ray.get_runtime_context().get_node_id()
                self._driver.watch([one.pid for one in message.members if one.node_id == here])
            orders += self._machine.hear(run, message, now)
            self._log(self._outputs.name(self._machine.workers()))
        return orders

    def _carry_out(self, orders: Sequence[Order]) -> Outcome | None:
        outcome = None
        for order in orders:
            match order:
                case StartDriver():
                    self._start(order)
                case StopDriver() if self._driver is not None:
                    self._driver.stop()
                case KillDriver() if self._driver is not None:
                    self._driver.kill()
                case Emit():
                    self._reporter.emit(order)
                case Rows():
                    self._reporter.rows(order.rows)
                case Answer():
                    self._reporter.answer(order.answer)
                case End():
                    outcome = order.outcome
        return outcome

    def _start(self, order: StartDriver) -> None:
        plan = DriverPlan(
            job_id=self._job_id,
            attempt=self._acquired.attempt,
            run=order.run,
            workers=order.workers,
            max_failures=order.max_failures,
            avoid_nodes=order.avoid_nodes,
            storage=str(self._storage),
            code=str(self._code),
            address=str(ray.get_runtime_context().gcs_address),
            spec=self._acquired.spec,
        )
        self._outputs = Outputs()
        self._driver = DriverProcess(plan, self._spec.env, self._code.parent, self._take_line, self._on_gone)

    # --- from other threads ---------------------------------------------------------------------

    def _on_gone(self, how: str, end: DriverEnd | None, last_output: tuple[str, ...]) -> None:
        self._events.put(DriverGone(how, end, last_output))

    def _take_line(self, stream: Any, line: str) -> None:
        self._reporter.log(LogLine("", None, utc_timestamp(), stream, line))

    def _log(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._reporter.log(line)

    def _follow_wishes(self) -> None:
        version = self._acquired.desired.version
        follow_wishes(
            self._poll_link, self._job_id, version, self._is_over, self._events.put, self._let_go, self._crash
        )

    def _let_go(self) -> None:
        """A newer attempt leads, or the job is over for the service: the driver must not go on beside another."""
        self._has_let_go = True
        self._events.put(None)
        self._reporter.close()
