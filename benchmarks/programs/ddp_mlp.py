"""The workload under DistributedDataParallel: alone, under torchrun and under Ray Train.

What a careful program of its users does: samples follow from the step, a checkpoint is written whole or not at all, and
a restarted worker goes on from the newest one. The loss is weighted by the samples, so that uneven shares count right.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.workload import Figures, Network, Noise, Workload, mean_loss, sgd, share


def train(job: Workload) -> None:
    """Train in the process group that exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    network = Network(job.width)
    optimizer = sgd(network)
    figures, dataset = Figures(job), Noise()
    checkpoint = Path(job.folder) / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    replica = DistributedDataParallel(network)
    while step < job.steps:
        ids = share(step, rank, world, job.batch)
        for number in range(job.passes):
            part = ids[number * len(ids) // job.passes : (number + 1) * len(ids) // job.passes]
            x, y, numbers = dataset.batch(part)
            with replica.no_sync() if number + 1 < job.passes else contextlib.nullcontext():
                loss = mean_loss(replica(x, numbers), y)
                torch.autograd.backward(loss * (len(part) * world / job.batch))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            figures.committed(step, world)
        if rank == 0 and job.checkpoint_every and step % job.checkpoint_every == 0:
            save(checkpoint, network, optimizer, step)
    figures.ended(network, optimizer)


def save(path: Path, network: Network, optimizer: torch.optim.Optimizer, step: int) -> None:
    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        train(Workload.from_json(sys.argv[1]))
    finally:
        dist.destroy_process_group()
