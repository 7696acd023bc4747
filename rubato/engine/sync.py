"""Live join: the members that have the state send it to those that have not, each an equal share of the bytes.

Phase 1, all-gather: sizes. Phase 2, all-to-all: the document (scalars and layout), from the lowest member.
Phase 3, all-to-all: the tensors as one run of bytes, member i of M sends share i. The joiner installs what it received
only when all of it is there; the first step's header compares digests. Cost: state bytes / M sent by each, per joiner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from rubato.checkpoint.layout import empty_like_layout, layout, raw_bytes
from rubato.engine.comm import Communicator
from rubato.engine.state import TrainingState


def share_state(
    comm: Communicator, state: TrainingState, holders: Sequence[int], extra: dict[str, object]
) -> dict[str, object]:
    """Bring every member that is not a holder to the state of the holders.

    Args:    holders: ranks that have it.  extra: what else the lowest holder tells.
    Returns: `extra` of the lowest holder.
    Raises:  GenerationLost: a member was lost; joiners are as before.
    """
    joiners = [rank for rank in range(comm.world) if rank not in holders]
    is_holder = comm.rank in holders
    tensors: list[torch.Tensor] = []
    text = b""
    if is_holder:
        document, tensors = state.encode()
        if comm.rank == holders[0]:
            text = json.dumps({"document": document, "layout": layout(tensors), "extra": extra}).encode()
    sizes = torch.zeros(comm.world, dtype=torch.int64)
    comm.all_gather(sizes, torch.tensor([len(text)], dtype=torch.int64))
    text = _send(comm, text, int(sizes[holders[0]]), holders[0], joiners)
    if is_holder:
        _send_shares(comm, tensors, holders, joiners)
        return extra
    told = json.loads(text)
    tensors = empty_like_layout(told["layout"])
    _receive_shares(comm, tensors, holders)
    state.install(told["document"], tensors)
    return dict(told["extra"])


def _send(comm: Communicator, data: bytes, size: int, sender: int, receivers: list[int]) -> bytes:
    """Bytes from one rank to some others."""
    sends = comm.rank == sender
    source = torch.frombuffer(bytearray(data * len(receivers)), dtype=torch.uint8) if sends else _bytes(0)
    out = _bytes(size if comm.rank in receivers else 0)
    out_sizes = [size if rank == sender and comm.rank in receivers else 0 for rank in range(comm.world)]
    source_sizes = [size if sends and rank in receivers else 0 for rank in range(comm.world)]
    comm.all_to_all(out, source, out_sizes, source_sizes)
    return bytes(out.numpy())


def _bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def _shares(total: int, count: int) -> list[tuple[int, int]]:
    """Begin and end of `count` runs that make up `total` bytes."""
    return [(total * index // count, total * (index + 1) // count) for index in range(count)]


def _send_shares(comm: Communicator, tensors: list[torch.Tensor], holders: Sequence[int], joiners: list[int]) -> None:
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    begin, end = _shares(total, len(holders))[list(holders).index(comm.rank)]
    share = _bytes(end - begin)
    for tensor, first, last, offset in _overlaps(tensors, begin, end):
        share[offset : offset + last - first].copy_(raw_bytes(tensor)[first:last])
    source = share.repeat(len(joiners)) if len(joiners) != 1 else share
    sizes = [end - begin if rank in joiners else 0 for rank in range(comm.world)]
    comm.all_to_all(_bytes(0), source, [0] * comm.world, sizes)


def _receive_shares(comm: Communicator, tensors: list[torch.Tensor], holders: Sequence[int]) -> None:
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    shares = _shares(total, len(holders))
    out = _bytes(total)
    sizes = [0] * comm.world
    for holder, (begin, end) in zip(holders, shares, strict=True):
        sizes[holder] = end - begin
    comm.all_to_all(out, _bytes(0), sizes, [0] * comm.world)
    for tensor, first, last, offset in _overlaps(tensors, 0, total):
        raw_bytes(tensor)[first:last].copy_(out[offset : offset + last - first])


def _overlaps(tensors: list[torch.Tensor], begin: int, end: int) -> list[tuple[torch.Tensor, int, int, int]]:
    """(tensor, first, last, offset): bytes first..last of the tensor lie at `offset` of the run begin..end."""
    found, at = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        first, last = max(begin, at), min(end, at + size)
        if first < last:
            found.append((tensor, first - at, last - at, first - begin))
        at += size
    return found
