"""How long training stands still when a worker joins, by the size of the model: two workers become three.

python -m benchmarks.join_size [--widths 1780,4000,6200] [--device-seconds 0,0.3] [--microbatches 4] [--rounds 3]

Of 4 microbatches two workers compute 2 each, and of three workers the busiest does: a step is as long before as after.
Of 6 they compute 3, then 2: a pass less, which the downtime, less a step *after*, counts as a standstill.

Where passes keep the cores busy, who joins competes with those who train; where a device computes them (here: a wait in
its place) it has the cores while they wait.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.document import publish
from benchmarks.flags import decimals, numbers
from benchmarks.local_job import local_job
from benchmarks.machine import fresh_memory_seconds, machine, today, versions
from benchmarks.processes import nothing_left_behind
from benchmarks.programs.workload import Network, Workload
from benchmarks.timeline import seconds_of
from rubato.engine.coordinator.pauses import SETTLING_STEPS
from rubato.wire.cluster import MetricRow

ENDLESS = 100_000
STEPS_BEFORE, WARM_STEPS = 12, 3
BATCH = 24


@dataclass(frozen=True)
class Join:
    """What one join showed."""

    downtime_s: float
    """As for the peers: the time between the commits around the change, less the median of the ten steps after it."""
    paused_s: float
    """Time between commits over the change beyond a step before the request, and a step after: from ten steps."""
    told_s: float
    """Likewise beyond a step while the worker joined: what the event tells users."""
    asked_s: float
    """From the request until three train; it includes the start of its process."""
    step_s: float
    """The median step of the two workers before the request."""
    joining_s: float
    """Of the steps while the third caught up."""
    step_after_s: float
    """The median step of three."""


def measure(width: int, device_s: float, microbatches: int, folder: Path) -> Join:
    """One job, one join."""
    job = Workload(str(folder), steps=ENDLESS, width=width, batch=BATCH, device_s=device_s * microbatches / BATCH)
    workers = {"initial": 2, "min": 1, "max": 4}
    with local_job(job, microbatches, workers=workers, checkpoint={"every": "1h"}, patience_s=600) as run:
        run.wait_step(STEPS_BEFORE)
        began, asked_at = time.monotonic(), run.step
        run.scale(3)
        run.wait_workers(3)
        asked_s = time.monotonic() - began
        run.wait_step(run.step + SETTLING_STEPS + 1)
        run.wait(lambda: len(run.events("generation.formed")) == 2, "the event of the join")
        rows = [MetricRow(**row) for row in run.rows()]
        told = run.events("generation.formed")[-1]
    former = [row for row in rows if row.generation == 1]
    before = [row for row in former if WARM_STEPS < row.step <= asked_at]
    joining = [row for row in former if row.step > asked_at]
    later = [row for row in rows if row.generation == 2]
    step_s = median_step(before)
    step_after_s = median_step(later[2:])
    downtime_s = max(0.0, _time(later[0]) - _time(former[-1]) - step_after_s)
    paused_s = max(0.0, _time(later[1]) - _time(former[-1]) - step_s - step_after_s)
    told_s = told["data"]["paused_seconds"]
    return Join(downtime_s, paused_s, told_s, asked_s, step_s, median_step(joining or before), step_after_s)


def median_step(rows: Sequence[MetricRow]) -> float:
    """Seconds."""
    return statistics.median(row.values["step_seconds"] for row in rows)


def _time(row: MetricRow) -> float:
    return seconds_of(row.time)


def line(width: int, device_s: float, joins: list[Join]) -> str:
    """A row of the table."""
    count = sum(parameter.numel() for parameter in Network(width).parameters())
    cells = [
        f"{count / 1e6:.0f} M",
        f"{2 * 4 * count / 1e6:.0f} MB",
        "a device" if device_s else "the cores",
        *(_ms([getattr(one, name) for one in joins]) for name in ("step_s", "joining_s", "step_after_s")),
        f"{statistics.median(one.asked_s for one in joins):.1f} s",
        *(_ms([getattr(one, name) for one in joins], ranges=True) for name in ("downtime_s", "paused_s", "told_s")),
    ]
    return f"| {' | '.join(cells)} |"


def _ms(times_s: list[float], *, ranges: bool = False) -> str:
    low, middle, high = (1000 * one for one in (min(times_s), statistics.median(times_s), max(times_s)))
    return f"{middle:.0f} ms ({low:.0f} to {high:.0f})" if ranges else f"{middle:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description="The pause of a join, by the size of the model.")
    parser.add_argument(
        "--widths",
        type=numbers,
        default=[1780, 4000, 6200],
        help="of layers",
    )
    parser.add_argument(
        "--device-seconds",
        type=decimals,
        default=[0.0, 0.3],
        help="what a pass waits for a device; 0: none, the cores are busy",
    )
    parser.add_argument("--microbatches", type=int, default=4, help="a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        f"{today()}, {machine(load)}; {versions(['torch'])}. Two workers become three; global batch {BATCH} in "
        f"{flags.microbatches} microbatches; medians and ranges of {flags.rounds}. Memory that was not in use takes "
        f"{fresh_memory_seconds():.1f} s a GiB.",
        "",
        "| parameters | with momentum | passes are computed by | step before | step while it joins | step after "
        "| request -> three train | downtime | beyond a step before | as the event tells it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for width in flags.widths:
        for device_s in flags.device_seconds:
            joins = []
            for number in range(flags.rounds):
                print(f"width {width}, device {device_s} s, round {number + 1} ...", file=sys.stderr, flush=True)
                with nothing_left_behind(), tempfile.TemporaryDirectory(prefix="rb-join-") as folder:
                    joins.append(measure(width, device_s, flags.microbatches, Path(folder)))
            lines.append(line(width, device_s, joins))
    publish("joins", "\n".join(lines), writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
