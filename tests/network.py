"""A network of the test's own: one network namespace a worker, or a Ray node, and a switch between them. Needs root.

Nothing of it is seen outside: all addresses are of these namespaces, and end with them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RELAY = (sys.executable, str(Path(__file__).parent / "programs" / "relay.py"))
COMMAND = (sys.executable, "-P", str(Path(__file__).parent / "programs" / "networked.py"))
"""Of a training process: it enters the namespace of its worker, then is an ordinary one."""
CLONE_NEWNET = 0x40000000
JUMBO = "9000"
NOBODY = "02:00:00:00:00:ff"
"""A hardware address that no interface has: what is sent there gets lost, and nobody is told."""
NAMESPACES, SUBNET = "RUBATO_TEST_NAMESPACES", "10.77.0"
"""Variable with the beginning of the names of the namespaces; the worker's number follows."""
MACHINES = "RUBATO_TEST_MACHINES"
"""Variable with the number of the namespace that each worker is in, `1,1,2,2`; without it each has one of its own."""
TCP = "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0"
"""What a fixed link carries, and nothing of what TCP finds out about it, is what exchanges are measured by."""
ROUTES = f"{SUBNET}.0/24", "default"
"""Of a namespace; Ray asks by which way it would go outside."""


class NoNamespaces(Exception):
    """This machine does not let us make them."""


@dataclass(frozen=True)
class Network:
    """The namespaces `NAME-1`, `NAME-2` ... at 10.77.0.1 ..., and the switch `NAME-0` with its ports p1, p2 ..."""

    name: str
    workers: int

    def cut(self, worker: int) -> None:
        """Nothing reaches it or comes from it; no connection ends."""
        self._switch("link", "set", f"p{worker}", "down")

    def mend(self, worker: int) -> None:
        """Take a cut back."""
        self._switch("link", "set", f"p{worker}", "up")

    def take_down(self, worker: int) -> None:
        """Its own interface goes down: what it sends fails at once."""
        self._at(worker, "link", "set", "eth", "down")

    def bring_up(self, worker: int) -> None:
        """Take that back; the kernel makes the route again."""
        self._at(worker, "link", "set", "eth", "up")

    def mute(self, worker: int) -> None:
        """What the others send arrives; what it sends, acknowledgements too, finds no way."""
        for route in ROUTES:
            self._at(worker, "route", "del", route, "dev", "eth")

    def unmute(self, worker: int) -> None:
        """Take that back."""
        for route in ROUTES:
            self._at(worker, "route", "add", route, "dev", "eth")

    def part(self, one: int, other: int) -> None:
        """Nothing passes between these two, either way; no connection ends, and all others hear both."""
        for here, there in ((one, other), (other, one)):
            self._at(here, "neigh", "replace", self.address(there), "lladdr", NOBODY, "dev", "eth", "nud", "permanent")

    def unite(self, one: int, other: int) -> None:
        """Take that back."""
        for here, there in ((one, other), (other, one)):
            self._at(here, "neigh", "del", self.address(there), "dev", "eth")

    def enlarge_packets(self) -> None:
        """To 9000 bytes, as data centres have them: then headers are few."""
        for worker in range(1, self.workers + 1):
            self._switch("link", "set", f"p{worker}", "mtu", JUMBO)
            self._at(worker, "link", "set", "eth", "mtu", JUMBO)

    def limit(self, mbit: float) -> None:
        """So many megabits a second at each worker's port, each way, from a token bucket of a few packets."""
        for worker in range(1, self.workers + 1):
            self._limit(worker, "eth", mbit)
            self._limit(0, f"p{worker}", mbit)

    def _limit(self, namespace: int, device: str, mbit: float) -> None:
        # One packet at a time: TCP hands over 64 kB in one, and behind a few of these a word waits for 100 ms.
        ip("-n", f"{self.name}-{namespace}", "link", "set", "dev", device, "gso_max_segs", "1")
        bucket = ("root", "tbf", "rate", f"{mbit:g}mbit", "burst", "10k", "limit", "16m")
        run("tc", "-n", f"{self.name}-{namespace}", "qdisc", "replace", "dev", device, *bucket)

    def address(self, worker: int) -> str:
        """Of its namespace."""
        return f"{SUBNET}.{worker}"

    @contextmanager
    def inside(self, worker: int) -> Iterator[None]:
        """This thread is there meanwhile, and so is what it starts: threads and processes, for as long as they live."""
        with Path("/proc/thread-self/ns/net").open() as before:
            enter(Path(f"/run/netns/{self.name}-{worker}"))
            try:
                yield
            finally:
                _enter(before.fileno())

    def listen(self, worker: int, port: int) -> socket.socket:
        """A port of the loopback there, which anybody here may serve."""
        with self.inside(worker):
            return socket.create_server(("127.0.0.1", port))

    def _switch(self, *arguments: str) -> None:
        ip("-n", f"{self.name}-0", *arguments)

    def _at(self, worker: int, *arguments: str) -> None:
        ip("-n", f"{self.name}-{worker}", *arguments)

    def make(self) -> None:
        """Make all of it."""
        ip("netns", "add", f"{self.name}-0")
        self._switch("link", "add", "switch", "type", "bridge")
        self._switch("link", "set", "switch", "up")
        for worker in range(1, self.workers + 1):
            ip("netns", "add", f"{self.name}-{worker}")
            far = ("type", "veth", "peer", "name", "eth", "netns", f"{self.name}-{worker}")
            self._switch("link", "add", f"p{worker}", *far)
            self._switch("link", "set", f"p{worker}", "master", "switch", "up")
            self._set_up(worker)

    def _set_up(self, worker: int) -> None:
        """Address, routes and TCP of a namespace that has its device."""
        self._at(worker, "addr", "add", f"{SUBNET}.{worker}/24", "dev", "eth")
        self._at(worker, "link", "set", "eth", "up")
        self._at(worker, "link", "set", "lo", "up")
        self._at(worker, "route", "add", "default", "dev", "eth")
        run("ip", "netns", "exec", f"{self.name}-{worker}", "sysctl", "-qw", *TCP)

    def make_far(self, mbit: float, latency_s: float) -> subprocess.Popen[str]:
        """Make it without a switch: a process carries the packets, which is returned."""
        for worker in range(1, self.workers + 1):
            ip("netns", "add", f"{self.name}-{worker}")
        arguments = (self.name, str(self.workers), str(latency_s), str(mbit * 1e6 / 8))
        relay = subprocess.Popen(
            [*RELAY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert relay.stdout is not None
            assert relay.stderr is not None
            if not relay.stdout.readline():
                told = relay.stderr.read()
                assert "no devices here: " in told, told  # else it is the relay that is wrong
                raise NoNamespaces(told.strip())
            for worker in range(1, self.workers + 1):
                self._at(worker, "link", "set", "eth", "mtu", JUMBO)
                self._set_up(worker)
                self._limit(worker, "eth", mbit)
        except BaseException:
            relay.kill()
            relay.communicate()
            raise
        return relay

    def remove(self) -> None:
        """Remove all of it, as far as it was made."""
        for number in range(self.workers + 1):
            subprocess.run(["ip", "netns", "del", f"{self.name}-{number}"], capture_output=True, check=False)


def enter(namespace: Path) -> None:
    """Have this thread be in a network namespace from here on.

    Raises:
        NoNamespaces: it may not.
    """
    with namespace.open() as file:
        _enter(file.fileno())


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise NoNamespaces(f"setns: {os.strerror(ctypes.get_errno())}")


def ip(*arguments: str) -> None:
    """As `run`."""
    run("ip", *arguments)


def run(*command: str) -> None:
    """A command of iproute2.

    Raises:
        NoNamespaces: it is not here, or the kernel refuses.
    """
    try:
        subprocess.run(command, capture_output=True, check=True, text=True)
    except FileNotFoundError as error:
        raise NoNamespaces(f"there is no `{command[0]}` (iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise NoNamespaces(f"`{' '.join(command)}`: {error.stderr.strip()}") from error


@contextmanager
def network(workers: int) -> Iterator[Network]:
    """A network that lasts until the end.

    Raises:
        NoNamespaces: it cannot be made here.
    """
    net = Network(f"rubato{os.getpid()}", workers)
    try:
        net.make()
        yield net
    finally:
        net.remove()


@contextmanager
def far_network(workers: int, mbit: float, latency_s: float) -> Iterator[Network]:
    """Likewise, with packets of 9000 bytes, so many megabits a second at each port, and seconds one way.

    It carries up to about 100 Mb/s, and knows nothing of cuts.

    Raises:
        NoNamespaces: it cannot be made here.
    """
    net = Network(f"rubato{os.getpid()}", workers)
    relay = None
    try:
        relay = net.make_far(mbit, latency_s)
        yield net
    finally:
        if relay is not None:
            relay.communicate()  # its standard input ends, and so does it
        net.remove()
