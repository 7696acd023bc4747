"""How long training stands still when a worker joins, by the size of the model: two workers become three.

python -m benchmarks.join_size [--widths 1780,4000,6200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.document import publish
from benchmarks.local_job import local_job
from benchmarks.machine import machine, today, versions
from benchmarks.processes import nothing_left_behind
from benchmarks.programs.workload import Network, Workload
from rubato.engine.coordinator.pauses import SETTLING_STEPS, PauseMeter
from rubato.wire.cluster import MetricRow

ENDLESS = 100_000
STEPS_BEFORE, WARM_STEPS = 12, 2
BATCH, MICROBATCHES = 24, 6


@dataclass(frozen=True)
class Join:
    """What one join showed."""

    paused_s: float
    """Time between commits beyond the usual step, over the whole change: as its event tells it, from ten steps."""
    asked_s: float
    """From the request until three train; it includes the start of its process."""
    step_s: float
    """The median step of the two workers before."""


def measure(width: int, folder: Path) -> Join:
    """One job, one join."""
    job = Workload(str(folder), steps=ENDLESS, width=width, batch=BATCH)
    workers = {"initial": 2, "min": 1, "max": 4}
    with local_job(job, MICROBATCHES, workers=workers, checkpoint={"every": "1h"}) as run:
        run.wait_step(STEPS_BEFORE)
        began = time.monotonic()
        run.scale(3)
        run.wait_workers(3)
        asked_s = time.monotonic() - began
        run.wait_step(run.step + SETTLING_STEPS + 1)
        rows = [MetricRow(**row) for row in run.rows()]
    before = [row for row in rows if row.generation == 1][WARM_STEPS:]
    meter = PauseMeter(2, 3, before)
    for row in rows:
        meter.see(row, now=0.0)
    paused_s = meter.paused_s()
    assert paused_s is not None
    return Join(paused_s, asked_s, statistics.median(row.values["step_seconds"] for row in before))


def line(width: int, joins: list[Join]) -> str:
    """A row of the table."""
    count = sum(parameter.numel() for parameter in Network(width).parameters())
    paused = [one.paused_s * 1000 for one in joins]
    cells = [
        f"{count / 1e6:.0f} M",
        f"{2 * 4 * count / 1e6:.0f} MB",
        f"{statistics.median(one.step_s for one in joins) * 1000:.0f} ms",
        f"{statistics.median(one.asked_s for one in joins):.1f} s",
        f"{statistics.median(paused):.0f} ms ({min(paused):.0f} to {max(paused):.0f})",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="The pause of a join, by the size of the model.")
    parser.add_argument(
        "--widths",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[1780, 4000, 6200],
        help="of layers",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        f"{today()}, {machine(load)}; {versions(['torch'])}. Two workers become three; global batch {BATCH} in "
        f"{MICROBATCHES} microbatches; medians and ranges of {flags.rounds}.",
        "",
        "| parameters | with momentum | step before | request -> three train | downtime |",
        "|---|---|---|---|---|",
    ]
    for width in flags.widths:
        joins = []
        for number in range(flags.rounds):
            print(f"width {width}, round {number + 1} ...", file=sys.stderr, flush=True)
            with nothing_left_behind(), tempfile.TemporaryDirectory(prefix="rb-join-") as folder:
                joins.append(measure(width, Path(folder)))
        lines.append(line(width, joins))
    publish("joins", "\n".join(lines), writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
