"""One prefetch process, `python -m rubato.data.prefetch_process`: reads what it is told to until its socket closes.

from the training process    one line of JSON: all that it is to deliver, (ticket, step, microbatch, count) each, in the
                             order of need
to it                        READY once; then for each ticket DELIVERED with a segment that holds the batch, or FAILED
                             with one that holds the traceback

What was withdrawn and is wanted again has another ticket: what was on its way meanwhile answers the old one.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import traceback
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import wait
from typing import Any

import torch

from rubato.data.segment import read_segment, write_segment
from rubato.data.source import Source
from rubato.launch.tether import tether_to_supervisor

PREFETCH_VARIABLE = "RUBATO_PREFETCH_FDS"
READY, DELIVERED, FAILED = 0, 1, 2
_HEADER = struct.Struct("<2q")

Wish = tuple[int, int, int, int]
"""(ticket, step, microbatch, count)."""


@dataclass(frozen=True)
class Settings:
    """What arithmetic in a dataset depends on."""

    threads: int
    deterministic_mode: int
    """As `torch.get_deterministic_debug_mode` has it: 0 off, 1 warns of what is not deterministic, 2 refuses it."""
    fills_memory: bool
    dtype: torch.dtype

    def apply(self) -> None:
        """Make this process compute as the one that they were taken from."""
        deterministic: Any = importlib.import_module("torch.utils.deterministic")
        torch.set_num_threads(self.threads)
        # `use_deterministic_algorithms` would load the compiler, which takes as long as torch itself. Where a dataset
        # loads it, it reads the variable.
        torch.set_deterministic_debug_mode(self.deterministic_mode)
        if self.deterministic_mode:
            os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
        deterministic.fill_uninitialized_memory = self.fills_memory
        torch.set_default_dtype(self.dtype)


def send(connection: socket.socket, kind: int, ticket: int = 0, descriptor: int | None = None) -> None:
    """Send a message, with a segment's descriptor or without."""
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    connection.sendmsg([_HEADER.pack(kind, ticket)], rights)


def receive(connection: socket.socket) -> tuple[int, int, int] | None:
    """Receive a message: kind, ticket, descriptor (-1: none). None where the other end is gone."""
    data, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, 1)
    while data and len(data) < _HEADER.size:
        more = connection.recv(_HEADER.size - len(data))
        data = data + more if more else b""
    if not data:
        return None
    kind, ticket = _HEADER.unpack(data)
    return kind, ticket, descriptors[0] if descriptors else -1


class Wishes:
    """The newest wishes, and the tickets of those that were answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._wished: list[Wish] = []
        self._answered: set[int] = set()

    def next(self) -> Wish | None:
        """The first that is not answered; blocks while there is none. None: nobody wishes more."""
        while True:
            unanswered = [wish for wish in self._wished if wish[0] not in self._answered]
            if not wait([self._connection], 0 if unanswered else None):
                self._answered.add(unanswered[0][0])
                return unanswered[0]
            data = self._connection.recv(1 << 16)
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                self._wished = [(ticket, *key) for ticket, *key in json.loads(lines[-1])]
                self._answered.intersection_update(wish[0] for wish in self._wished)


def serve(connection: socket.socket, source: Source) -> None:
    """Answer wishes until the other end closes."""
    send(connection, READY)
    wishes = Wishes(connection)
    while (wish := wishes.next()) is not None:
        ticket, *key = wish
        try:
            kind, descriptor = DELIVERED, write_segment(source.read(*key))
        except Exception:
            kind, descriptor = FAILED, write_segment(traceback.format_exc())
        try:
            send(connection, kind, ticket, descriptor)
        finally:
            os.close(descriptor)


def main() -> None:
    """Become what the training process is as far as reading goes, and serve."""
    tether_to_supervisor()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's to act on
    theirs, setup, packed = map(int, os.environ[PREFETCH_VARIABLE].split(","))
    connection = socket.socket(fileno=theirs)
    connection.set_inheritable(False)
    preparation, settings = read_segment(setup)
    spawn.prepare(preparation)
    settings.apply()
    source = read_segment(packed)
    os.close(setup)
    os.close(packed)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(connection, source)


if __name__ == "__main__":
    # Under its own name, for what pickles name is this module and not `__main__`.
    importlib.import_module("rubato.data.prefetch_process").main()
