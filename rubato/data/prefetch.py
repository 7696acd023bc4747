"""Reading ahead in processes, so that training does not wait for its samples.

Processes, because torch's generator is global: a thread that reads samples would take numbers from the step. Each is a
fresh interpreter that inherits one end of a socket (a forked one would hold all sockets of the job) and has a copy of
the dataset. It is told, whole, what it is to read; it answers with segments of memory.

What is read is a function of (step, v), so what was read ahead is right whenever it is wanted at all: a resize or a
recovery only changes what is wanted. Whatever a process does not deliver (it is still starting, was killed, hangs, or
the dataset raised) the training process reads itself: nothing here decides whether a job goes on, or with what bits.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import spawn
from multiprocessing.connection import wait
from typing import Any

import torch

from rubato.data import prefetch_process as process
from rubato.data.segment import read_segment, write_segment
from rubato.data.source import Source
from rubato.errors import ModelError
from rubato.launch.process import signal_name
from rubato.launch.tether import PARENT_VARIABLE
from rubato.wire.events import EventKind

Key = tuple[int, int, int]
"""(step, microbatch, how many from there on)."""
Tell = Callable[[EventKind, str], None]

AHEAD = 2
"""Microbatches each process works on or holds ready: while one is taken the next is being read."""
STALL_S = 10.0
"""A process that owes a microbatch for so long is taken for dead, unless samples of this run are known to be slow."""
STALL_FACTOR = 8.0
"""How often the longest time that a microbatch took so far it may take: as with the stages of a worker."""
MAX_LOSSES = 3
"""Processes lost in a row, or microbatches that only they failed to read, before reading ahead is given up."""
END_S = 0.5
"""For a process to end by itself when its socket closes."""
_POLL_S = 0.5


def share_out(wanted: Sequence[Key], assigned: Mapping[Key, int], processes: Iterable[int]) -> dict[Key, int]:
    """Who reads what: keys stay with their process, new ones go to the one with the fewest.

    Args:    wanted: keys in the order in which they will be needed.  assigned: process by key.  processes: living ones.
    Returns: a process for each wanted key; empty where there are no processes.
    """
    loads = dict.fromkeys(processes, 0)
    if not loads:
        return {}
    kept = {key: assigned[key] for key in wanted if assigned.get(key) in loads}
    for one in kept.values():
        loads[one] += 1
    for key in wanted:
        if key not in kept:
            kept[key] = min(loads, key=lambda one: (loads[one], one))
            loads[kept[key]] += 1
    return {key: kept[key] for key in wanted}


@dataclass
class _Reader:
    """The training process's end of one process."""

    number: int
    child: subprocess.Popen[bytes]
    connection: socket.socket
    is_ready: bool = False
    told: tuple[process.Wish, ...] = ()
    """What it was told last to deliver."""


@dataclass
class _Arrival:
    """What came back for a key: a segment with the batch, or with what went wrong."""

    descriptor: int
    is_failure: bool


@dataclass(frozen=True)
class _Asked:
    """Of a process, for a key."""

    ticket: int
    at: float
    """In seconds of the monotonic clock."""


@dataclass
class Prefetcher:
    """A source whose microbatches are read ahead. All of it runs on the main thread.

    Args:
        source: what is read; it must pickle.
        count: processes, >= 1.
        upcoming: the keys that this worker will read next, in order, as things stand.
        tell: takes events.
        waits: called now and then while a process is waited for.
        reads: called before the training process reads itself what none has delivered.
        describe: a key in words.
    Raises:
        ModelError: the dataset or collate cannot be given to a process.
    """

    source: Source
    count: int
    upcoming: Callable[[], Iterator[Key]]
    tell: Tell
    waits: Callable[[], None] = lambda: None
    reads: Callable[[], None] = lambda: None
    describe: Callable[[Key], str] = lambda key: f"step {key[0]}, microbatch {key[1]}"
    read_ahead: int = field(default=0, init=False)
    """Microbatches that came from a process, so far."""
    read_here: int = field(default=0, init=False)
    """Microbatches that the training process read itself."""

    def __post_init__(self) -> None:
        self._readers: dict[int, _Reader] = {}
        self._owed: dict[Key, int] = {}
        self._asked: dict[Key, _Asked] = {}
        self._longest_s = 0.0
        """That a microbatch took, here or from when a process was asked for it."""
        self._last_ticket = 0
        self._arrived: dict[Key, _Arrival] = {}
        self._last_number = self._losses = self._failures = 0
        self._payload: tuple[int, ...] = _pack_payload(self.source)
        for _ in range(self.count):
            if not self._has_spawned():
                break

    # --- what the engine calls ----------------------------------------------------------------------------------------

    def read(self, step: int, v: int, count: int = 1) -> Any:
        """See `Source`."""
        key = (step, v, count)
        self._take_in(timeout_s=0)
        self._plan(key)
        arrival = self._await(key)
        if arrival is not None and not arrival.is_failure:
            self._failures = 0
            self.read_ahead += 1
            return _open(arrival)
        self.read_here += 1
        self.reads()
        began = time.monotonic()
        batch = self.source.read(step, v, count)
        self._took(time.monotonic() - began)
        if arrival is not None:
            self._only_here(key, _open(arrival))
        return batch

    def rest(self) -> None:
        """Nothing more is wanted for now: drop what was read ahead; the processes stay."""
        for arrival in self._arrived.values():
            os.close(arrival.descriptor)
        self._arrived.clear()
        self._owed.clear()
        self._asked.clear()
        for reader in self._readers.values():
            if reader.is_ready:
                self._tell_wish(reader)

    def close(self) -> None:
        """End the processes and drop what they have read; `read` goes on without them."""
        for reader in self._readers.values():
            reader.connection.close()
        deadline = time.monotonic() + END_S
        for reader in self._readers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                reader.child.wait(max(0.0, deadline - time.monotonic()))
                continue
            reader.child.kill()
            reader.child.wait()
        self._readers.clear()
        self._owed.clear()
        for arrival in self._arrived.values():
            os.close(arrival.descriptor)
        self._arrived.clear()
        for descriptor in self._payload:
            os.close(descriptor)
        self._payload = ()

    @property
    def pids(self) -> list[int]:
        """Of the living processes."""
        return [reader.child.pid for reader in self._readers.values()]

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, now: Key) -> None:
        """Drop what is not wanted any more, and tell each process what it is to read."""
        wanted = list(dict.fromkeys([now, *islice(self.upcoming(), 1 + AHEAD * self.count)]))
        for key in [key for key in self._arrived if key not in wanted]:
            os.close(self._arrived.pop(key).descriptor)
        # What nobody has begun is read here, at once, if it is needed now.
        missing = [key for key in wanted if key not in self._arrived and (key != now or key in self._owed)]
        ready = [number for number, reader in self._readers.items() if reader.is_ready]
        before, self._owed = self._owed, share_out(missing, self._owed, ready)
        for key, number in self._owed.items():
            if before.get(key) != number:
                self._last_ticket += 1
                self._asked[key] = _Asked(self._last_ticket, time.monotonic())
        self._asked = {key: self._asked[key] for key in self._owed}
        for number in ready:
            self._tell_wish(self._readers[number])

    def _tell_wish(self, reader: _Reader) -> None:
        wishes = tuple((self._asked[key].ticket, *key) for key, number in self._owed.items() if number == reader.number)
        if wishes == reader.told:
            return
        reader.told = wishes
        with contextlib.suppress(OSError):  # it is gone: the next look at its socket tells
            reader.connection.sendall(json.dumps(wishes).encode() + b"\n")

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _await(self, key: Key) -> _Arrival | None:
        """What arrived for the key, after a wait where a process owes it; None: nobody will deliver it."""
        limit_s = max(STALL_S, STALL_FACTOR * self._longest_s)
        deadline = time.monotonic() + limit_s
        while key not in self._arrived:
            number = self._owed.get(key)
            if number is None:
                return None
            if time.monotonic() > deadline:
                self._lose(self._readers[number], f"it did not deliver a microbatch within {limit_s:.3g} s")
                return None
            self.waits()
            self._take_in(_POLL_S)
        return self._arrived.pop(key)

    def _take_in(self, timeout_s: float) -> None:
        """Take in all that the processes have sent, after waiting for a first sign."""
        while self._readers:
            readable = wait([reader.connection for reader in self._readers.values()], timeout_s)
            if not readable:
                return
            timeout_s = 0
            self._receive(next(reader for reader in self._readers.values() if reader.connection in readable))

    def _receive(self, reader: _Reader) -> None:
        """Take one message, or the end of the process."""
        try:
            message = process.receive(reader.connection)
        except ConnectionResetError:  # it died with wishes unread
            message = None
        if message is None:
            self._lose(reader)
            return
        kind, ticket, descriptor = message
        key = next((key for key in self._owed if self._asked[key].ticket == ticket), None)
        if kind == process.READY:
            reader.is_ready = True
        elif key is not None:
            del self._owed[key]
            self._took(time.monotonic() - self._asked[key].at)
            self._arrived[key] = _Arrival(descriptor, is_failure=kind == process.FAILED)
            self._losses = 0
        else:
            os.close(descriptor)  # the wish for it was withdrawn

    def _took(self, seconds: float) -> None:
        self._longest_s = max(self._longest_s, seconds)

    # --- losses -------------------------------------------------------------------------------------------------------

    def _lose(self, reader: _Reader, cause: str = "") -> None:
        """A process is gone, or is ended here: start another, unless that has not helped before."""
        reader.connection.close()
        reader.child.kill()
        code = reader.child.wait()
        del self._readers[reader.number]
        self._owed = {key: number for key, number in self._owed.items() if number != reader.number}
        self._losses += 1
        cause = cause or f"it ended with {signal_name(-code) if code < 0 else f'exit code {code}'}"
        if self._losses >= MAX_LOSSES:
            self._give_up(f"{self._losses} processes were lost without delivering anything, the last because {cause}")
            return
        if self._has_spawned():
            self.tell(EventKind.PREFETCH_LOST, f"the prefetch process {reader.child.pid} was replaced: {cause}")

    def _only_here(self, key: Key, failure: str) -> None:
        """A process could not read what this one could: tell it, and stop asking if that is the rule."""
        self._failures += 1
        text = f"{self.describe(key)} could be read in the training process only:\n{failure.rstrip()}"
        if self._failures >= MAX_LOSSES:
            self._give_up(text)
        else:
            self.tell(EventKind.PREFETCH_FAILED, text)

    def _give_up(self, cause: str) -> None:
        self.tell(EventKind.PREFETCH_OFF, f"samples are not read ahead any more: {cause}")
        self.close()

    def _has_spawned(self) -> bool:
        """Start a process; where this machine starts none, reading ahead is given up."""
        try:
            self._spawn()
        except OSError as error:  # no memory, processes or descriptors are left
            self._give_up(f"no process could be started: {error.strerror or error}")
            return False
        return True

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            passed = (theirs.fileno(), *self._payload)
            environment = {
                **os.environ,
                process.PREFETCH_VARIABLE: ",".join(map(str, passed)),
                PARENT_VARIABLE: str(os.getpid()),
            }
            child = subprocess.Popen(
                (sys.executable, "-P", "-m", process.__name__),
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=passed,
            )
            undo.pop_all()
        self._last_number += 1
        self._readers[self._last_number] = _Reader(self._last_number, child, ours)


def _open(arrival: _Arrival) -> Any:
    try:
        return read_segment(arrival.descriptor)
    finally:
        os.close(arrival.descriptor)


def _pack_payload(source: Source) -> tuple[int, int]:
    """All that a process needs to read as this one does, in two segments: how to set itself up, and the source."""
    deterministic: Any = importlib.import_module("torch.utils.deterministic")
    preparation = spawn.get_preparation_data("prefetch")
    preparation.pop("authkey", None)  # of multiprocessing's own sockets, which are not used here
    settings = process.Settings(
        threads=torch.get_num_threads(),
        deterministic_mode=torch.get_deterministic_debug_mode(),
        fills_memory=deterministic.fill_uninitialized_memory,
        dtype=torch.get_default_dtype(),
    )
    try:
        packed = write_segment(source)
    except Exception as error:
        raise ModelError(
            "prefetch=... gives each process a copy of dataset and collate, and these cannot be pickled "
            f"({type(error).__name__}: {error}): define their classes and functions at the top of a module, open files "
            "and connections when the first sample is read, or leave prefetch out"
        ) from error
    return write_segment((preparation, settings)), packed
