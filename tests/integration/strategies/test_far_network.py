"""The emulated links take the time that they should; only bounds from below, as machines may be slow themselves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.network import NoNamespaces, far_network

MBIT, LATENCY_S = 50.0, 0.02
SIZE = 500_000
MESSAGE_S = SIZE * 8 / (MBIT * 1e6)
BUCKET_S = 0.01
"""For what a token bucket lets through at once."""


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection between two workers."""
    try:
        with far_network(2, MBIT, LATENCY_S) as net:
            with net.inside(2):
                server = socket.create_server((net.address(2), 5000))
            with net.inside(1):
                near = socket.create_connection((net.address(2), 5000), timeout=20)
            far, _ = server.accept()
            far.settimeout(20)
            with server, near, far:
                yield near, far
    except NoNamespaces as error:
        pytest.skip(f"latency is NOT emulated here: {error}")


def read(end: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        came += end.recv(size - len(came))
    return came


def test_a_word_there_and_back_takes_the_latency_twice(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    began = time.monotonic()
    near.sendall(b"there")
    assert read(far, 5) == b"there"
    assert time.monotonic() - began >= LATENCY_S
    far.sendall(b"back")
    assert read(near, 4) == b"back"
    assert time.monotonic() - began >= 2 * LATENCY_S


def test_a_large_message_takes_what_the_port_carries_both_ways(ends: tuple[socket.socket, socket.socket]) -> None:
    messages = [bytes([number]) * SIZE for number in range(2)]
    began = time.monotonic()
    writers = [threading.Thread(target=end.sendall, args=(one,)) for end, one in zip(ends, messages, strict=True)]
    for writer in writers:
        writer.start()
    assert [read(end, SIZE) for end in ends[::-1]] == messages
    assert time.monotonic() - began >= LATENCY_S + MESSAGE_S - BUCKET_S
    for writer in writers:
        writer.join()
