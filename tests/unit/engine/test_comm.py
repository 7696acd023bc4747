"""Real gloo; the peer that dies is a process, because the death of a thread is no death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from groups import HOST, bury, gloo_group, on_ranks, outcomes, record_of

from rubato.engine.comm import Communicator, form, may_use_nccl, open_store
from rubato.errors import GenerationLost

R = TypeVar("R")
ROOT = Path(__file__).resolve().parents[3]
PEER = """
import sys, torch
sys.path.insert(0, "tests")
from groups import HOST, record_of
from rubato.engine.comm import form
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
record = record_of(world, store=store)
comm = form(record, rank, job_id="test", host=HOST, device=torch.device("cpu"), is_revoked=lambda: False)
print("formed", flush=True)
sys.stdin.readline()
others, large = [one for one in range(world) if one != rank], torch.ones(1 << 26, dtype=torch.uint8)
comm.start_messages([(one, torch.empty_like(large)) for one in others], [(one, large) for one in others])
sys.stdin.read()
"""


def formed(rank: int, world: int, store: str, is_revoked: Callable[[], bool] = lambda: False) -> Communicator:
    record = record_of(world, store=store)
    return form(record, rank, job_id="test", host=HOST, device=torch.device("cpu"), is_revoked=is_revoked)


@contextmanager
def peer_process(rank: int, world: int, store: str) -> Iterator[subprocess.Popen[bytes]]:
    """Forms the group, and then does nothing."""
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, str(rank), str(world), store],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield peer
    finally:
        peer.kill()
        peer.communicate()


@pytest.mark.parametrize("world", [2, 3])
def test_all_gather(world: int) -> None:
    def play(rank: int) -> list[int]:
        gathered = torch.zeros(world * 2, dtype=torch.int64)
        group[rank].all_gather(gathered, torch.tensor([rank, 10 * rank]))
        return gathered.tolist()

    with gloo_group(world) as group:
        results = on_ranks(world, play)
    assert results == [[value for other in range(world) for value in (other, 10 * other)]] * world


def gather(comm: Communicator, numel: int) -> None:
    comm.all_gather(torch.zeros(numel * comm.world), torch.ones(numel))


def tell_all(comm: Communicator, numel: int) -> None:
    others = [rank for rank in range(comm.world) if rank != comm.rank]
    comm.pass_messages([(rank, torch.zeros(numel)) for rank in others], [(rank, torch.ones(numel)) for rank in others])


def add_up(comm: Communicator, numel: int) -> None:
    comm.all_reduce(torch.ones(numel))


WAYS = [gather, tell_all]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_messages_pass_between_some_of_the_members(world: int) -> None:
    """Each sends the one behind it `rank` elements, then so many again; large ones pass both ways at once."""

    def play(rank: int) -> tuple[list[int], list[int], bool]:
        before, behind = (rank - 1) % world, (rank + 1) % world
        first, second = torch.zeros(before, dtype=torch.int64), torch.zeros(before, dtype=torch.int64)
        received = [(before, first), (before, second)]
        sent = [(behind, torch.full((rank,), rank)), (behind, torch.full((rank,), 10 * rank))]
        begun = [group[rank].start_messages(received[:1], sent[:1]), group[rank].start_messages([], sent[1:])]
        group[rank].pass_messages(received[1:], [])
        for one in reversed(begun):
            one.wait()
        group[rank].pass_messages([], [])
        partner, numel = rank ^ 1, 1 << 20
        if partner >= world:
            return first.tolist(), second.tolist(), True
        large = torch.zeros(numel)
        group[rank].pass_messages([(partner, large)], [(partner, torch.full((numel,), float(rank)))])
        return first.tolist(), second.tolist(), bool((large == partner).all())

    with gloo_group(world) as group:
        results = on_ranks(world, play)
    assert results == [([one] * one, [10 * one] * one, True) for one in [world - 1, *range(world - 1)]]


@pytest.mark.parametrize("exchange", WAYS)
def test_the_death_of_a_peer_ends_every_wait(exchange: Callable[[Communicator, int], None]) -> None:
    """Ranks 0 and 1 wait for rank 2, which is killed."""
    store, address = open_store(HOST)
    with peer_process(2, 3, address) as peer:
        group = on_ranks(2, lambda rank: formed(rank, 3, address))
        assert peer.stdout is not None
        assert peer.stdout.readline() == b"formed\n"
        started = threading.Barrier(3)

        def play(rank: int) -> None:
            started.wait()
            exchange(group[rank], 1)

        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.extend(outcomes(2, play)))
        waiting.start()
        started.wait()
        os.kill(peer.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        waiting.join(20)
        assert time.monotonic() - killed_at < 10
    assert all(isinstance(result, GenerationLost) and "a peer was lost" in str(result) for result in results)
    assert len(results) == 2
    bury(group)
    del store


def test_what_is_sent_may_change_when_it_is_confirmed() -> None:
    def play(rank: int) -> float:
        comm, large = group[rank], torch.full((1 << 20,), 1.0 + rank)
        if rank == 0:
            comm.pass_messages([], [(1, large), (2, large)])
            comm.confirm()
            large.zero_()
        else:
            time.sleep(0.05 * rank)
            comm.pass_messages([(0, large)], [])
            comm.confirm()
        assert len(comm._unconfirmed) == 2, "nothing is kept but the words of this very confirm"
        comm.all_gather(torch.empty(3), torch.ones(1))
        assert not comm._unconfirmed
        return float(large.mean())

    with gloo_group(3) as group:
        assert on_ranks(3, play) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_lost_amid_large_messages_holds_nothing(ends: signal.Signals) -> None:
    """Both ways are half done, of which gloo tells nobody. A death is noticed; a peer that hangs is revoked."""
    revoked = threading.Event()
    store, address = open_store(HOST)
    with peer_process(1, 2, address) as peer:
        (comm,) = on_ranks(1, lambda _: formed(0, 2, address, revoked.is_set))
        outs = [torch.zeros(1 << 26, dtype=torch.uint8) for _ in range(3)]
        pending = [comm.start_messages([(1, out)], [(1, torch.ones_like(out))]) for out in outs]
        assert peer.stdin is not None
        peer.stdin.write(b"go\n")
        peer.stdin.flush()
        until(lambda: [out for out in outs[:1] if out[1 << 20]], 1)
        os.kill(peer.pid, ends)
        if ends is signal.SIGSTOP:
            revoked.set()
        started = time.monotonic()
        with pytest.raises(GenerationLost):
            pending[0].wait()
        assert time.monotonic() - started < 5
        kept = [weakref.ref(out.untyped_storage()) for out in outs]
        threads = [one for one in threading.enumerate() if one.name == "messages"]
        comm.bury()
        for thread in [*threads, *(one for one in threading.enumerate() if one.name == "graveyard")]:
            if ends is signal.SIGKILL or thread in threads:
                thread.join(10)
                assert not thread.is_alive()
        outs.clear()
        pending.clear()
        assert threads
        assert [one() for one in kept] == [None] * 3
    del store


@pytest.mark.parametrize("exchange", [*WAYS, add_up])
def test_a_revoke_interrupts_a_wait(exchange: Callable[[Communicator, int], None]) -> None:
    """Rank 1 never comes to the collective."""
    revoked = threading.Event()
    store, address = open_store(HOST)
    group = on_ranks(2, lambda rank: formed(rank, 2, address, revoked.is_set))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            exchange(group[0], 1)
        except GenerationLost as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    revoked.set()
    thread.join(10)
    assert [str(error) for error in errors] == ["the generation was revoked"]
    bury(group)
    with pytest.raises(GenerationLost):
        exchange(group[1], 1)
    del store
    for thread in threading.enumerate():
        if thread.name == "messages":  # its connections are closed
            thread.join(10)
            assert not thread.is_alive()


def test_a_revoke_leaves_no_thread_behind_where_all_wait_for_messages() -> None:
    """A network that is away: nobody's message comes, and nobody's connection ends."""
    revoked = threading.Event()
    store, address = open_store(HOST)
    group = on_ranks(2, lambda rank: formed(rank, 2, address, revoked.is_set))
    started = threading.Barrier(3)

    def play(rank: int) -> None:
        started.wait()
        group[rank].pass_messages([(1 - rank, torch.zeros(1))], [])

    results: list[object] = []
    waiting = threading.Thread(target=lambda: results.extend(outcomes(2, play)))
    waiting.start()
    started.wait()
    threads = until(lambda: [one for one in threading.enumerate() if one.name == "messages"], 2)
    revoked.set()
    waiting.join(10)
    assert [str(result) for result in results] == ["the generation was revoked"] * 2
    bury(group)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    del store


def until(look: Callable[[], list[R]], count: int) -> list[R]:
    """Look until so many are found."""
    ends = time.monotonic() + 10
    while len(found := look()) < count:
        assert time.monotonic() < ends
        time.sleep(0.001)
    return found


def test_a_peer_that_buried_its_group_ends_the_wait_of_the_other() -> None:
    with gloo_group(2) as group:
        bury(group[1:])
        with pytest.raises(GenerationLost):
            group[0].all_gather(torch.zeros(2), torch.ones(1))


def test_a_buried_group_is_over_and_may_be_buried_again() -> None:
    with gloo_group(2) as group:
        bury(group)
        bury(group)
        for comm in group:
            with pytest.raises(GenerationLost, match="revoked"):
                comm.all_gather(torch.zeros(2), torch.ones(1))


def test_generations_of_one_store_do_not_meet() -> None:
    """Two groups at once, over one store: each rank finds the peers of its own generation."""
    store, address = open_store(HOST)

    def play(rank: int) -> list[int]:
        number, place = 1 + rank // 2, rank % 2
        record = record_of(2, number, store=address)
        comm = form(record, place, job_id="t", host=HOST, device=torch.device("cpu"), is_revoked=lambda: False)
        groups.append(comm)
        out = torch.zeros(2, dtype=torch.int64)
        comm.all_gather(out, torch.tensor([10 * number + place]))
        return out.tolist()

    groups: list[Communicator] = []
    assert on_ranks(4, play) == [[10, 11], [10, 11], [20, 21], [20, 21]]
    bury(groups)
    del store


def test_a_store_that_is_gone_is_a_lost_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.engine.comm.FORM_TIMEOUT_S", 0.2)
    store, address = open_store(HOST)
    del store
    with pytest.raises(GenerationLost, match="generation 1 could not be formed"):
        formed(0, 2, address)


def test_a_member_that_does_not_come_is_a_lost_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.engine.comm.FORM_TIMEOUT_S", 0.5)
    store, address = open_store(HOST)
    with pytest.raises(GenerationLost, match="generation 1 could not be formed"):
        formed(0, 2, address)
    del store


def test_nccl_is_used_where_all_have_it_and_a_device_of_their_own() -> None:
    assert may_use_nccl([[1, 7, 7], [1, 7, 8], [1, 9, 9]])
    assert not may_use_nccl([[1, 7, 7], [1, 7, 8], [1, 7, 7]])
    assert not may_use_nccl([[1, 7, 7], [0, 7, 8]])


def test_what_lies_in_the_memory_of_the_cpu_never_travels_over_nccl() -> None:
    """Standings, joins, tables: a group for devices would refuse them."""
    with gloo_group(2) as group:
        for comm in group:
            comm.use_nccl(object())

        def play(rank: int) -> list[int]:
            out = torch.zeros(2, dtype=torch.int64)
            group[rank].all_gather(out, torch.tensor([rank + 5]))
            return out.tolist()

        assert on_ranks(2, play) == [[5, 6]] * 2
        for comm in group:
            comm._nccl = None  # it is none that could be buried


class Recorder:
    """As the NCCL backend is called; torch's annotations of it take no device."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self._failing = failing

    def _start_coalescing(self) -> None:
        self.calls.append("start")

    def _end_coalescing(self) -> str:
        self.calls.append("end")
        return "work"

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> None:
        self._say(f"recv {rank} {tensors[0].numel()} {tag}")

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> None:
        self._say(f"send {rank} {tensors[0].numel()} {tag}")

    def _say(self, call: str) -> None:
        if call.startswith(self._failing or "none"):
            raise RuntimeError("NCCL error")
        self.calls.append(call)


def test_on_nccl_messages_are_one_operation_that_always_ends() -> None:
    comm = Communicator(None, 0, 3, lambda: False)
    told = [(1, torch.zeros(2)), (2, torch.zeros(3))]
    comm.use_nccl(nccl := Recorder())
    assert comm._pass_by_nccl(told, told) == "work"
    assert nccl.calls == ["start", "recv 1 2 0", "recv 2 3 0", "send 1 2 0", "send 2 3 0", "end"]
    comm.use_nccl(nccl := Recorder(failing="send 2"))
    with pytest.raises(RuntimeError, match="NCCL error"):
        comm._pass_by_nccl(told, told)
    assert nccl.calls[-1] == "end"
    for name in ("_start_coalescing", "_end_coalescing"):
        annotation = getattr(torch._C._distributed_c10d.Backend, name).__doc__
        assert annotation.split("->")[0].strip().endswith("(self: torch._C._distributed_c10d.Backend)"), annotation
