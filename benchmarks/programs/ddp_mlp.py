"""The workload under DistributedDataParallel: alone, under torchrun and under Ray Train.

What a careful program of theirs does: samples follow from the step, a checkpoint is written whole or not at all, and a
restarted worker goes on from the newest one. The loss is weighted by the samples, so that uneven shares count right.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.workload import Figures, Network, Noise, Workload, mean_loss, sgd, share


class Checkpoints(Protocol):
    """Where the state is kept over a restart."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, state: dict[str, Any], rank: int) -> None: ...


class OneFile:
    """The newest state as a file of the run's folder."""

    def __init__(self, job: Workload) -> None:
        self._path = Path(job.folder) / "checkpoint.pt"

    def load(self) -> dict[str, Any] | None:
        return torch.load(self._path, weights_only=True) if self._path.exists() else None

    def save(self, state: dict[str, Any], rank: int) -> None:
        if rank == 0:
            part = self._path.with_suffix(".part")
            torch.save(state, part)
            part.replace(self._path)


def train(job: Workload, checkpoints: Checkpoints) -> None:
    """Train in the process group that exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    figures, dataset = Figures(job, rank), Noise()
    network = Network(job.width)
    optimizer = sgd(network)
    step = 0
    if (state := checkpoints.load()) is not None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    replica = DistributedDataParallel(network)
    while step < job.steps:
        ids = share(step, rank, world, job.batch)
        for number in range(job.passes):
            part = ids[number * len(ids) // job.passes : (number + 1) * len(ids) // job.passes]
            x, y, numbers = dataset.batch(part)
            job.wait_for_device(len(part))
            with replica.no_sync() if number + 1 < job.passes else contextlib.nullcontext():
                loss = mean_loss(replica(x, numbers), y)
                torch.autograd.backward(loss * (len(part) * world / job.batch))
        optimizer.step()
        optimizer.zero_grad()
        job.hold()
        figures.stepped()
        step += 1
        if rank == 0:
            figures.committed(step, world, str(os.getpid()))
        if job.checkpoint_every and step % job.checkpoint_every == 0:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            checkpoints.save(state, rank)
    figures.ended(network, optimizer)


if __name__ == "__main__":
    job = Workload.from_json(sys.argv[1])
    dist.init_process_group("gloo")
    try:
        train(job, OneFile(job))
    finally:
        dist.destroy_process_group()
