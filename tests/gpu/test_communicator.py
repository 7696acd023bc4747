"""Collectives of tensors on a device: one rank over NCCL, several that share the device by way of the CPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from groups import HOST, bury, fake_group, on_ranks, record_of

from rubato.engine.buckets import Bucket
from rubato.engine.comm import Communicator, form, open_store
from rubato.engine.exchange import Exchange
from rubato.engine.header import Header, Leaving, decide, header_bytes
from rubato.engine.reduction import Reduced
from rubato.engine.tree import Partials, Tree, balanced_owners

CUDA = torch.device("cuda", 0)
V, LENGTH = 12, 1000


@contextmanager
def device_group(world: int) -> Iterator[list[Communicator]]:
    store, address = open_store(HOST)
    record = record_of(world, store=address)
    group = on_ranks(
        world, lambda rank: form(record, rank, job_id="gpu", host=HOST, device=CUDA, is_revoked=lambda: False)
    )
    try:
        yield group
    finally:
        bury(group)
        del store


@pytest.mark.parametrize("world", [1, 2, 3])
def test_collectives_on_a_device(world: int) -> None:
    with device_group(world) as group:
        assert [comm._nccl is not None for comm in group] == [world == 1] * world

        def play(rank: int) -> tuple[list[int], list[int]]:
            gathered = torch.zeros(world, dtype=torch.int64, device=CUDA)
            group[rank].all_gather(gathered, torch.tensor([rank + 5], device=CUDA))
            out = torch.full((world,), 11 * rank, device=CUDA)
            source = torch.arange(world, device=CUDA) + 10 * rank
            others = [other for other in range(world) if other != rank]
            received, sent = ([(other, one[other : other + 1]) for other in others] for one in (out, source))
            group[rank].pass_messages(received, sent)
            return gathered.tolist(), out.tolist()

        for rank, (gathered, out) in enumerate(on_ranks(world, play)):
            assert gathered == [one + 5 for one in range(world)]
            assert out == [10 * sender + rank for sender in range(world)]


def reduce_on(device: torch.device, comm: Communicator, rank: int, world: int) -> Reduced:
    values = torch.randn(V, LENGTH, generator=torch.Generator().manual_seed(1)) * 1e3
    owners = balanced_owners(V, world)
    mine = [leaf for leaf in range(V) if owners[leaf] == rank]
    held: Partials[torch.Tensor] = Partials(Tree.of(V), range(V), lambda left, right: left.add_(right))
    for leaf in mine:
        held.put((0, leaf), values[leaf].to(device))
    slots = tuple((1.0, 2.0) if leaf in mine else (0.0, 0.0) for leaf in range(V))
    header = Header(1, 1, 3, 1, 1, Leaving.NO, 0, True, None, 7, slots)
    buckets = [Bucket(512, 960, range(0)), Bucket(0, 512, range(0)), Bucket(960, LENGTH, range(0))]
    exchange = Exchange(comm, torch.empty(LENGTH), header_bytes(V), 0, device, None, buckets)
    return exchange.reduce(held, owners, header, b"")


@pytest.mark.parametrize("world", [2, 3])
def test_a_reduction_on_the_device_has_the_bits_and_decisions_of_one_on_the_cpu(world: int) -> None:
    cpu = torch.device("cpu")
    fakes = fake_group(world)
    expected = on_ranks(world, lambda rank: reduce_on(cpu, fakes[rank], rank, world))
    with device_group(world) as group:
        found = on_ranks(world, lambda rank: reduce_on(CUDA, group[rank], rank, world))
    for here, there in zip(found, expected, strict=True):
        assert torch.equal(torch.cat(here.chunks).cpu(), torch.cat(there.chunks))
        assert decide(here.headers) == decide(there.headers)
