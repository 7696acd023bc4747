"""Rows of one table that members hold, put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rubato.engine.comm import Communicator
from rubato.errors import NotOnAllWorkers


def merge(comm: Communicator, table: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The rows of all members, the lowest rank's where several hold one; rows nobody holds are nan.

    Args:    sizes: by rank, the elements of its table.
    Shapes:  table (n,) or (n, m), float64.
    Raises:  GenerationLost: a member was lost.  NotOnAllWorkers: the workers' tables differ in size.
    """
    if len(set(sizes)) > 1:  # gloo would end the process
        raise NotOnAllWorkers(
            f"run.evaluate was called for {', '.join(map(str, sizes))} chunks by ranks 0 to "
            f"{comm.world - 1}: give all workers the same dataset and batch size"
        )
    gathered = torch.empty(comm.world * table.numel(), dtype=torch.float64)
    comm.all_gather(gathered, table.reshape(-1).contiguous())
    merged = torch.full_like(table, float("nan"))
    for part in gathered.view(comm.world, *table.shape):
        merged = torch.where(torch.isnan(merged), part, merged)
    return merged
