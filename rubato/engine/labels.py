"""Before anything is added up all members tell each other which parts of the sum they hold: the exactly-once check."""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Sequence

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.comm import Communicator
from rubato.engine.entry import Key
from rubato.engine.header import ALIGNMENT
from rubato.engine.tree import Node, Order
from rubato.errors import NotOnAllWorkers, ProtocolError

_LABEL = struct.Struct("<6q")
"""What a worker is about to send: attempt, generation, step, sender, nodes, bits of the leaves they cover (folded)."""

_DECIDE_ALIKE = (
    "decide by a value that is equal on all of them (what run.evaluate returns, run.state, step.index), not by one of "
    "a worker alone (its rank or name, its clock, the loss of its microbatches)"
)

Stamp = tuple[int, int, int]
"""Attempt, generation, step."""


class Other(enum.IntEnum):
    """An exchange that is none of a step's nodes. It is told in place of their number, with the last step's stamp."""

    EVALUATE = -1
    """Rows of an evaluation, or where streams stand."""
    STOP = -2
    """The worker's program has stopped the steps."""
    SETTLE = -3
    """What each keeps of the gradients."""
    SEAL = -4
    """All steps are done."""
    FRAGMENT = -5
    """What of a step is exchanged before all else."""


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
        NotOnAllWorkers: some are in another exchange.
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
    said = [bytes(row.cpu().numpy()) for row in out.view(comm.world, ALIGNMENT)]
    _check_others([_LABEL.unpack_from(one) for one in said], None)
    for rank, one in enumerate(said):
        if one[: _LABEL.size] != label(rank):
            raise ProtocolError(f"rank {rank} holds parts of another step, or other nodes than the owners say")
    return [one[_LABEL.size :] for one in said]


def tell_other(comm: Communicator, stamp: Stamp, kind: Other, device: torch.device, remark: int = 0) -> list[int]:
    """Where others would tell the nodes of a step: that this is another exchange. All members must be in it.

    Args:
        device: where the others have their labels.
        remark: told along, of 64 bits.
    Returns: by rank, its remark.
    Raises:  GenerationLost: a member was lost.  NotOnAllWorkers: some are in another exchange.
    """
    source, out = (torch.zeros(count * ALIGNMENT, dtype=torch.uint8, device=device) for count in (1, comm.world))
    told = _LABEL.pack(*stamp, comm.rank, kind, remark)
    source[: len(told)].copy_(bytes_tensor(told))
    comm.all_gather(out, source)
    said = [_LABEL.unpack_from(bytes(row.cpu().numpy())) for row in out.view(comm.world, ALIGNMENT)]
    _check_others(said, (*stamp, kind))
    return [one[-1] for one in said]


def _check_others(said: Sequence[tuple[int, ...]], mine: tuple[int, ...] | None) -> None:
    """Compare what all have told.

    Args:    mine: stamp and kind of this worker's exchange; None: its nodes.
    """
    found = [(*one[:3], one[4]) if one[4] < 0 else None for one in said]
    if all(one == mine for one in found):
        return
    by_program: dict[tuple[int, ...], list[int]] = {}
    for rank, one in enumerate(found):
        # Members settle and seal alike, but where an evaluation of some begins with the one, or holds them back before
        # the other.
        if one is not None and one[-1] not in (Other.SEAL, Other.FRAGMENT):
            by_program.setdefault(one, []).append(rank)
    if not by_program:
        raise ProtocolError(f"the members are at different ends: {found}")
    (_, _, step, kind), ranks = min(by_program.items(), key=lambda item: (item[0][-1] == Other.SETTLE, len(item[1])))
    named = " and ".join(f"rank {rank}" for rank in ranks)
    if kind == Other.STOP:
        raise NotOnAllWorkers(
            f"run.stop() was called {_where(step)} by {named}, and not by all workers: {_DECIDE_ALIKE}"
        )
    raise NotOnAllWorkers(
        f"run.evaluate was called {_where(step)} by {named}, and not by all workers. They share the dataset out, and "
        f"all get the mean: call it on all; or, where it is not always called, {_DECIDE_ALIKE}"
    )


def _where(step: int) -> str:
    """Where user code is, behind the exchange of a step."""
    return f"where step.index was {step}" if step >= 0 else "before the first step"


def describe_other_exchange(mine: Key, theirs: Key) -> str:
    """What a joiner says that waits for one exchange, where the members have had another one."""
    here, there = (f"the end of step {step}" if ordinal else f"step {step}" for step, ordinal in (mine, theirs))
    return (
        f"a worker that joined is at {here} (counted from 0), where the others went on to {there}: all workers must "
        f"call run.evaluate and run.stop in the same steps; {_DECIDE_ALIKE}"
    )
