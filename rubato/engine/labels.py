"""Before anything is added up all members tell each other which parts of the sum they hold: the exactly-once check."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.comm import Communicator
from rubato.engine.header import ALIGNMENT
from rubato.engine.tree import Node, Order
from rubato.errors import ModelError, ProtocolError

_LABEL = struct.Struct("<6q")
"""What a worker is about to send: attempt, generation, step, sender, nodes, bits of the leaves they cover (folded)."""

_STOPS = -1
"""In place of the number of nodes: none, for the worker's program has stopped the steps."""

Stamp = tuple[int, int, int]
"""Attempt, generation, step."""


def tell_nodes(
    comm: Communicator,
    order: Order,
    present: Collection[int],
    frontiers: Sequence[Sequence[Node]],
    stamp: Stamp,
    nodes: Collection[Node],
    memory: tuple[torch.Tensor, torch.Tensor],
    remark: bytes = b"",
) -> list[bytes]:
    """Compare what each is about to send with what the owners of the step say.

    Args:
        present: the microbatches that exist in the step.
        frontiers: by rank, the nodes it should hold.
        nodes: those that this worker holds.
        memory: uint8, of `ALIGNMENT` bytes, and of so many for each member.
        remark: told along, 16 bytes at most; as long on all members.
    Returns: by rank, its remark, with zeros behind it.
    Raises:
        GenerationLost: a member was lost.
        ProtocolError: a node is missing or doubled, or a member is at another step.
    """
    mine = frontiers[comm.rank]
    if sorted(mine) != sorted(nodes):
        raise ProtocolError(f"this worker holds nodes {sorted(nodes)}, but should hold {sorted(mine)}")

    def label(sender: int) -> bytes:
        covered = 0
        for node in frontiers[sender]:
            for leaf in order.leaves(node):
                covered ^= (leaf + 1) * 0x9E3779B97F4A7C15 if leaf in present else 0
        return _LABEL.pack(*stamp, sender, len(frontiers[sender]), covered & (2**63 - 1))

    source, out = memory
    told = label(comm.rank) + remark
    source[: len(told)].copy_(bytes_tensor(told))
    comm.all_gather(out, source)
    remarks = []
    for rank, row in enumerate(out.view(comm.world, ALIGNMENT)):
        said = bytes(row.cpu().numpy())
        if _LABEL.unpack_from(said)[4] == _STOPS:
            raise ModelError(_describe_stop(stamp, {rank}))
        if said[: _LABEL.size] != label(rank):
            raise ProtocolError(f"rank {rank} holds parts of another step, or other nodes than the owners say")
        remarks.append(said[_LABEL.size :])
    return remarks


def tell_stop(comm: Communicator, stamp: Stamp, device: torch.device, remark: int = 0) -> list[int]:
    """Where others would tell the nodes of this step: that there is none. All members must do so.

    Args:
        device: where the others have their labels.
        remark: told along, of 64 bits.
    Returns: by rank, its remark.
    Raises:  GenerationLost: a member was lost.  ModelError: others train on.
    """
    source, out = (torch.zeros(count * ALIGNMENT, dtype=torch.uint8, device=device) for count in (1, comm.world))
    told = _LABEL.pack(*stamp, comm.rank, _STOPS, remark)
    source[: len(told)].copy_(bytes_tensor(told))
    comm.all_gather(out, source)
    said = [_LABEL.unpack_from(bytes(row.cpu().numpy())) for row in out.view(comm.world, ALIGNMENT)]
    stopping = {rank for rank, one in enumerate(said) if one[:-1] == (*stamp, rank, _STOPS)}
    if len(stopping) < comm.world:
        raise ModelError(_describe_stop(stamp, stopping))
    return [one[-1] for one in said]


def _describe_stop(stamp: Stamp, ranks: Collection[int]) -> str:
    named = " and ".join(f"rank {rank}" for rank in sorted(ranks))
    return (
        f"run.stop() was called in step {stamp[2] - 1} by {named}, and not by all workers: decide by a value that is "
        "equal on all of them (what run.evaluate returns, run.state, step.index), not by one of this worker alone (the "
        "loss of its microbatches, its clock)"
    )
