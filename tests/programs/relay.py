"""Wires that take their time: what leaves a network namespace arrives in another one later.

relay.py NAME WORKERS LATENCY_S BYTES_PER_S

Makes a device `eth` in each of the namespaces NAME-1 ..., and passes on what is sent through it: a packet arrives
LATENCY_S after it has left, and a device takes in so many bytes a second. How fast packets leave is the sender's own
business: its queue must limit it, as TCP looks at that. Says `ready`; ends when its standard input does.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

from networked import enter

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x1, 0x1000
LARGEST = 1 << 16
REFUSED = "no devices here: "
"""How it says that the kernel or the machine does not let it make any."""
AT_ONCE = 64
"""Packets taken from a device before the others have their turn."""


def open_device(namespace: str) -> int:
    """The other end of a new device there."""
    enter(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"eth", IFF_TUN | IFF_NO_PI))
    return device


class Wires:
    """Between all devices.

    Args:    devices: that of worker 1 first.
    """

    def __init__(self, devices: list[int], latency_s: float, bytes_per_s: float) -> None:
        self._devices = devices
        self._latency_s = latency_s
        self._s_per_byte = 1 / bytes_per_s
        self._under_way: list[deque[tuple[float, bytes]]] = [deque() for _ in devices]
        """By receiver: when it arrives, and what; in this order."""
        self._free_at = [0.0] * len(devices)

    def wait_s(self) -> float | None:
        """Until the next packet arrives."""
        due = [packets[0][0] for packets in self._under_way if packets]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def take(self, device: int) -> None:
        """What has left a device."""
        for _ in range(AT_ONCE):
            try:
                packet = os.read(device, LARGEST)
            except BlockingIOError:
                return
            receiver = packet[19] - 1  # the last byte of an IPv4 packet's destination
            if packet[0] >> 4 != 4 or not 0 <= receiver < len(self._devices):
                continue
            due = max(time.monotonic() + self._latency_s, self._free_at[receiver])
            self._free_at[receiver] = due + len(packet) * self._s_per_byte
            self._under_way[receiver].append((due, packet))

    def deliver(self) -> None:
        """What has arrived."""
        now = time.monotonic()
        for device, packets in zip(self._devices, self._under_way, strict=True):
            while packets and packets[0][0] <= now:
                os.write(device, packets.popleft()[1])


def main() -> None:
    """Pass on packets until standard input ends."""
    name, workers, latency_s, bytes_per_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    try:
        devices = [open_device(f"{name}-{worker}") for worker in range(1, workers + 1)]
    except OSError as error:
        sys.exit(f"{REFUSED}{error}")
    os.nice(-20)  # it is hardware
    wires = Wires(devices, latency_s, bytes_per_s)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([sys.stdin, *devices], [], [], wires.wait_s())
        if sys.stdin in readable:
            return
        for device in readable:
            wires.take(device)
        wires.deliver()


if __name__ == "__main__":
    main()
