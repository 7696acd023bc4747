"""torchrun: one elastic agent a worker, as if each had a node of its own; c10d rendezvous."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from benchmarks.peers.peer import FolderPeer, Kind
from benchmarks.processes import PROGRAMS, free_port
from benchmarks.programs.workload import Workload

LAST_CALL_S = 1


class Torchrun(FolderPeer):
    """A change of membership restarts all workers; they go on from the last checkpoint."""

    def __init__(self, folder: Path, job: Workload) -> None:
        super().__init__(folder, job)
        self._agents: list[psutil.Popen] = []
        self._command: tuple[str, ...] = ()

    def start(self, workers: int, low: int, high: int) -> None:
        self._command = (
            "-m", "torch.distributed.run",
            f"--nnodes={low}:{high}", "--nproc-per-node=1", "--max-restarts=100", "--monitor-interval=0.1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bench",
            f"--rdzv-conf=last_call_timeout={LAST_CALL_S}", "--local-addr=127.0.0.1",
            f"--log-dir={self.folder / 'agents'}",
            str(PROGRAMS / "ddp_mlp.py"), self.job.to_json(),
        )  # fmt: skip
        self.scale(workers)

    def scale(self, workers: int) -> None:
        while len(self._agents) < workers:
            self._agents.append(self.processes.python(*self._command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
        while len(self._agents) > workers:
            # The last one: the first holds the store of the rendezvous.
            self._agents.pop().send_signal(signal.SIGTERM)


TORCHRUN = Kind(
    Torchrun,
    "torchrun",
    packages=("torch",),
    notes=(
        f"torchrun: a rendezvous waits {LAST_CALL_S} s for more nodes (`last_call_timeout`; with the default, 30 s, "
        "every figure here grows); an agent leaves on SIGTERM; a checkpoint every 10 steps.",
        "torchrun is run with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: as torch 2.13 is, a node that joins a running job "
        "waits for an address that rank 0 told in the first round only, and gives up after 60 s.",
    ),
    pace=1.5,
)
