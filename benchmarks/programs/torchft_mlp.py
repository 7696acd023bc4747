"""The workload under torchft: one replica group of one worker. After its example train_ddp.py, with its time-outs.

python torchft_mlp.py WORKLOAD NUMBER MIN

Samples follow from the step and from the rank in the quorum, so that a step that was not committed is tried again with
the same ones: what a careful program does. (The sampler that torchft ships gives every replica a fixed part.)
"""

import importlib
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from benchmarks.programs.workload import Figures, Network, Noise, Workload, mean_loss, sgd, share

torchft: Any = importlib.import_module("torchft")
dist: Any = importlib.import_module("torch.distributed")

GLOO_TIMEOUT, MANAGER_TIMEOUT = timedelta(seconds=5), timedelta(seconds=30)


class Replica(torchft.DistributedDataParallel):  # type: ignore[misc]
    """torchft's own, mended: as released, an all-reduce that fails on gloo ends every survivor by an AssertionError.

    Their hook takes the future inside of the managed one, which is not there when the wait raised. The step counts as
    failed by then (the manager heard of it), so what the bucket holds is of no importance.
    """

    @staticmethod
    def _comm_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = state.allreduce(bucket.buffer())
        work.wait()
        inner: torch.futures.Future[torch.Tensor] | None = getattr(work.get_future(), "_fut", None)
        if inner is None:
            inner = torch.futures.Future()
            inner.set_result(bucket.buffer())
        return inner


def main(job: Workload, number: int, low: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
    figures, dataset = Figures(job, number), Noise()
    network = Network(job.width)
    inner = sgd(network)
    # The manager finds the store of its replica group by these variables.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=GLOO_TIMEOUT),
        load_state_dict=load,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=low,
        replica_id=f"bench_{number}",
        timeout=MANAGER_TIMEOUT,
        hostname="127.0.0.1",
        init_sync=False,  # all begin with the same seed
    )
    replica = Replica(manager, network)
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < job.steps and not leaving:
        optimizer.zero_grad()
        rank, world = manager.participating_rank(), manager.num_participants()
        step = manager.current_step()
        ids = share(step, rank or 0, max(world, 1), job.batch)
        x, y, numbers = dataset.batch(ids)
        job.wait_for_device(len(ids))
        loss = mean_loss(replica(x, numbers), y)
        torch.autograd.backward(loss * (len(ids) * world / job.batch))
        optimizer.step()
        job.hold()
        if rank == 0 and manager.current_step() > step:
            figures.committed(step + 1, world, str(manager._quorum_id))  # there is no public name for it
        elif rank == 0:
            figures.dropped(step + 1)
    if not leaving:
        figures.ended(network, inner)
    manager.shutdown(wait=False)
    del store


if __name__ == "__main__":
    main(Workload.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
