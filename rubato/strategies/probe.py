"""What the links between the workers of a generation carry, and what each exchange makes of them.

1. A word between rank 0 and a worker on another machine, there and back: the latency.
2. A message the same way, four times as large until it takes long enough to be told from a word: the bandwidth.
3. Each exchange with next to nothing, with that message's size, and with a quarter and a sixteenth of it: what it takes
   to start, and how much longer the larger ones take. `rubato.planner.measured.link_of` reads this.

Messages are timed by rank 0, exchanges by the rank that is at it for longest: a step waits for that one.
Source: the two parameters of Hockney 1994, doi:10.1016/S0167-8191(06)80021-9.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from rubato.strategies.peers import Collectives, all_gather, exchange, tell_of_first
from rubato.strategies.sums import PATTERNS, sum_over

SMALL = 256
"""Elements of next to nothing."""
FIRST, LAST = 1 << 14, 1 << 22
"""Elements of the first and of the largest message."""
LONG_S = 0.1
ROUNDS = 3


def probe(comm: Collectives, hosts: Sequence[int], tell: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Measure; all ranks call it, and there are two at least.

    Args:
        hosts: by rank, a number for the machine it is on.
        tell: called before each measurement, as a sign of life.
    Returns: by name, seconds, bytes, bytes a second, and how many workers took part.
    Raises:  GenerationLost: a peer died.
    """
    far = next((rank for rank, host in enumerate(hosts) if host != hosts[0]), 1)
    latency_s = statistics.median(_there_and_back(comm, far, 1) for _ in range(ROUNDS)) / 2
    numel, long_s = FIRST, _there_and_back(comm, far, FIRST)
    while _of_first(comm, long_s < LONG_S and numel < LAST):
        numel *= 4
        long_s = _there_and_back(comm, far, numel)
    size = numel * torch.float32.itemsize
    sizes = {"small": SMALL, "sixteenth": numel // 16, "quarter": numel // 4, "large": numel}
    found = {
        "link_latency_s": latency_s,
        "link_bytes_per_s": size / max(long_s - 2 * latency_s, 1e-9),
        "link_workers": float(comm.world),
        "link_sixteenth_bytes": float(size // 16),
        "link_quarter_bytes": float(size // 4),
        "link_large_bytes": float(size),
    }
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        pattern: partial(sum_over, comm, pattern=pattern) for pattern in PATTERNS
    }
    calls["all_gather"] = partial(all_gather, comm)
    for name, call in calls.items():
        for title, elements in sizes.items():
            vector, times = torch.ones(elements, device=comm.device), []
            for _ in range(ROUNDS):
                tell()
                times.append(_time_of(comm, call, vector))
            # Waits for a core are no part of what it takes to start, and are as long as that.
            found[f"link_{name}_{title}_s"] = min(times) if title == "small" else statistics.median(times)
    return found


def _there_and_back(comm: Collectives, far: int, numel: int) -> float:
    """A message from rank 0, and a word back. Only these two have something to do."""
    word, message = (torch.ones(size, device=comm.device) for size in (1, numel))
    began = time.perf_counter()
    for sender, receiver, one in ((0, far, message), (far, 0, word)):
        sent = {receiver: one} if comm.rank == sender else {}
        expected = {sender: one.numel()} if comm.rank == receiver else {}
        exchange(comm, sent, expected, one.dtype)
    took_s = time.perf_counter() - began
    comm.confirm()
    return took_s


def _of_first(comm: Collectives, answer: bool) -> bool:
    """What rank 0 answers."""
    return bool(tell_of_first(comm, torch.tensor([int(answer)], dtype=torch.uint8, device=comm.device), 1))


def _time_of(comm: Collectives, call: Callable[[torch.Tensor], object], vector: torch.Tensor) -> float:
    """From when all are here, of the slowest."""
    all_gather(comm, vector[:1])
    began = time.perf_counter()
    call(vector)
    if vector.device.type == "cuda":
        torch.cuda.synchronize(vector.device)
    took_s = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=comm.device)
    slowest_s = float(torch.stack(all_gather(comm, took_s)).max())
    comm.confirm()
    return slowest_s
