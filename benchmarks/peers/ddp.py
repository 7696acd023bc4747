"""Plain DistributedDataParallel: the price of a step without any of what the others offer."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers.peer import FolderPeer, Kind, PeerFailed
from benchmarks.peers.rubato_run import MICROBATCHES
from benchmarks.processes import PROGRAMS, free_port


class Ddp(FolderPeer):
    """One pass a step."""

    def start(self, workers: int, low: int, high: int) -> None:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
        for rank in range(workers):
            self.processes.python(PROGRAMS / "ddp_mlp.py", self.job.to_json(), **address, RANK=str(rank))

    def scale(self, workers: int) -> None:
        raise PeerFailed("DDP has a fixed number of workers")


class DdpSamePasses(Ddp):
    """As many passes a step as a worker of Rubato makes, all but the last under `no_sync`."""

    def start(self, workers: int, low: int, high: int) -> None:
        self.job = replace(self.job, passes=MICROBATCHES // workers)
        super().start(workers, low, high)


DDP = Kind(Ddp, "DDP", packages=("torch",), is_elastic=False)
DDP_SAME_PASSES = Kind(DdpSamePasses, "DDP, same passes", packages=("torch",), is_elastic=False)
