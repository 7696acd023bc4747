"""The supervisor: the Ray actor that holds one training process. Named, detached, never restarted.

It outlives its controller: what the process says is kept until a controller has taken it, and a new controller attaches
with a higher attempt. Hearing none for a minute, it kills the process and exits.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from jobs.door import DoorAddress, open_door
from jobs.outbox import Event, Numbered, Outbox
from jobs.package import WorkerFolder
from jobs.service_link import Fenced, NotWanted, Refused, ServiceLink
from jobs.shadow import Shadow
from rubato.cli.keeper.process_table import identify, pid_namespace
from rubato.errors import RubatoError, StaleAttempt
from rubato.home import RecordedProcess
from rubato.launch.environment import child_environment
from rubato.launch.supervisor import CHILD_COMMAND, ChildPlan, ChildSupervisor
from rubato.wire import worker as wire

T = TypeVar("T")

DEAD_MAN_S = 60.0
"""Silence of all controllers after which nobody leads this worker any more."""
SNAPSHOT_WAIT_S = 2.0
"""How long a training process may take to describe itself, before its supervisor does: code in C may hold its
interpreter's lock for minutes. What only the process has is the rows that another member told.
"""
STALL_PAUSES = 5
"""A gap between two looks of the dead man's switch that says this process was stopped or starved, in its pauses."""
MAX_POLL_S = 10.0
FETCH_TRIES = 5
FRESH_STRIPE_S = 15.0
"""How long after a stripe a controller may have died between it and the manifest, while others are to come."""
TOLD_BY_SNAPSHOT = (
    *(wire.Spawned, wire.Hello, wire.Standby, wire.Formed, wire.Entered, wire.Committed),
    *(wire.Beat, wire.Broken, wire.Ended, wire.Snapshot, wire.StripeWritten),
)
"""A new controller need not be told of these again."""


@dataclass(frozen=True)
class WorkerOrder:
    """What a supervisor needs to start its training process."""

    start: wire.Start
    """Without `host`: only the worker itself knows its address."""
    url: str
    token: str = field(repr=False)
    """Of the attempt; opens the job's package."""
    package: str | None
    job_env: dict[str, str | None]
    has_secrets: bool = False
    """Whether it fetches some. They do not stand here: Ray keeps what it makes an actor of."""
    command: tuple[str, ...] = CHILD_COMMAND
    dead_man_s: float = DEAD_MAN_S


@dataclass(frozen=True)
class WorkerProcesses:
    """The processes of a worker, so that a controller beside it can see for itself that they are gone."""

    boot_id: str
    """With the PID namespace (`process_table.pid_namespace`)."""
    supervisor: RecordedProcess | None
    child: RecordedProcess | None
    door: DoorAddress | None = None
    """Where a controller elsewhere sees it of the supervisor. None: this host's address cannot be listened at."""


@dataclass(frozen=True)
class PollReply:
    """Events after the number asked for."""

    events: tuple[Numbered, ...]
    processes: WorkerProcesses


@dataclass(frozen=True)
class Allegiance:
    """Which attempts a supervisor has heard."""

    followed: int
    """The newest that has attached to it, or made it."""
    led_by: int
    """The newest that has asked it for events, as those do that lead: who attaches may die before."""


def left_behind(told: Mapping[str, Allegiance]) -> set[str]:
    """Workers that do not follow a controller which has led others: they are none of the job's any more.

    It ended them, or they were made after it had looked, by one that was superseded and had not heard of it. That one
    may have begun the job anew with them, beside it.

    Args:    told: by incarnation, the allegiance of each before the present controller.
    """
    led = max((one.led_by for one in told.values()), default=0)
    return {incarnation for incarnation, one in told.items() if one.followed < led}


@dataclass(frozen=True)
class AttachReply:
    """What a new controller must know of a living worker."""

    seq: int
    """Poll from here."""
    spawned: wire.Spawned | None
    snapshot: wire.Snapshot | None
    """None: the process is gone. Of one that does not answer it is the supervisor's."""
    backlog: tuple[Event, ...]
    """What no controller has taken yet and the snapshot does not say."""
    processes: WorkerProcesses
    followed: int = 0
    """The `Allegiance` that it had before; 0: of an older release, which does not say."""
    led_by: int = 0


class WorkerSupervisor:
    """The actor. Threaded: a poll waits in one thread while commands come in others."""

    def __init__(self, order: WorkerOrder) -> None:
        self._order = order
        self._outbox = Outbox()
        self._lock = threading.Condition()
        self._attempt = self._led_by = order.start.attempt
        self._heard_at = time.monotonic()
        self._command_seq = 0
        self._child: ChildSupervisor | None = None
        self._folder: WorkerFolder | None = None
        self._kill_wish = ""
        self._spawned: wire.Spawned | None = None
        self._has_hello = False
        self._shadow = Shadow(order.start.incarnation)
        self._last_seq = 0
        """Of what the shadow has taken in."""
        self._snapshots = 0
        self._snapshot: tuple[int, wire.Snapshot] | None = None
        self._stripes_at = 0.0
        self._is_gone = False
        self._supervisor_process = identify(os.getpid())
        self._host, self._node, self._node_id = _own_place()
        self._door = _door_at(self._host)
        self._child_process: RecordedProcess | None = None
        threading.Thread(target=self._begin, name="begin", daemon=True).start()
        threading.Thread(target=self._watch, name="dead-man", daemon=True).start()

    # --- called by the controller ---------------------------------------------------------------

    def poll(self, attempt: int, after_seq: int, wait_s: float) -> PollReply:
        """Events after `after_seq`, which acknowledges those up to it.

        Raises:
            StaleAttempt: a newer controller leads.
        """
        with self._lock:
            self._hear(attempt)
            self._led_by = attempt
        events = self._outbox.take(after_seq, min(wait_s, MAX_POLL_S))
        self._hear(attempt)
        return PollReply(events, self._processes())

    def command(self, attempt: int, first_seq: int, commands: tuple[wire.Command, ...]) -> int:
        """Pass commands on, each once however often it is sent; the number of the last one passed."""
        with self._lock:
            self._hear(attempt)
            for seq, command in enumerate(commands, first_seq):
                if seq > self._command_seq:
                    self._command_seq = seq
                    if self._child is not None:
                        self._child.send(command)
                        self._shadow.on_command(command)
            return self._command_seq

    def kill(self, attempt: int, because: str, with_stacks: bool = False) -> None:
        """End the training process."""
        self._hear(attempt)
        self._kill(because, with_stacks=with_stacks)

    def attach(self, attempt: int) -> AttachReply:
        """Follow a new controller from here on."""
        with self._lock:
            followed, led_by = self._attempt, self._led_by
            self._hear(attempt)
            self._command_seq = 0
            self._outbox.interrupt()
            asked = self._snapshots
            if self._child is not None and not self._is_gone:
                self._child.send(wire.Attach(attempt))
            if self._has_hello:
                self._lock.wait_for(lambda: self._is_gone or self._snapshots > asked, SNAPSHOT_WAIT_S)
            return replace(self._describe(asked), followed=followed, led_by=led_by)

    # --- the training process -------------------------------------------------------------------

    def _begin(self) -> None:
        start = self._order.start
        try:
            folder = self._folder = WorkerFolder(f"{start.job_id}-{start.incarnation}")
            code, secrets = self._prepare(folder)
            environment = child_environment(
                os.environ, working_dir=code, job_env=self._order.job_env, secrets=secrets, keep_pythonpath=False
            )
            plan = ChildPlan(
                replace(start, host=self._host),
                self._node,
                code,
                environment,
                command=self._order.command,
                node_id=self._node_id,
            )
            with self._lock:
                self._child = ChildSupervisor(plan, self._take)
                if self._kill_wish:
                    self._child.kill(self._kill_wish)
                self._child.start()
        except Exception as error:  # whatever it is: somebody waits for a word of it
            if not isinstance(error, (RubatoError, OSError)):
                traceback.print_exc()
            what = str(error) if isinstance(error, RubatoError) else f"{type(error).__name__}: {error}"
            cause = self._kill_wish or f"it could not be prepared: {what}"
            self._take(wire.Exited(start.incarnation, None, None, cause=cause))
            return
        folder.sweep()

    def _prepare(self, folder: WorkerFolder) -> tuple[Path, dict[str, str]]:
        """The code, and the secrets: these only ever lie in memory, here and in the training process."""
        order, job_id = self._order, self._order.start.job_id
        with ServiceLink(order.url, order.token) as link:
            code = self._patiently(lambda: folder.prepare(order.package, link.fetch_package))
            return code, self._patiently(lambda: link.secrets(job_id)) if order.has_secrets else {}

    def _patiently(self, fetch: Callable[[], T]) -> T:
        for number in range(1, FETCH_TRIES):
            try:
                return fetch()
            except (Fenced, NotWanted, Refused):
                raise
            except RubatoError:
                if self._kill_wish:
                    raise
                time.sleep(0.5 * number)  # the service may be restarting
        return fetch()

    def _take(self, event: Event) -> None:
        """Something the process said, or its end; called by one thread at a time."""
        if isinstance(event, wire.Exited):
            self._remove_folder()  # whoever hears of the end has this process killed
        with self._lock:
            match event:
                case wire.Spawned():
                    self._spawned = event
                    self._child_process = identify(event.pid)
                case wire.Hello():
                    self._has_hello = True
                case wire.Snapshot():
                    self._snapshots += 1
                case wire.StripeWritten() | wire.StripeFailed():
                    self._stripes_at = time.monotonic()
                case wire.Exited():
                    self._is_gone = True
            self._shadow.on_message(event)
            self._last_seq = self._outbox.put(event)
            if isinstance(event, wire.Snapshot):
                self._snapshot = (self._last_seq, event)
            self._lock.notify_all()

    def _kill(self, because: str, *, with_stacks: bool = False) -> None:
        with self._lock:
            self._kill_wish = because
            if self._child is not None:
                self._child.kill(because, with_stacks=with_stacks)

    # --- who leads ------------------------------------------------------------------------------

    def _hear(self, attempt: int) -> None:
        with self._lock:
            if attempt < self._attempt:
                raise StaleAttempt(f"attempt {self._attempt} leads this worker, not {attempt}")
            self._attempt = attempt
            self._heard_at = time.monotonic()

    def _describe(self, asked: int) -> AttachReply:
        """With the lock held."""
        pending = self._outbox.pending()
        if self._is_gone:
            return AttachReply(0, self._spawned, None, tuple(one.event for one in pending), self._processes())
        seq, snapshot = self._last_seq, self._shadow.snapshot()
        if self._snapshot is not None and self._snapshots > asked:
            seq, snapshot = self._snapshot
        said = tuple(one.event for one in pending if one.seq <= seq)
        return AttachReply(seq, self._spawned, snapshot, self._backlog(said), self._processes())

    def _backlog(self, said: tuple[Event, ...]) -> tuple[Event, ...]:
        """What the snapshot does not say. Fresh stripes are told again: their manifest may not be written yet.

        So are those of the end, however old, and that they failed: the job is not over before it is known of each.
        """
        kept = tuple(event for event in said if not isinstance(event, TOLD_BY_SNAPSHOT))
        is_fresh = time.monotonic() - self._stripes_at < FRESH_STRIPE_S
        return (*kept, *self._shadow.parts) if is_fresh or self._shadow.is_at_end else kept

    def _processes(self) -> WorkerProcesses:
        return WorkerProcesses(pid_namespace(), self._supervisor_process, self._child_process, self._door)

    def _watch(self) -> None:
        """The dead man's switch. Time in which this process itself was stopped is nobody's silence."""
        pause_s = min(1.0, self._order.dead_man_s / 10)
        looked_at = time.monotonic()
        while True:
            time.sleep(pause_s)
            with self._lock:
                now = time.monotonic()
                if now - looked_at > STALL_PAUSES * pause_s:
                    self._heard_at = min(now, self._heard_at + now - looked_at)
                looked_at, silence = now, now - self._heard_at
            if silence > self._order.dead_man_s:
                break
        self._kill(f"no controller was heard for {silence:.0f} s")
        if self._child is not None:
            self._child.join(10.0)
        self._remove_folder()
        os._exit(0)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()


def _door_at(host: str) -> DoorAddress | None:
    try:
        return open_door(host)
    except OSError as error:
        print(f"supervisor: no door at {host} ({error}): that this node is lost only Ray will tell", file=sys.stderr)
        return None


def _own_place() -> tuple[str, str, str]:
    """This node: its address, its name, and its id as Ray, and hence the service, knows it."""
    import ray

    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return str(address), socket.gethostname(), str(ray.get_runtime_context().get_node_id())
