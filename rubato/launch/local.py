"""`rubato run`: one attempt at a job with processes of this machine, without a service."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rubato.checkpoint.due import due_s, within
from rubato.checkpoint.storage import open_folder
from rubato.engine.coordinator import Coordinator, Emit, Terms, Wish
from rubato.engine.coordinator.orders import StorageTaken
from rubato.errors import UserError
from rubato.home import write_atomically
from rubato.launch.archive import ArchiveTerms, StorageArchive, check_root, check_terms, job_terms
from rubato.launch.claim import Claim, describe_former, describe_taken
from rubato.launch.control import RUN_FILE, ControlServer
from rubato.launch.devices import share_of_slot, visible_devices
from rubato.launch.environment import child_environment
from rubato.launch.forkserver import ForkServer
from rubato.launch.host import Host, Post
from rubato.launch.journal import LocalJournal
from rubato.launch.output import OutputLine
from rubato.launch.progress import ProgressPrinter
from rubato.launch.records import run_folder
from rubato.launch.supervisor import CHILD_COMMAND, ChildPlan, ChildSupervisor
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure, Observed, Outcome, WorkerReport
from rubato.wire.codec import to_json
from rubato.wire.spec import JobSpec, spec_to_json
from rubato.wire.storage import StorageUri
from rubato.wire.terminal import readable

EXIT_CODES = {"succeeded": 0, "failed": 100, "paused": 101, "cancelled": 103}
CLOSE_S = 10.0


def run_local(
    spec: JobSpec,
    *,
    working_dir: Path,
    checkpoint_dir: StorageUri | None,
    home: Path,
    command: tuple[str, ...] = CHILD_COMMAND,
    tell_end: Callable[[str], None] | None = None,
) -> int:
    """Train on this machine until the job ends. SIGINT stops at the next boundary, a second one kills.

    Args:
        spec: the job.
        working_dir: where the training processes start, and where their modules are looked for first.
        checkpoint_dir: where checkpoints are kept and resumed from; default: the run's own folder.
        home: RUBATO_HOME.
        command: starts a training process.
        tell_end: told the run's id at its end, which is all that then goes to stdout; default: the id at the beginning,
            and how it ended in words.

    Returns:
        The exit code: 0 succeeded, 100 failed, 101 paused, 103 cancelled.

    Raises:
        UserError, CheckpointError: it cannot begin; the message says what to do.
    """
    for line in describe_left_out(spec, os.environ):
        print(line, file=sys.stderr)
    run = LocalRun(spec, working_dir, checkpoint_dir, home, command)
    outcome = run.run(lambda: print(run.run_id, file=sys.stderr if tell_end else sys.stdout, flush=True))
    if kept := describe_kept(outcome.state, run.run_id, run.saved_step, run.checkpoints):
        print(f"rubato: {kept}", file=sys.stderr, flush=True)
    if tell_end is not None:
        tell_end(run.run_id)
    else:
        text = readable(describe_outcome(outcome), keep_colours=sys.stdout.isatty())
        print(_printable(text), flush=True)
    return EXIT_CODES[outcome.state]


def describe_left_out(spec: JobSpec, environment: Mapping[str, str]) -> list[str]:
    """What a run cannot do of its spec without a service."""
    lines = []
    if missing := [name for name in spec.secrets if name not in environment]:
        lines.append(
            f"secrets {', '.join(missing)}: no service is asked for them, and this environment has none; set them"
        )
    if spec.limits.max_duration is not None:
        lines.append("limits.max_duration: only a service ends jobs by it; stop this run by Ctrl-C")
    return lines


class LocalRun:
    """One run and its folder: run.json, control.sock, events.jsonl, metrics.jsonl, logs.jsonl, checkpoints/.

    It forks its training processes from the server that it is given, where that has their folder and environment, else
    from one of its own.
    """

    def __init__(
        self,
        spec: JobSpec,
        working_dir: Path,
        checkpoint_dir: StorageUri | None,
        home: Path,
        command: tuple[str, ...] = CHILD_COMMAND,
        progress: TextIO | None = None,
        forkserver: ForkServer | None = None,
    ) -> None:
        if spec.checkpoint.resume_from is not None:
            raise UserError(
                f"checkpoint.resume_from ({spec.checkpoint.resume_from}) names a checkpoint of a service, which "
                "`rubato run` does not ask: copy the folder that the checkpoint's folder lies in, name the copy by "
                "--checkpoint-dir, and give --set checkpoint.resume_from=null"
            )
        # Sorts by time: the seconds come first.
        self.run_id = f"run_{int(time.time()):08x}{secrets.token_hex(3)}"
        self.folder = run_folder(home, self.run_id)
        own = StorageUri("file", str(self.folder / "checkpoints"))
        self.checkpoints = open_folder((checkpoint_dir or own).absolute())
        self._spec = spec
        if checkpoint_dir is not None:  # the run's own is new
            self._claim = within(due_s(), self._look_at_checkpoints, f"looking at {self.checkpoints}")
        self.folder.mkdir(mode=0o700, parents=True)
        if checkpoint_dir is None:
            self._claim = Claim(self.checkpoints, self.run_id)
        self._command = command
        self._working_dir = working_dir
        self._progress = progress or sys.stderr
        self._shared_forkserver = forkserver
        self._wish = Wish("run", spec.workers.initial)
        # Re-entrant: a signal handler may interrupt another one that holds it.
        self._lock = threading.RLock()
        self.saved_step: int | None = None
        """Of the newest checkpoint that this run has saved."""
        self._observed: Observed | None = None
        self._workers: tuple[WorkerReport, ...] = ()
        self._attempt = self._claim.attempt
        terms = Terms.of(self.run_id, self._attempt, spec)
        self.host = Host(Coordinator(terms, self._wish))

    def _look_at_checkpoints(self) -> Claim:
        """Make sure that this run, and no other one, may go on there."""
        self.checkpoints.prepare()
        check_root(self.checkpoints)
        check_terms(self.checkpoints, job_terms(self.run_id, self._spec))
        return Claim(self.checkpoints, self.run_id)

    def _is_taken(self) -> bool:
        """Whether the checkpoints are another run's now, which fails this one."""
        taker = self._claim.taken_by()
        if taker:
            self.host.post(StorageTaken(describe_taken(self.checkpoints, taker)))
        return bool(taker)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> Outcome:
        """Train until the end.

        Args:    on_ready: called once the run can be asked by its id.
        """
        environment = child_environment(os.environ, working_dir=self._working_dir, job_env=self._spec.env)
        with self._signals(), contextlib.closing(self._claim), self._forkserver(environment) as forkserver:
            return self._lead(environment, forkserver, on_ready)

    def _lead(
        self, environment: dict[str, str], forkserver: ForkServer | None, on_ready: Callable[[], None]
    ) -> Outcome:
        node = socket.gethostname()
        plan = ChildPlan(self._template(), node, self._working_dir, environment, self._command, forkserver)
        devices = visible_devices(environment) if self._spec.wants_cuda else ()
        fleet = LocalFleet(plan, self.host.post, devices, max(1, int(self._spec.resources_per_worker.gpu)))
        progress = ProgressPrinter(self._progress)
        journal = LocalJournal(self.folder, progress, self.host.post, self._see, stand=self._stand)
        archive = StorageArchive(
            ArchiveTerms.of(self.run_id, self.checkpoints, self._spec, self._attempt), self.host.post, self._is_taken
        )
        control = ControlServer(self.folder, self.answer)
        try:
            self._introduce(control)
            if self._claim.former:
                print(f"rubato: {describe_former(self._claim.former)}", file=self._progress, flush=True)
            on_ready()
            outcome = self.host.run(fleet, journal, archive)
            assert outcome is not None  # nobody tells a local run to let go
            self.saved_step = journal.saved_step
            return outcome
        finally:
            control.close()
            fleet.close()
            archive.close()
            journal.close()

    def _introduce(self, control: ControlServer) -> None:
        """Say where this run can be asked."""
        record = {
            "run_id": self.run_id,
            "name": self._spec.name,
            "pid": os.getpid(),
            "socket": str(control.path),
            "checkpoints": str(self.checkpoints),
            **self._wanted(),
        }
        try:
            write_atomically(self.folder / RUN_FILE, json.dumps(record), mode=0o600)
        except OSError as error:
            raise UserError(
                f"cannot write {self.folder / RUN_FILE}: {error.strerror or error}; make room, or name another folder "
                "by RUBATO_HOME"
            ) from error

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request that came over the control socket."""
        verb = request["verb"]
        if verb == "scale":
            self._scale(int(request["workers"]))
        elif verb == "pause":
            self._change(run="pause")
        elif verb == "cancel":
            self._change(run="stop", force=bool(request.get("force", False)))
        elif verb == "checkpoint":
            with self._lock:
                self._change(checkpoint_request=self._wish.checkpoint_request + 1)
        elif verb != "status":
            raise UserError(f"unknown verb {verb!r}; a run knows scale, pause, cancel, checkpoint and status")
        return {"run_id": self.run_id, "workers": to_json(self._workers), **self._stand()}

    def _stand(self) -> dict[str, Any]:
        return {"observed": to_json(self._observed), **self._wanted()}

    def _wanted(self) -> dict[str, int]:
        """How many workers it is to have, and may."""
        workers = self._spec.workers
        return {"desired_workers": self._wish.workers, "min_workers": workers.min, "max_workers": workers.upper}

    def _scale(self, workers: int) -> None:
        low, high = self._spec.workers.min, self._spec.workers.upper
        if not low <= workers <= high:
            raise UserError(f"workers must lie in {low}..{high} for this run, got {workers}; --set workers.max=N")
        self._change(workers=workers)

    def _change(self, **wishes: Any) -> None:
        with self._lock:
            if self._wish.run == "stop":
                wishes["run"] = "stop"  # a stop is never taken back
            self._wish = replace(self._wish, **wishes)
            self.host.post(self._wish)

    def _see(self, observed: Observed, workers: tuple[WorkerReport, ...]) -> None:
        self._observed, self._workers = observed, workers

    def _template(self) -> wire.Start:
        return wire.Start(
            attempt=self._attempt,
            job_id=self.run_id,
            worker_id="",
            incarnation="",
            spec=spec_to_json(self._spec),
            host="127.0.0.1",
            storage=str(self.checkpoints),
        )

    @contextlib.contextmanager
    def _forkserver(self, environment: dict[str, str]) -> Iterator[ForkServer | None]:
        """The server to fork from; None where processes must be started as the run was told, or where there is none."""
        shared = self._shared_forkserver
        if self._command != CHILD_COMMAND or sys.platform != "linux":
            yield None
        elif shared is not None and shared.serves(self._working_dir, environment):
            yield shared
        else:
            try:
                own = ForkServer(self._working_dir, environment)
            except OSError:
                yield None  # what is wrong is told of the training process that cannot be started either
                return
            with contextlib.closing(own):
                yield own

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop at the boundary, then at once, and do not break off what is closed at the end.

        Only the main thread may ask for that.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        again = self._wish.run == "stop"
        self._change(run="stop", force=again)
        if not again:
            self.host.post(Emit("job.cancel_requested", "stopping at the next boundary; once more to stop at once"))


class LocalFleet:
    """Workers as child processes of this one, all by one plan but for their names and their GPUs.

    Args:
        plan: of each.
        post: takes what they say.
        devices: GPUs that they share out.
        devices_each: what one takes of them.
    """

    def __init__(self, plan: ChildPlan, post: Post, devices: tuple[str, ...] = (), devices_each: int = 1) -> None:
        self._plan = plan
        self._post = post
        self._devices, self._devices_each = devices, devices_each
        self._workers: dict[str, ChildSupervisor] = {}
        self._lock = threading.Lock()
        self._slots: dict[int, ChildSupervisor] = {}
        """Who holds which, until its process is gone."""

    def spawn(self, worker_id: str, incarnation: str, step: int) -> None:
        """Start a process."""
        start = replace(self._plan.start, worker_id=worker_id, incarnation=incarnation, last_step=step)
        slot = self._free_slot()
        variables = share_of_slot(slot, self._devices, self._devices_each)
        plan = replace(self._plan, start=start, variables=variables)
        try:
            supervisor = self._workers[incarnation] = ChildSupervisor(plan, self._deliver)
            supervisor.start()
            self._slots[slot] = supervisor
        except (OSError, RuntimeError) as error:  # no more descriptors, or threads: those that train go on
            cause = f"the training process could not be started: {error}"
            self._deliver(wire.Exited(incarnation, None, None, cause=cause))

    def kill(self, incarnation: str, because: str, *, with_stacks: bool) -> None:
        """End a process."""
        if (supervisor := self._workers.get(incarnation)) is not None:
            supervisor.kill(because, with_stacks=with_stacks)

    def send(self, incarnation: str, command: wire.Command) -> None:
        """Pass a command on."""
        if (supervisor := self._workers.get(incarnation)) is not None:
            supervisor.send(command)

    def close(self) -> None:
        """End whatever still lives."""
        with self._lock:
            living = list(self._workers.values())
        for supervisor in living:
            supervisor.kill("the run is over")
        for supervisor in living:
            supervisor.join(CLOSE_S)

    def _free_slot(self) -> int:
        """The lowest one, so that a replacement gets the GPU of the one that was lost.

        Where a process that does not end has the last free GPU it is shared with that one, and not with who trains.
        """
        self._slots = {slot: worker for slot, worker in self._slots.items() if not worker.is_gone}
        free = next(one for one in range(len(self._slots) + 1) if one not in self._slots)
        if (free + 1) * self._devices_each <= len(self._devices):
            return free
        with self._lock:
            living = list(self._workers.values())
        return min((slot for slot, worker in self._slots.items() if worker not in living), default=free)

    def _deliver(self, event: wire.Message | OutputLine) -> None:
        if isinstance(event, wire.Exited):
            with self._lock:
                self._workers.pop(event.incarnation, None)
        self._post(event)


def _printable(text: str) -> str:
    """The same, with escapes for what standard output cannot say: a traceback may name a file by half a character."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def describe_outcome(outcome: Outcome) -> str:
    """The last line of a run."""
    if outcome.result is not None:
        return f"succeeded: step {outcome.result.step}, digest {outcome.result.digest}"
    if outcome.failure is not None:
        return f"failed: {describe_failure(outcome.failure)}"
    return outcome.state


def describe_kept(state: str, run_id: str, step: int | None, checkpoints: object) -> str:
    """What is left of a run's work, and how to go on from it."""
    if step is None:
        return "" if state == "succeeded" else f"this run has saved no checkpoint in {checkpoints}"
    if state == "succeeded":
        return f"its last checkpoint is in {checkpoints}; `rubato export {run_id}` takes the model out"
    return (
        f"the checkpoint of step {step} is kept: run it again with --checkpoint-dir {checkpoints} to go on from there"
    )


def describe_failure(failure: Failure) -> str:
    """What happened, where, and what is known of it."""
    place = f" (rank {failure.rank})" if failure.rank is not None else ""
    lines = [f"{failure.message}{place}"]
    if failure.traceback:
        lines.append(failure.traceback.rstrip())
    elif failure.last_output:
        lines += ["Its last output:", *(f"  {line}" for line in failure.last_output[-20:])]
    return "\n".join(lines)
