"""How the second phase of a reduction is best sent: by gloo's all-gather, by an all-to-all, or message by message.

python -m benchmarks.gather [--workers 2,4] [--megabytes 40]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from benchmarks.flags import numbers
from benchmarks.machine import machine, today, versions
from rubato.engine.comm import Communicator, form, open_store
from rubato.wire.worker import GenerationRecord, Member, Origin

HOST = "127.0.0.1"
ROUNDS = 15
WARM = 3


def work(rank: int, world: int, megabytes: float, store: str, told: Connection) -> None:
    """One rank: the medians of all ways, in milliseconds."""
    torch.set_num_threads(1)
    members = tuple(Member(f"w{one}", f"{one}.1") for one in range(world))
    record = GenerationRecord(1, 1, members, tuple(range(world)), store, Origin("fresh"), "start", 0)
    comm = form(record, rank, job_id="gather", host=HOST, device=torch.device("cpu"), is_revoked=lambda: False)
    size = int(megabytes * 1e6 / world)
    row, rows = torch.ones(size, dtype=torch.uint8), torch.empty(size * world, dtype=torch.uint8)
    sizes = [0 if other == rank else size for other in range(world)]

    def by_all_to_all() -> None:
        copies = row if world == 2 else row.repeat(world - 1)
        comm._group.alltoall_base(rows[: sum(sizes)], copies, sizes, sizes).wait()

    def by_messages() -> None:
        others = [other for other in range(world) if other != rank]
        parts = torch.split(rows, size)
        comm.pass_messages([(other, parts[other]) for other in others], [(other, row) for other in others])

    ways: tuple[Callable[[], None], ...] = (lambda: comm.all_gather(rows, row), by_all_to_all, by_messages)
    told.send([median_ms(comm, way) for way in ways])


def median_ms(comm: Communicator, way: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        together = torch.zeros(comm.world, dtype=torch.int64)
        comm.all_gather(together, torch.ones(1, dtype=torch.int64))
        began = time.perf_counter()
        way()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[WARM:])


def measure(world: int, megabytes: float) -> list[float]:
    """Of the slowest rank."""
    processes = multiprocessing.get_context("spawn")
    store, address = open_store(HOST)
    here, there = zip(*(processes.Pipe(duplex=False) for _ in range(world)), strict=True)
    started = [
        processes.Process(target=work, args=(rank, world, megabytes, address, there[rank])) for rank in range(world)
    ]
    for process in started:
        process.start()
    found = [pipe.recv() for pipe in here]
    for process in started:
        process.join()
    del store
    return [max(column) for column in zip(*found, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description="All-gather against all-to-all and messages.")
    parser.add_argument("--workers", type=numbers, default=[2, 4])
    parser.add_argument("--megabytes", type=float, default=40.0, help="of the whole vector")
    flags = parser.parse_args()
    print(f"{today()}, {machine(os.getloadavg()[0])}; {versions(['torch'])}; medians of {ROUNDS - WARM}")
    for world in flags.workers:
        gathered, exchanged, passed = measure(world, flags.megabytes)
        print(
            f"{world} workers, {flags.megabytes:g} MB: all-gather {gathered:.1f} ms, all-to-all {exchanged:.1f} ms, "
            f"messages {passed:.1f} ms; of all-gather's time all-to-all takes {exchanged / gathered:.2f}, messages "
            f"{passed / gathered:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
