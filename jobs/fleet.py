"""Workers as Ray actors. One thread does all the talking; the host's loop only queues wishes into it.

Every call to a worker is a future whose end is queued into the same thread, so no lock is needed and no call waits. A
worker that cannot be placed yet is simply one that has not said `Spawned`.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from jobs.cluster_view import observe_unplaced
from jobs.door import DoorWatch
from jobs.names import NAMESPACE, parse_listing, worker_name
from jobs.supervisor import (
    MAX_POLL_S,
    Allegiance,
    AttachReply,
    PollReply,
    WorkerOrder,
    WorkerProcesses,
    WorkerSupervisor,
    left_behind,
)
from rubato.cli.keeper import process_table
from rubato.errors import StaleAttempt
from rubato.launch.host import Post
from rubato.wire import worker as wire
from rubato.wire.spec import ResourcesSpec

ATTACH_S = 8.0
"""How long a supervisor may take to answer a new controller, else it is fenced: nobody leads the others meanwhile. Of
this it waits `SNAPSHOT_WAIT_S` for its training process.
"""
KILL_S = 5.0
"""How long a supervisor may take to end its process before it is ended itself."""
STALL_S = 1.0
"""Beyond its time-out a wait does not last so long, unless this process itself was stopped or starved."""
RETRY_S = 0.1
NODE_ID_LABEL = "ray.io/node-id"
"""Ray's own label of every node."""
CONFIRM_S = 15.0
"""`ray.kill` is told at once; the process may live a few seconds more."""


def worker_options(resources: ResourcesSpec) -> dict[str, Any]:
    """Options of a worker actor, besides its name and where it may not be."""
    options: dict[str, Any] = {
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 8,
        "num_cpus": resources.cpu,
        "num_gpus": resources.gpu,
    }
    if resources.memory is not None:
        options["memory"] = resources.memory
    if resources.accelerator_type is not None:
        options["accelerator_type"] = resources.accelerator_type
    return options


def placement_options(avoided: tuple[str, ...]) -> dict[str, Any]:
    """Options that keep an actor off some nodes, by their ids."""
    return {"label_selector": {NODE_ID_LABEL: f"!in({','.join(avoided)})"}} if avoided else {}


@dataclass(frozen=True)
class Adopted:
    """A living worker of a predecessor."""

    handle: Any
    incarnation: str
    reply: AttachReply


class RayFleet:
    """The workers of one job, under one attempt.

    Args:
        post: where what happens goes.
        on_stale: a newer attempt leads the workers.
        on_failure: the talk with all of them has ended, by an error that nobody foresaw.
    """

    def __init__(
        self,
        template: WorkerOrder,
        resources: ResourcesSpec,
        post: Post,
        on_stale: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.template = template
        self.post = post
        self.on_stale = on_stale
        self._on_failure = on_failure
        self.attempt = template.start.attempt
        self._options = worker_options(resources)
        self._avoided: tuple[str, ...] = ()
        self._links: dict[str, WorkerLink] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    # --- Fleet ----------------------------------------------------------------------------------

    def spawn(self, worker_id: str, incarnation: str, step: int) -> None:
        """Make a worker actor."""
        start = replace(self.template.start, worker_id=worker_id, incarnation=incarnation, last_step=step)
        self.later(lambda: self._spawn(start))

    def kill(self, incarnation: str, because: str, *, with_stacks: bool) -> None:
        """End a worker."""
        self._with_link(incarnation, lambda link: link.kill(because, with_stacks=with_stacks))

    def send(self, incarnation: str, command: wire.Command) -> None:
        """Pass a command on."""
        self._with_link(incarnation, lambda link: link.send(command))

    def avoid(self, nodes: tuple[str, ...]) -> None:
        """Make no more workers on these nodes. Those that are there stay; for one without a place another is made."""

        def turn() -> None:
            if self._avoided != nodes:
                self._avoided = nodes
                for link in self._links.values():
                    link.leave_the_queue()

        self.later(turn)

    # --- taking over ----------------------------------------------------------------------------

    def attach_all(self) -> list[Adopted]:
        """Have every living worker of the job follow this attempt; those that do not answer are ended, and strays.

        So are those without a place, which cannot answer: they have no state, and the token of an attempt that is over.
        Nobody is touched where one of them follows a newer attempt: `on_stale` is called, and nobody is adopted.
        """
        job_id = self.template.start.job_id
        listing = parse_listing(ray.util.list_named_actors(all_namespaces=True))
        incarnations = [name.incarnation for name in listing if name.job_id == job_id and name.incarnation]
        calls: dict[Any, tuple[Any, str]] = {}
        unplaced, waiting = observe_unplaced(), []
        for incarnation in incarnations:
            try:
                handle = ray.get_actor(worker_name(job_id, incarnation), namespace=NAMESPACE)
            except ValueError:
                continue  # it ended since
            if handle._actor_id.hex() in unplaced:
                waiting.append(handle)
            else:
                calls[handle.attach.remote(self.attempt)] = (handle, incarnation)
        replies = _wait_for_all(list(calls)) if calls else {}
        if any(_is_stale(reply) for reply in replies.values()):
            self.on_stale()
            return []
        for handle in waiting:
            ray.kill(handle, no_restart=True)
        strays = left_behind(
            {
                calls[call][1]: Allegiance(reply.followed, reply.led_by)
                for call, reply in replies.items()
                if isinstance(reply, AttachReply) and reply.followed
            }
        )
        found = []
        for call, (handle, incarnation) in calls.items():
            reply = replies.get(call)
            if isinstance(reply, AttachReply) and reply.snapshot is not None and incarnation not in strays:
                found.append(Adopted(handle, incarnation, reply))
                continue
            for event in reply.backlog if isinstance(reply, AttachReply) else ():
                self.post(event)
            self._end_stray(handle, reply)
        return found

    def take_over(self, adopted: list[Adopted]) -> None:
        """Listen to adopted workers."""
        for one in adopted:
            link = WorkerLink(self, one.handle, one.incarnation, after_seq=one.reply.seq)
            link.meet(one.reply.processes)
            self._links[one.incarnation] = link
            for event in one.reply.backlog:
                self.post(event)
            self.later(link.poll)

    def _end_stray(self, handle: Any, reply: Any) -> None:
        ray.kill(handle, no_restart=True)
        if isinstance(reply, AttachReply):
            wait_until_gone(reply.processes)

    # --- the thread -----------------------------------------------------------------------------

    def later(self, task: Callable[[], None]) -> None:
        """Have something done by the fleet's thread."""
        self._work.put(task)

    def after(self, delay_s: float, task: Callable[[], None]) -> None:
        """The same, after a while."""
        timer = threading.Timer(delay_s, self.later, (task,))
        timer.daemon = True
        timer.start()

    def forget(self, incarnation: str) -> None:
        """A worker is gone; from any thread."""

        def drop() -> None:
            self._links.pop(incarnation, None)

        self.later(drop)

    def close(self) -> None:
        """Stop talking; workers are left as they are."""
        self._work.put(None)
        self._thread.join(CONFIRM_S)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            try:
                task()
            except RayError as error:
                # The cluster itself fails: pending calls fail too, and those who wait for them decide.
                print(f"fleet: {type(error).__name__}: {error}", file=sys.stderr)
            except Exception:
                # Nobody would be heard or told anything any more.
                traceback.print_exc()
                self._on_failure()
                return

    def _with_link(self, incarnation: str, task: Callable[[WorkerLink], None]) -> None:
        def run() -> None:
            if (link := self._links.get(incarnation)) is not None:
                task(link)

        self.later(run)

    def _spawn(self, start: wire.Start) -> None:
        incarnation, name = start.incarnation, worker_name(start.job_id, start.incarnation)
        try:
            where = placement_options(self._avoided)
            actor = ray.remote(WorkerSupervisor).options(name=name, **self._options, **where)
            handle = actor.remote(replace(self.template, start=start))
        except (RayError, ValueError) as error:
            self.post(wire.Exited(incarnation, None, None, cause=f"its actor could not be made: {error}"))
            return
        link = self._links[incarnation] = WorkerLink(self, handle, incarnation)
        link.poll()


class WorkerLink:
    """The talk with one worker. Used by the fleet's thread only."""

    def __init__(self, fleet: RayFleet, handle: Any, incarnation: str, after_seq: int = 0) -> None:
        self._fleet = fleet
        self._handle = handle
        self._incarnation = incarnation
        self._seq = after_seq
        self._is_placed = after_seq > 0
        self._is_over = False
        self._doom = ""
        self._is_withdrawn = False
        self._commands: list[wire.Command] = []
        self._command_seq = 0
        """Commands before the first of `_commands`: all of them were passed on."""
        self._is_sending = False
        self._processes: WorkerProcesses | None = None
        self._door: DoorWatch | None = None

    def meet(self, processes: WorkerProcesses) -> None:
        """Take in which processes the worker has, and where its door is."""
        self._processes, self._is_placed = processes, True
        if self._door is None and processes.door is not None and not self._is_over:
            self._door = DoorWatch(processes.door, lambda: self._fleet.later(self._on_gone))

    def poll(self) -> None:
        """Ask for what is new."""
        if self._is_over:
            return
        # The first answer says that the actor has a place; it is not to wait for anything else.
        wait_s = MAX_POLL_S if self._is_placed else 0.0
        self._call(self._handle.poll.remote(self._fleet.attempt, self._seq, wait_s), self._on_polled)

    def send(self, command: wire.Command) -> None:
        """Queue a command; one call is under way at a time, so they arrive in order."""
        self._commands.append(command)
        self._send_on()

    def kill(self, because: str, *, with_stacks: bool) -> None:
        """Have the supervisor end its process; where it does not, end the supervisor, and the process with it."""
        self._doom = self._doom or because
        if not self._is_placed:
            ray.kill(self._handle, no_restart=True)
            return
        self._call(self._handle.kill.remote(self._fleet.attempt, because, with_stacks), self._on_kill_heard)
        self._fleet.after(KILL_S, self._kill_actor)

    def leave_the_queue(self) -> None:
        """End it where it has no place yet: it was asked for before it was known which nodes to avoid."""
        if not self._is_placed and not self._is_over:
            self._is_withdrawn = self._is_withdrawn or not self._doom
            self.kill("it had no place yet when the nodes that take workers changed", with_stacks=False)

    def _on_kill_heard(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None and _is_stale(error):  # anything else is seen by the poll, or the actor is ended
            self._on_error(error, self.poll)

    def _kill_actor(self) -> None:
        if not self._is_over:
            ray.kill(self._handle, no_restart=True)

    def _call(self, ref: Any, then: Callable[[Future[Any]], None]) -> None:
        """Queue what follows a call into the fleet's thread."""
        future: Future[Any] = ref.future()
        future.add_done_callback(lambda done: self._fleet.later(lambda: then(done)))

    def _on_polled(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self._on_error(error, self.poll)
            return
        reply: PollReply = done.result()
        self.meet(reply.processes)
        for one in reply.events:
            if one.seq > self._seq:
                self._seq = one.seq
                self._pass_on(one.event)
        self.poll()

    def _pass_on(self, event: Any) -> None:
        self._fleet.post(event)
        if isinstance(event, wire.Exited):
            self._finish()  # may raise what Ray raises: the end is told by then

    def _finish(self) -> None:
        """The training process is gone for sure: free the slot."""
        self._leave()
        self._fleet.forget(self._incarnation)
        ray.kill(self._handle, no_restart=True)

    def _send_on(self) -> None:
        if self._is_sending or not self._commands or self._is_over:
            return
        self._is_sending = True
        batch = tuple(self._commands)
        ref = self._handle.command.remote(self._fleet.attempt, self._command_seq + 1, batch)
        self._call(ref, lambda done: self._on_sent(done, len(batch)))

    def _on_sent(self, done: Future[Any], count: int) -> None:
        self._is_sending = False
        error = done.exception()
        if error is not None:
            self._on_error(error, self._send_on)
            return
        self._command_seq += count
        del self._commands[:count]
        self._send_on()

    def _on_error(self, error: BaseException, again: Callable[[], None]) -> None:
        if self._is_over:
            return
        if _is_stale(error):
            self._leave()
            self._fleet.on_stale()
        elif isinstance(error, ActorDiedError):
            self._lose(_first_line(error))
        else:
            if not isinstance(error, ActorUnavailableError):
                print(f"fleet: {self._incarnation}: {type(error).__name__}: {error}", file=sys.stderr)
            self._fleet.after(RETRY_S, again)

    def _on_gone(self) -> None:
        """Its host says that the supervisor is gone; Ray may learn it much later."""
        if not self._is_over:
            self._lose("its host refuses connections to it")
            ray.kill(self._handle, no_restart=True)

    def _lose(self, why: str) -> None:
        """The supervisor died, and its process dies with it. Waiting for that must not hold up the talk with others."""
        self._leave()
        threading.Thread(target=self._bury, args=(why,), name="bury", daemon=True).start()

    def _leave(self) -> None:
        """Nothing is said to this worker any more."""
        self._is_over = True
        if self._door is not None:
            self._door.close()

    def _bury(self, why: str) -> None:
        """Say that it is gone once both processes are."""
        wait_until_gone(self._processes)
        self._fleet.forget(self._incarnation)
        cause = self._doom or f"its supervisor was lost ({why})"
        self._fleet.post(wire.Exited(self._incarnation, None, None, cause=cause, is_withdrawn=self._is_withdrawn))


def wait_until_gone(processes: WorkerProcesses | None, timeout_s: float = CONFIRM_S) -> bool:
    """Wait until a worker's processes are gone; False at once where they cannot be seen from here."""
    if processes is None or processes.boot_id != process_table.pid_namespace():
        return False
    watched = (processes.supervisor, processes.child)
    return not process_table.wait_until_gone([one for one in watched if one is not None], timeout_s)


def _wait_for_all(calls: list[Any]) -> dict[Any, Any]:
    """What calls returned or raised, within `ATTACH_S`; those without an answer by then are left out.

    Time in which this process was stopped does not count: the answers lie there, and must be looked at before anybody
    is taken for dead.
    """
    while True:
        began = time.monotonic()
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=ATTACH_S)
        if len(done) == len(calls) or time.monotonic() - began < ATTACH_S + STALL_S:
            return {call: _result_of(call) for call in done}


def _is_stale(reply: Any) -> bool:
    """Whether a worker follows a newer attempt."""
    cause = reply.cause if isinstance(reply, RayTaskError) else reply
    return isinstance(cause, StaleAttempt)


def _result_of(call: Any) -> Any:
    try:
        return ray.get(call)
    except RayError as error:
        return error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
