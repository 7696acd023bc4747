"""torchft: one replica group a worker, a lighthouse for the quorum."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from benchmarks.peers.peer import FolderPeer, Kind
from benchmarks.processes import PROGRAMS, environment, free_port
from benchmarks.programs.workload import Workload


class TorchFt(FolderPeer):
    """Replicas agree on a quorum in every step; a joiner gets the state from one that has it."""

    def __init__(self, folder: Path, job: Workload) -> None:
        super().__init__(folder, job)
        self._replicas: list[psutil.Popen] = []
        self._lighthouse = f"127.0.0.1:{free_port()}"
        self._started = 0
        self._low = 1

    def prepare(self, workers: int) -> None:
        server = Path(sys.executable).with_name("torchft_lighthouse")
        terms = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
        self.processes.start([server, "--bind", self._lighthouse, *terms], environment())

    def start(self, workers: int, low: int, high: int) -> None:
        self._low = low
        self.scale(workers)

    def scale(self, workers: int) -> None:
        while len(self._replicas) < workers:
            arguments = (self.job.to_json(), str(self._started), str(self._low))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
            server = f"http://{self._lighthouse}"
            program = PROGRAMS / "torchft_mlp.py"
            self._replicas.append(self.processes.python(program, *arguments, TORCHFT_LIGHTHOUSE=server, **address))
            self._started += 1
        while len(self._replicas) > workers:
            self._replicas.pop().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self._replicas[2].pid, signal.SIGKILL)

    def is_over(self) -> bool:
        return bool(self._replicas) and all(one.poll() is not None for one in self._replicas)


TORCHFT = Kind(
    TorchFt,
    "torchft",
    packages=("torchft",),
    notes=(
        "torchft: the lighthouse runs as its README starts it (`--join_timeout_ms 10000`; heartbeats time out after "
        "5 s), the program has the time-outs of its example; a replica leaves on SIGTERM, between two steps.",
        "torchft is patched in one place (`Replica` in `benchmarks/programs/torchft_mlp.py`): as released, the "
        "survivors of a SIGKILL end with an AssertionError in the hook of its DistributedDataParallel.",
    ),
)
