"""What keeping freed memory is worth: one worker's passes with and without it (`rubato/allocator.py`).

python -m benchmarks.allocator [--steps 12] [--microbatches 8] [--width 1780]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.machine import machine, today, versions
from benchmarks.programs.workload import WIDTH, Network, mean_loss
from rubato.allocator import keep_freed_memory

BATCH = 256
ROUNDS = 3


def measure(flags: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds and page faults of a step of forward and backward passes: medians without the first steps."""
    if flags.keeps and not keep_freed_memory():
        raise SystemExit("this C library cannot keep freed memory")
    torch.set_num_threads(1)
    network = Network(flags.width)
    size = BATCH // flags.microbatches
    x, y, ids = torch.randn(size, 784), torch.randint(0, 10, (size,)), torch.arange(size)
    times, faults = [], []
    for _ in range(flags.steps):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(flags.microbatches):
            mean_loss(network(x, ids), y).backward()  # type: ignore[no-untyped-call]
            for parameter in network.parameters():
                parameter.grad = None
        times.append((time.perf_counter() - began) * 1000)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(times[2:]), statistics.median(faults[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description="What keeping freed memory is worth.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--keeps", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.keeps is not None:
        print(json.dumps(measure(flags)))
        return 0
    load = os.getloadavg()[0]
    print(f"{today()}, {machine(load)}; {versions(['torch'])}; medians of {ROUNDS} runs")
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for _ in range(ROUNDS):
        for keeps, results in found.items():
            command = [sys.executable, "-m", "benchmarks.allocator", *sys.argv[1:], "--keeps", str(keeps)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout))
    for keeps, results in found.items():
        took_ms, faults = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"{'kept' if keeps else 'given back'}: {took_ms:.0f} ms and {faults:.0f} page faults a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
