from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from rubato.cli.keeper.ports import (
    accepts_connections,
    describe_holder,
    find_free_ports,
    find_node_address,
    is_port_free,
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = find_free_ports(20)
    assert len(set(ports)) == 20
    assert is_port_free(ports[0])


def test_a_taken_port_names_its_holder(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = listener.getsockname()[1]
    assert not is_port_free(port)
    assert accepts_connections("127.0.0.1", port)
    assert describe_holder(port).startswith(f"process {os.getpid()} (")


def test_nobody_on_a_port() -> None:
    (port,) = find_free_ports(1)
    assert not accepts_connections("127.0.0.1", port)
    assert describe_holder(port) == "another process"


def test_the_node_address_is_one_of_this_machine() -> None:
    with socket.socket() as probe:
        probe.bind((find_node_address(), 0))
