"""Doors: real processes and real connections."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobs import door
from jobs.door import DoorAddress, DoorWatch

HOST = "127.0.0.1"
PATIENCE_S = 60.0
OWNER = """
import sys
from jobs.door import open_door
print(open_door("127.0.0.1").port, flush=True)
sys.stdin.read()
"""
ABORT = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process with a door."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A door of this process, to open and shut; not open yet: connections to it are refused."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.settimeout(PATIENCE_S)
        yield listener


def address_of(owner: subprocess.Popen[str]) -> DoorAddress:
    assert owner.stdout is not None
    return DoorAddress(HOST, int(owner.stdout.readline()))


@contextmanager
def watched(address: DoorAddress) -> Iterator[threading.Event]:
    """Set once whoever is behind the door is known to be gone. At the end the watch is closed, and ends."""
    gone = threading.Event()
    watch = DoorWatch(address, gone.set)
    try:
        yield gone
    finally:
        watch.close()
        watch._thread.join(PATIENCE_S)
        assert not watch._thread.is_alive()


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a watch stands at its door."""
    event = threading.Event()
    wait_for_end = DoorWatch._wait_for_end

    def wait(watch: DoorWatch, connection: socket.socket) -> None:
        event.set()
        wait_for_end(watch, connection)

    monkeypatch.setattr(DoorWatch, "_wait_for_end", wait)
    return event


def test_a_killed_process_is_gone(owner: subprocess.Popen[str], arrived: threading.Event) -> None:
    with watched(address_of(owner)) as gone:
        assert arrived.wait(PATIENCE_S)
        owner.kill()
        assert gone.wait(PATIENCE_S)


def test_a_stopped_process_is_not_gone(owner: subprocess.Popen[str], arrived: threading.Event) -> None:
    address = address_of(owner)
    owner.send_signal(signal.SIGSTOP)
    with watched(address) as gone:
        assert arrived.wait(PATIENCE_S), "the kernel takes connections for it"
        assert not gone.is_set()
        owner.kill()
        assert gone.wait(PATIENCE_S)


def test_the_end_of_a_connection_proves_nothing(listener: socket.socket) -> None:
    listener.listen()
    with watched(DoorAddress(*listener.getsockname())) as gone:
        first, _ = listener.accept()
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        first.close()
        second, _ = listener.accept()
        assert not gone.is_set()
        listener.close()
        second.close()
        assert gone.wait(PATIENCE_S)


def test_a_door_that_was_never_open_proves_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()
    create_connection = socket.create_connection

    def create(*arguments: Any) -> socket.socket:
        try:
            return create_connection(*arguments)
        except ConnectionRefusedError:
            refused.set()
            raise

    monkeypatch.setattr(door, "RETRY_S", 0.01)
    monkeypatch.setattr(socket, "create_connection", create)
    with watched(DoorAddress(*listener.getsockname())) as gone:
        assert refused.wait(PATIENCE_S)
        listener.listen()
        connection, _ = listener.accept()
        assert not gone.is_set()
        listener.close()
        connection.close()
        assert gone.wait(PATIENCE_S)
