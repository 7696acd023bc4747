"""The backend's own sum over real gloo; a peer that is lost is a process, as the death of a thread is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from groups import HOST, bury, gloo_group, on_ranks, record_of

from rubato.engine.comm import Communicator, form, open_store
from rubato.errors import GenerationLost
from rubato.strategies.peers import Group
from rubato.strategies.sums import sum_over

ROOT = Path(__file__).resolve().parents[3]
LARGE = 1 << 25
"""Elements, so many that a peer can be lost amid them."""
PEER = f"""
import sys, torch
sys.path.insert(0, "tests")
from groups import HOST, record_of
from rubato.engine.comm import form
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
record = record_of(world, store=store)
comm = form(record, rank, job_id="test", host=HOST, device=torch.device("cpu"), is_revoked=lambda: False)
vector = torch.ones({LARGE})
sys.stdin.readline()
comm.all_reduce(vector)
sys.stdin.read()
"""


@contextmanager
def peers(world: int, store: str, ranks: Sequence[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each forms the group, and adds up when it is told to."""
    command = [sys.executable, "-c", PEER]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(world), store],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in ranks
    ]
    try:
        yield started
    finally:
        for peer in started:
            peer.kill()
            peer.communicate()


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_it_is_the_sum_with_equal_bits_everywhere(world: int, dtype: torch.dtype) -> None:
    """Of nothing, of fewer elements than ranks, and of several segments of gloo's."""
    generator = torch.Generator().manual_seed(world)

    def summed(parts: torch.Tensor) -> list[torch.Tensor]:
        return on_ranks(world, lambda rank: sum_over(group[rank], parts[rank], "native"))

    with gloo_group(world) as group:
        for numel in (0, 1, 7, 1001, *((3_000_000,) if dtype is torch.float32 else ())):
            parts = torch.randint(-8, 9, (world, numel), generator=generator).to(dtype)
            before = parts.clone()
            for one in summed(parts):
                assert torch.equal(one, parts.sum(0)), "small whole numbers add up exactly"
            assert torch.equal(parts, before), "what went in is as it was"
            parts = torch.randn(world, numel, generator=generator).to(dtype)
            first, *others = summed(parts)
            for one in (*others, summed(parts)[0]):
                assert torch.equal(one, first), "the same bits everywhere, and each time"
        assert not any(comm._summing for comm in group), "nothing is kept"


@pytest.mark.parametrize("world", [2, 3])
def test_messages_may_be_under_way_meanwhile(world: int) -> None:
    """To and from all, large ones, which are waited for behind the sums and the table of all."""
    others = [[one for one in range(world) if one != rank] for rank in range(world)]

    def play(rank: int) -> list[bool]:
        comm, found = group[rank], []
        for turn in range(20):
            came = [(one, torch.zeros(50_000)) for one in others[rank]]
            told = torch.full((50_000,), float(rank + turn))
            pending = comm.start_messages(came, [(one, told) for one in others[rank]])
            total = torch.full((100_000 + turn,), float(rank))
            table = torch.zeros(world)
            gathered = comm.start_all_gather(table, torch.tensor([float(rank)]))
            comm.all_reduce(total)
            gathered.wait()
            pending.wait()
            comm.confirm()
            found.append(bool((total == sum(range(world))).all()) and table.tolist() == list(range(world)))
            found += [bool((one == other + turn).all()) for other, one in came]
        return found

    with gloo_group(world) as group:
        assert all(all(found) for found in on_ranks(world, play))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_lost_amid_it_holds_nothing(world: int, ends: signal.Signals) -> None:
    """A death is noticed; of a peer that hangs gloo tells nobody, and the generation is revoked."""
    revoked = threading.Event()
    store, address = open_store(HOST)
    with peers(world, address, range(1, world)) as others:
        comm = formed(0, world, address, revoked.is_set)
        vector = torch.ones(LARGE)
        before = vector.clone()
        errors: list[str] = []

        def add_up() -> None:
            try:
                sum_over(comm, vector, "native")
            except GenerationLost as error:
                errors.append(str(error))

        for peer in others:
            assert peer.stdin is not None
            peer.stdin.write(b"go\n")
            peer.stdin.flush()
        adding = threading.Thread(target=add_up)
        adding.start()
        summed = first_of(comm._summing)
        ends_at = time.monotonic() + 20
        while not (summed[:: 1 << 14] != 1).any():
            assert time.monotonic() < ends_at
        os.kill(others[-1].pid, ends)
        lost_at = time.monotonic()
        if ends is signal.SIGSTOP:
            adding.join(0.3)
            assert adding.is_alive(), "nobody is told"
            revoked.set()
        adding.join(10)
        assert time.monotonic() - lost_at < 5
        (error,) = errors
        assert ("revoked" if ends is signal.SIGSTOP else "a peer was lost") in error
        assert (summed[:: 1 << 14] == 1).any(), "it was half done"
        assert torch.equal(vector, before), "training goes on with what it had"
        kept = weakref.ref(summed.untyped_storage())
        del summed
        assert kept() is not None, "gloo may still write to it"
        began = time.monotonic()
        comm.bury()
        assert time.monotonic() - began < 1
        for thread in threading.enumerate():
            if thread.name == "graveyard":
                thread.join(10)
                assert not thread.is_alive()
        assert kept() is None
    del store


def test_who_is_told_of_a_death_tells_the_next_by_giving_up() -> None:
    """Of ranks 0, 1 and 2, which wait for each other, only the last has to do with rank 3, which is killed."""
    store, address = open_store(HOST)
    with peers(4, address, [3]) as (peer,):
        group = on_ranks(3, lambda rank: formed(rank, 4, address, lambda: False))
        killing = threading.Timer(0.2, os.kill, (peer.pid, signal.SIGKILL))
        killing.start()

        def play(rank: int) -> str:
            with pytest.raises(GenerationLost) as caught:
                group[rank].all_reduce(torch.ones(1))
            group[rank].bury()
            return str(caught.value)

        began = time.monotonic()
        assert all("a peer was lost" in error for error in on_ranks(3, play))
        assert time.monotonic() - began < 5
        killing.join()
    bury(group)
    for comm in group:
        with pytest.raises(GenerationLost, match="revoked"):
            comm.all_reduce(torch.ones(10))
    del store


def test_some_of_the_ranks_have_none() -> None:
    with gloo_group(2) as group, pytest.raises(ValueError, match="add up by messages"):
        sum_over(Group(group[0], [0, 1]), torch.ones(3), "native")


def first_of(summing: list[torch.Tensor]) -> torch.Tensor:
    """What is being added up, when it is."""
    ends_at = time.monotonic() + 10
    while not summing:
        assert time.monotonic() < ends_at
        time.sleep(0.001)
    return summing[0]


def formed(rank: int, world: int, store: str, is_revoked: Callable[[], bool]) -> Communicator:
    record = record_of(world, store=store)
    return form(record, rank, job_id="test", host=HOST, device=torch.device("cpu"), is_revoked=is_revoked)
