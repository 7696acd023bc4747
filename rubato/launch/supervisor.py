"""Starts one training process, carries commands and messages, captures its output, and knows for sure when it is gone.

Two threads. *Life* spawns the process and waits for its end: the parent-death signal of a fresh process fires when the
creating thread ends, so that thread lives as long as the process (that of a fork fires with the main thread). The
*pump* alone reads the control socket and the pipes, so all that the process said is delivered in order, and `Exited`
after it. Both end in `Exited` whatever happens to them: somebody waits for it. Where the kernel does not end a killed
process a timer says so, and life waits on for nobody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rubato.launch.forkserver import ForkServer, ForkServerGone
from rubato.launch.output import OutputLine
from rubato.launch.process import ChildProcess, signal_name, spawn_fresh
from rubato.launch.pump import Deliver, Pump
from rubato.launch.stacks import STACKS_VARIABLE, StackAnswers, may_signal
from rubato.launch.tether import CONTROL_VARIABLE, GUARD_VARIABLE, PARENT_VARIABLE, PROGRESS_VARIABLE
from rubato.wire import worker as wire
from rubato.wire.progress import ProgressWord, shared_memory
from rubato.wire.units import utc_timestamp

CHILD_COMMAND = (sys.executable, "-P", "-m", "rubato.launch.child")
"""-P: the folder it starts in comes by PYTHONPATH, after which a user's `random.py` cannot break the start itself."""

DRAIN_S = 2.0
"""After the whole group was killed, pipes stay open only in processes that left the group: not worth more waiting."""
STALL_S = 5.0
"""A gap between two looks at the progress word that says this process itself was stopped or starved."""
UNENDED_S = 10.0
"""After SIGKILL: time to give much memory back. Who is there still waits in the kernel, on a mount or in a driver,
however long that takes, and never returns to its own code.
"""
STACKS_S = 1.0
"""Time for the fault handler to write the stacks of a hung process."""
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True)
class ChildPlan:
    """All that is needed to start a training process."""

    start: wire.Start
    node: str
    """Name of the host, as shown to users."""
    working_dir: Path
    environment: Mapping[str, str] = field(repr=False)
    """May hold secrets."""
    command: tuple[str, ...] = CHILD_COMMAND
    forkserver: ForkServer | None = None
    """Forks it, where it can, instead of the command. It has the working folder and the environment."""
    node_id: str = ""
    """Of its Ray node, if it is on one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, those in which it differs from the other workers'."""


class ChildSupervisor:
    """One training process from its spawn to its confirmed end.

    `deliver` is called from threads of the supervisor, one call at a time, and must return soon: first `Spawned`, then
    messages and output lines, then `Exited`, which is the last; where nothing could be started, `Exited` alone.
    """

    def __init__(self, plan: ChildPlan, deliver: Deliver) -> None:
        self._plan = plan
        self._deliver = deliver
        self._lock, self._one_at_a_time = threading.Lock(), threading.Lock()
        self._process: ChildProcess | None = None
        self._is_reaped = self._is_given_up = False
        self._unended: threading.Timer | None = None
        self._exited = threading.Event()
        """`Exited` was delivered."""
        self._kill_wish = self._why_afresh = ""
        self._looked_ns = 0
        self._stall = (0, 0)
        """When this process was last stalled (ns), and for how long."""
        with contextlib.ExitStack() as held:
            self._progress_fd = shared_memory()
            held.callback(os.close, self._progress_fd)
            self._word = ProgressWord(self._progress_fd)
            held.callback(self._word.close)
            # When the other end is closed, by whomever, the process's group is killed.
            self._guarded, _ = map(held.enter_context, socket.socketpair())
            self._pump = Pump(self.incarnation, self._hear, self.kill, self._beat)
            held.callback(self._pump.finish, 0.0)
            self._stacks = StackAnswers(self.incarnation, self._tell, self._signal_process)
            held.callback(self._stacks.close)
            self._held = held.pop_all()
        self._life = threading.Thread(target=self._live, name=f"life-{self.incarnation}", daemon=True)
        self.send(plan.start)

    @property
    def incarnation(self) -> str:
        """Of the worker."""
        return self._plan.start.incarnation

    @property
    def pid(self) -> int | None:
        """Of the training process; None before it exists."""
        return self._process.pid if self._process else None

    @property
    def is_over(self) -> bool:
        """`Exited` was delivered."""
        return self._exited.is_set()

    @property
    def is_gone(self) -> bool:
        """The process was reaped, or could not be started: it holds no GPU. Where the kernel does not end it, that is
        long after `Exited`; else before it.
        """
        return self._is_reaped

    def start(self) -> None:
        """Spawn the process, in the background.

        Raises:
            RuntimeError: there is no thread to be had; nothing is delivered.
        """
        try:
            self._life.start()
        except RuntimeError:
            self._held.close()
            raise

    def send(self, command: wire.Command) -> None:
        """Queue a command; never blocks. Commands to a process that is gone vanish."""
        self._pump.send(command)
        if isinstance(command, wire.TellStacks):
            self._stacks.ask(command.number)

    def kill(self, because: str = "", *, with_stacks: bool = False) -> None:
        """End the whole process group with SIGKILL; where the kernel does not end it, `Exited` says so.

        Args:
            because: why.
            with_stacks: have the stacks of all threads written to its standard error before.
        """
        with self._lock:
            self._kill_wish = because or "it was asked to"
            if self._process is None or self._is_reaped:
                return
            if not with_stacks:
                self._kill_group()
                return
            # The process may be stopped: then this stays pending, and the timer ends it.
            os.kill(self._process.pid, signal.SIGABRT)
        timer = threading.Timer(STACKS_S, self.kill, (because,))
        timer.daemon = True
        timer.start()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kill it and wait for the end. Returns whether `Exited` was delivered."""
        self.kill("its supervisor closed")
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. Returns whether `Exited` was delivered."""
        return self._life.ident is not None and self._exited.wait(timeout_s)

    def _hear(self, said: wire.Message | OutputLine) -> None:
        """Pass on what the process said."""
        if not isinstance(said, wire.Stacks) or self._stacks.on_answered(said.number):
            self._tell(said)

    def _tell(self, event: wire.Message | OutputLine) -> None:
        with self._one_at_a_time:
            self._deliver(event)

    def _beat(self) -> wire.Beat | None:
        """A sign of life, from what the process has written; time in which nobody ran here does not count."""
        now, before = time.monotonic_ns(), self._looked_ns
        self._looked_ns = now
        if before and now - before > STALL_S * 1e9:
            self._stall = (now, now - before)
        said = self._word.read()
        if said is None:
            return None
        stalled_at, stalled_ns = self._stall

        def since_s(moment: int) -> float:
            pardon = stalled_ns if moment < stalled_at else 0
            return max(0.0, round((now - moment - pardon) / 1e9, 3))

        return wire.Beat(
            self.incarnation,
            said.generation,
            said.step,
            said.stage,
            since_s(said.since_ns),
            said.microbatch,
            since_s(said.pulse_ns),
            said.usual,
            None if self.pid is None else resident_bytes(self.pid),
        )

    def _live(self) -> None:
        try:
            exited = self._supervise()
        except Exception as error:  # whatever it is: there must be an end, and it must be told
            exited = self._abandon(error)
        if exited is not None:
            self._finish(exited)

    def _finish(self, exited: wire.Exited) -> None:
        """Say the last word."""
        if self._unended is not None:
            self._unended.cancel()
        # Stacks come from another thread: none of them after the last word.
        self._held.close()
        try:
            self._tell(exited)
        finally:
            self._exited.set()

    def _give_up(self) -> None:
        """It was killed, and is there yet. Its thread goes on waiting, and reaps it some time."""
        with self._lock:
            if self._is_reaped or self._process is None:
                return
            self._is_given_up, pid = True, self._process.pid
        self._pump.finish(0.0)
        what = (
            f"the kernel has not ended process {pid} within {UNENDED_S:g} s of SIGKILL: it waits for a file system (is "
            "the server of a mount gone?) or a driver, and holds its memory and its GPU until that answers"
        )
        self._tell(OutputLine(self.incarnation, utc_timestamp(), "system", what))  # also where its end is no loss
        output, cause = tuple(self._pump.last_lines), f"{self._kill_wish}; {what}"
        self._finish(wire.Exited(self.incarnation, None, None, last_output=output, cause=cause))

    def _supervise(self) -> wire.Exited | None:
        """Returns how it ended, once it has; None where that was not waited for."""
        process = self._spawn()
        oom_kills = count_oom_kills()
        self._tell(wire.Spawned(self.incarnation, process.pid, os.getpid(), self._plan.node, self._plan.node_id))
        if self._why_afresh:
            self._pump.note(f"started afresh, for the fork server does not serve: {self._why_afresh}")
        self._pump.start(process.stdout, process.stderr)
        # The end is seen without reaping: until the group is killed the pid must not be given to anybody else.
        process.wait_for_end()
        with self._lock:
            self._signal_group(signal.SIGKILL)
            code = process.reap()
            self._is_reaped = True
            if self._is_given_up:
                return None
        self._pump.finish(DRAIN_S)
        cause = self._pump.nonsense
        if code == -signal.SIGKILL and not self._kill_wish and count_oom_kills() > oom_kills:
            cause = cause or "the kernel killed it, most likely because the host ran out of memory"
        return wire.Exited(
            self.incarnation,
            exit_code=code if code >= 0 else None,
            signal=signal_name(-code) if code < 0 else None,
            last_output=tuple(self._pump.last_lines),
            cause=cause,
        )

    def _abandon(self, error: Exception) -> wire.Exited:
        """End what cannot be started, or watched."""
        with self._lock:
            process = self._process
            if isinstance(error, ChildProcessError):
                self._is_reaped = True  # by the kernel, as where SIGCHLD is ignored: the pid is not ours any more
            if process is not None and not self._is_reaped:
                self._signal_group(signal.SIGKILL)
                with contextlib.suppress(OSError):
                    process.reap()
            self._is_reaped = True
        self._pump.finish(0.0)
        if process is None:
            return wire.Exited(
                self.incarnation, None, None, cause=f"the training process could not be started: {error}"
            )
        for pipe in (process.stdout, process.stderr):
            pipe.close()
        cause = f"the training process could not be watched: {type(error).__name__}: {error}"
        return wire.Exited(self.incarnation, None, None, last_output=tuple(self._pump.last_lines), cause=cause)

    def _spawn(self) -> ChildProcess:
        plan = self._plan
        variables = {
            **plan.variables,
            PARENT_VARIABLE: str(os.getpid()),
            "RUBATO_JOB_ID": plan.start.job_id,
            "RUBATO_WORKER_ID": plan.start.worker_id,
            "RUBATO_INCARNATION": self.incarnation,
        }
        descriptors = {
            CONTROL_VARIABLE: self._pump.child_end.fileno(),
            PROGRESS_VARIABLE: self._progress_fd,
            STACKS_VARIABLE: self._stacks.fd,
            GUARD_VARIABLE: self._guarded.fileno(),
        }
        process = self._fork(plan.forkserver, variables, descriptors) if plan.forkserver is not None else None
        if process is None:
            process = spawn_fresh(plan.command, plan.working_dir, {**plan.environment, **variables}, descriptors)
        self._guarded.close()
        with self._lock:
            self._process = process
            if self._kill_wish:
                self._kill_group()
        return process

    def _fork(
        self, server: ForkServer, variables: Mapping[str, str], descriptors: Mapping[str, int]
    ) -> ChildProcess | None:
        """A fork; None where it must be started afresh. Raises OSError where it is to be killed anyhow."""
        try:
            process = server.spawn(variables, descriptors, is_wanted=lambda: not self._kill_wish)
        except ForkServerGone as error:
            self._why_afresh = str(error)
            return None
        if process is None:
            raise InterruptedError(self._kill_wish)
        return process

    def _signal_process(self, number: int) -> int | None:
        """Send a signal to the training process alone, if it handles it; its pid, or None."""
        with self._lock:
            if self._process is None or self._is_reaped or not may_signal(self._process.pid):
                return None
            os.kill(self._process.pid, number)
            return self._process.pid

    def _kill_group(self) -> None:
        """With the lock held."""
        self._signal_group(signal.SIGKILL)
        if self._unended is None:
            self._unended = threading.Timer(UNENDED_S, self._give_up)
            self._unended.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread is to be had: it is waited for however long it takes
                self._unended.start()

    def _signal_group(self, number: signal.Signals) -> None:
        """With the lock held."""
        if self._process is not None and not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def resident_bytes(pid: int) -> int | None:
    """Memory of a process that is in RAM, shared pages included; None where it is gone or the kernel does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def count_oom_kills() -> int:
    """Processes the kernel has killed on this host for lack of memory, so far; 0 where it does not say."""
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
