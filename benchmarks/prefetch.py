"""Step time with and without reading ahead, for samples that cost time to read.

The dataset takes about one millisecond a sample, once waiting (as for a disk or a network) and once computing (as for
decoding). Runs with the same number of workers are repeated in turn, so that a busy machine is as busy
for each of them; the digests of all must be equal.

    python -m benchmarks.prefetch [--rounds 3] [--steps 300] [--sample-ms 1] [--write]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.document import publish
from benchmarks.machine import machine, today
from benchmarks.processes import nothing_left_behind
from rubato.testing import LocalJob

PROGRAM = Path(__file__).parent / "programs" / "slow_data.py"
BATCH, MICROBATCHES = 64, 8
SETTLE_SHARE = 0.5
"""Of the steps at the start, in which processes still import torch, nothing is measured."""


def measure(kind: str, workers: int, prefetch: int, steps: int, sample_ms: float) -> tuple[float, str]:
    """Median seconds of a step, and the digest."""
    with (
        tempfile.TemporaryDirectory() as home,
        LocalJob(
            Path(home),
            PROGRAM,
            config={"steps": steps, "kind": kind, "prefetch": prefetch, "sample_ms": sample_ms},
            batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
            workers={"initial": workers, "min": 1, "max": 4},
        ) as job,
    ):
        for step in range(0, steps, 10):  # patience is for one wait
            job.wait_step(step)
        _, digest = job.result()
        rows = job.rows()[int(steps * SETTLE_SHARE) :]
        return statistics.median(row["values"]["step_seconds"] for row in rows), digest


def report(flags: argparse.Namespace) -> str:
    load = os.getloadavg()[0]
    lines = [
        f"{machine(load)}; {BATCH} samples a step of about {flags.sample_ms:g} ms, {flags.rounds} rounds; {today()}",
        "",
        "| a sample | workers | processes each | step, median ms | range |",
        "|---|---|---|---|---|",
    ]
    digests = set()
    for kind in ("wait", "compute"):
        for workers in (1, 2):
            steps_ms: dict[int, list[float]] = {0: [], 1: [], 2: []}
            for _ in range(flags.rounds):
                for prefetch, measured in steps_ms.items():
                    step_s, digest = measure(kind, workers, prefetch, flags.steps, flags.sample_ms)
                    measured.append(step_s * 1000)
                    digests.add(digest)
            for prefetch, measured in steps_ms.items():
                middle = statistics.median(measured)
                lines.append(
                    f"| {kind}s | {workers} | {prefetch} | {middle:.0f} | {min(measured):.0f}-{max(measured):.0f} |"
                )
                print(lines[-1], file=sys.stderr, flush=True)
    if len(digests) != 1:
        sys.exit(f"the results differ: {sorted(digests)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time with and without reading ahead.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sample-ms", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    with nothing_left_behind():
        text = report(flags)
    publish("prefetch", text, writes=flags.write)


if __name__ == "__main__":
    main()
