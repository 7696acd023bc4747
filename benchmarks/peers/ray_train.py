"""Ray Train: elastic `ScalingConfig`, on a cluster of this machine's own where every node has room for one worker."""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.peers.peer import FolderPeer, Kind, PeerFailed
from benchmarks.processes import PROGRAMS, free_port
from benchmarks.programs.workload import Workload

RESIZE_EVERY_S = 1.0
START_S = 90.0
STARTED = "Ray runtime started."
"""What `ray start` prints when its node has joined."""


class RayTrain(FolderPeer):
    """A change of membership restarts all workers; they go on from the last checkpoint that they reported."""

    def __init__(self, folder: Path, job: Workload) -> None:
        super().__init__(folder, job)
        self._nodes: list[psutil.Popen] = []
        self._driver: psutil.Popen | None = None
        # Short, because addresses of sockets are limited in length.
        self._temp = tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True)
        self._address = f"127.0.0.1:{free_port()}"
        # The cluster listens on more than the loopback: nobody else is to use it.
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def prepare(self, workers: int) -> None:
        port = self._address.rpartition(":")[2]
        self._ray(
            "--head", f"--port={port}", f"--temp-dir={self._temp.name}", "--num-cpus=0", "--include-dashboard=false"
        )
        self._wait_for_nodes(1)
        for count in range(1, workers + 1):  # one by one: at once they take each other the time they have to start
            self.scale(count)
            self._wait_for_nodes(1 + count)

    def start(self, workers: int, low: int, high: int) -> None:
        self._driver = self.processes.python(
            PROGRAMS / "ray_mlp.py",
            self.job.to_json(),
            self._address,
            str(low),
            str(high),
            str(RESIZE_EVERY_S),
            **self._environment,
        )

    def scale(self, workers: int) -> None:
        while len(self._nodes) < workers:
            self._nodes.append(self._start_node())
        while len(self._nodes) > workers:
            self._nodes.pop().send_signal(signal.SIGTERM)

    def is_over(self) -> bool:
        self._restart_nodes()
        return self._driver is not None and self._driver.poll() is not None

    def close(self) -> None:
        super().close()
        self._temp.cleanup()

    def _restart_nodes(self) -> None:
        """What did not come up (`ray start` gives up after 30 s) is started again, as a cluster manager would."""
        for number, node in enumerate(self._nodes):
            if node.poll() is not None:
                self._nodes[number] = self._start_node()

    def _start_node(self) -> psutil.Popen:
        return self._ray(f"--address={self._address}", "--num-cpus=1")

    def _ray(self, *arguments: str) -> psutil.Popen:
        return self.processes.python(
            "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats",
            *arguments, **self._environment,
        )  # fmt: skip

    def _wait_for_nodes(self, count: int) -> None:
        deadline = time.monotonic() + START_S
        while self.processes.output(None).count(STARTED) < count:
            if time.monotonic() > deadline:
                raise PeerFailed(f"{count} Ray nodes did not start within {START_S:g} s:\n{self.processes.output()}")
            self._restart_nodes()
            time.sleep(0.2)


RAY_TRAIN = Kind(
    RayTrain,
    "Ray Train",
    packages=("ray",),
    notes=(
        f"Ray Train: `elastic_resize_monitor_interval_s` is {RESIZE_EVERY_S:g} (default 60). Every node has room for "
        "one worker: scaling up is `ray start` of more nodes, a leave is SIGTERM to one, which drains it. The cluster "
        "is up before a run; a checkpoint every 10 steps.",
    ),
    pace=3.0,
)
