"""Trains, and does to itself what `config.faults` says: once, at a place in the engine that no signal can be timed to.

A fault is {"name": N, "at": PLACE, "do": ACTION, "with": arguments, "who": WHO, "step": from this step on}. It fires in
one process ("each": in each of `who`; "always": again and again), leaves the file N with the pid in `config.home`,
and is not armed while `N.unarmed` lies there. Without faults this is an ordinary program: its own oracle.

PLACE  "setup", "forward", "backward", "hook" (a gradient's), "update"
       "say MESSAGE": a message of `rubato.wire.worker` is about to be told
       "before|during|after WHAT STAGE": "parts" or "sums" of a reduction, "messages" or "all_gather"; in
       that stage of the main thread, in the "overlap" with a backward pass, or in a "join" that goes on beside it
       "call MODULE:QUALIFIED.NAME"
WHO    a list of ranks (those that a process had first), "joiner" (has no state yet), "any"
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from models import prepare
from pace import brake
from torch import nn

import rubato
from rubato.checkpoint import due
from rubato.engine import agreement, join, saver
from rubato.engine.comm import Communicator
from rubato.engine.control import Control
from rubato.engine.reduction import Reduction

BRAKE_S = 1.5
"""Between two steps, while a test holds the program and a quarter of them is done: it has time for its faults."""
SO_ATTACH_FILTER, SO_MAX_PACING_RATE, BPF_RET = 26, 47, 6
"""Of Linux; not in the socket module."""


class Fault:
    """One of `config.faults`, in this process."""

    def __init__(self, run: rubato.Run, model: nn.Module | None, say: dict[str, Any]) -> None:
        self.run, self.model, self.say = run, model, say
        self.rank: int | None = None
        self.links: set[int] = set()
        """File descriptors of the connections that this process had in its first step."""
        self.marker = Path(run.config["home"]) / say["name"]

    def reach(self, place: str) -> None:
        """The process is at this place now."""
        if self.rank is None and self.run._session.has_state:
            self.rank = self.run._session.rank  # and so it is called, whatever becomes of the others
        if place == "backward" and not self.links and self.run._session.world > 1:
            self.links = set(_links(self.run))
        if place == self.say["at"] and self._is_due() and self._is_first():
            getattr(self, "do_" + self.say["do"])(*self.say.get("with", []))

    def _is_due(self) -> bool:
        session, who = self.run._session, self.say["who"]
        if self.marker.with_name(self.marker.name + ".unarmed").exists() or session.step < self.say.get("step", 0):
            return False
        if isinstance(who, list):
            return self.rank in who
        return who == "any" or not session.has_state

    def _is_first(self) -> bool:
        marker = self.marker
        if self.say.get("each"):
            marker = marker.with_name(f"{marker.name}-{self.rank}")
        try:
            handle = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return bool(self.say.get("always"))
        os.write(handle, str(os.getpid()).encode())
        os.close(handle)
        return True

    # --- actions ------------------------------------------------------------------------------------------------------

    def do_signal(self, name: str) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(60 if name == "SIGKILL" else 0)  # the signal is delivered before this returns

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_raise(self, text: str) -> None:
        raise RuntimeError(text)

    def do_crash(self) -> None:
        ctypes.string_at(0)

    def do_allocate(self) -> None:
        """More memory than this process may have: torch raises, as it does when the host has no more."""
        with Path("/proc/self/statm").open() as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
        torch.empty(2**31, dtype=torch.uint8).fill_(1)

    def do_hold_gil(self, seconds: int) -> None:
        """A C function that never gives the interpreter's lock back: no thread of this process runs."""
        ctypes.PyDLL(None).sleep(seconds)

    def do_flip(self) -> None:
        """One bit of one parameter, as a faulty memory does."""
        assert self.model is not None
        bits = next(self.model.parameters()).data.view(-1)[:1].view(torch.int32)
        bits.bitwise_xor_(1)

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_reset_links(self) -> None:
        """Connections to the other workers end, as by a switch that restarts."""
        for link in _links(self.run).values():
            with contextlib.suppress(OSError):  # a peer that noticed the first has ended the others already
                link.shutdown(socket.SHUT_RDWR)

    def do_throttle_links(self, bytes_per_second: int, those: str = "all") -> None:
        """Connections to the other workers become slow: the kernel paces what is sent.

        "new": only those to joiners, which are not used yet for the steps of this generation.
        """
        links = _links(self.run)
        for name in links.keys() - (self.links if those == "new" else set()):
            links[name].setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_second)

    def do_block(self, pipe: str) -> None:
        """As a storage whose server is gone: the kernel does not return from the call before somebody writes."""
        os.close(os.open(pipe, os.O_RDONLY))

    def do_half_open(self) -> None:
        """Nothing that the other workers send arrives any more, though no connection ends: the kernel drops it."""
        drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", BPF_RET, 0, 0, 0))
        program = struct.pack("@HP", 1, ctypes.addressof(drop_all))
        for link in _links(self.run).values():
            link.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def _links(run: rubato.Run) -> dict[int, socket.socket]:
    """Connections to other workers, by file descriptor: those of C++, duplicated; not those to a store."""
    session = run._session
    assert session.record is not None
    assert session.control.hello is not None
    stores = {int(one.rsplit(":", 1)[1]) for one in (session.record.store, session.control.hello.store)}
    found: dict[int, socket.socket] = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(path.readlink()).startswith("socket:"):
                continue
            link = socket.socket(fileno=os.dup(int(path.name)))
            if link.family != socket.AF_UNIX and not stores & {link.getsockname()[1], link.getpeername()[1]}:
                found[int(path.name)] = link
        except OSError:
            continue  # closed meanwhile, or nobody is at the other end
    assert found, "this process has no connection to another worker"
    return found


def install(run: rubato.Run, model: nn.Module | None) -> Callable[[str], None]:
    """Let this process do to itself what was asked; returns what user code calls at its own places."""
    faults = [Fault(run, model, say) for say in run.config.get("faults", [])]

    def reach(place: str) -> None:
        for fault in faults:
            fault.reach(place)

    if faults:
        agreement.EVERY = run.config.get("digest_every", agreement.EVERY)
        join.LEAST_BACKLOG_BYTES = run.config.get("least_backlog", join.LEAST_BACKLOG_BYTES)
        due.DUE_S, saver.BUSY_S = run.config.get("due_s", due.DUE_S), run.config.get("busy_s", saver.BUSY_S)
        _watch_messages(reach)
        run._session.saver._say = run._session.control.say  # bound before this process watched it
        _watch_collectives(run, reach)
        for fault in faults:
            if fault.say["at"].startswith("call "):
                _watch_call(fault.say["at"], reach)
    return reach


def _watch_messages(reach: Callable[[str], None]) -> None:
    say = Control.say

    def watched(self: Control, message: Any) -> None:
        reach(f"say {type(message).__name__}")
        say(self, message)

    Control.say = watched  # type: ignore[method-assign]


def _watch_collectives(run: rubato.Run, reach: Callable[[str], None]) -> None:
    """Parts and sums of a reduction, told and overlapped with the backward pass or not; and what a join sends."""

    def stage() -> str:
        name = threading.current_thread().name
        is_join = name.startswith("join-")
        return "join" if is_join else "overlap" if name == "exchange" else str(run._session.control.present_stage)

    for owner, name, place in (
        (Reduction, "_send_parts", "parts"),
        (Reduction, "_send_sum", "sums"),
        (Communicator, "start_messages", "messages"),
        (Communicator, "start_all_gather", "all_gather"),
    ):
        _watch_start(owner, name, place, stage, reach)
    end = Reduction.end

    def ended(self: Reduction, *arguments: Any) -> Any:
        result = end(self, *arguments)
        reach(f"after sums {stage()}")
        return result

    Reduction.end = ended  # type: ignore[method-assign]


def _watch_start(owner: Any, name: str, place: str, stage: Callable[[], str], reach: Callable[[str], None]) -> None:
    start = getattr(owner, name)

    def watched(self: Any, *arguments: Any) -> Any:
        reach(f"before {place} {stage()}")
        started = start(self, *arguments)
        reach(f"during {place} {stage()}")
        return started

    setattr(owner, name, watched)


def _watch_call(place: str, reach: Callable[[str], None]) -> None:
    module, _, path = place.removeprefix("call ").partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    function = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        reach(place)
        return function(*arguments, **named)

    setattr(owner, name, watched)


def steps(run: rubato.Run) -> Iterator[rubato.Step]:
    """Slowly while a file exists, once a quarter of them is done."""
    for step in run.steps():
        yield step
        slow_s = run.config.get("brake_s", BRAKE_S)
        brake(run.config.get("hold"), slow_s if step.index > run.config["steps"] // 4 else 0.05)


def train(run: rubato.Run) -> None:
    model, optimizer = prepare(run)
    reach = install(run, model)
    reach("setup")
    if run.config.get("faults"):
        next(model.parameters()).register_hook(lambda gradient: reach("hook"))  # every loss depends on the first
    for step in steps(run):
        for batch in step:
            reach("forward")
            loss = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
            reach("backward")
            step.backward(loss)
        reach("update")
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
