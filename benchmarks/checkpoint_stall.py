"""What checkpoints cost the training: how long each held it up, and how much memory their copies take.

Two workers train an MLP of 10 million parameters with SGD and momentum, and save every few seconds. *Stall* is what a
worker's main thread spends on a checkpoint (encoding, copying, and waiting for the write before), as the workers report
it: the slowest of each checkpoint. Its share at the default interval is stall / 30 s. Writing and hashing go on beside
the training and take processor time from it where no core is free: that shows in the steps during which a write was
under way, against all others.

    python -m benchmarks.checkpoint_stall [--workers 2] [--every 3] [--seconds 60] [--storage URI] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.document import publish
from benchmarks.local_job import local_job
from benchmarks.machine import machine, today, versions
from benchmarks.processes import nothing_left_behind
from benchmarks.programs.workload import Workload, peak_bytes
from benchmarks.timeline import seconds_of

ENDLESS = 10**6
BATCH, MICROBATCHES = 256, 8
DEFAULT_INTERVAL_S = 30.0
TARGET = 0.05
NEVER_S = 10.0**6


def measure(home: Path, workers: int, every_s: float, seconds: float, storage: str | None) -> dict[str, Any]:
    """Checkpoints, rows and memory of one run."""
    workload = Workload(str(home), steps=ENDLESS, batch=BATCH)
    with local_job(
        workload,
        MICROBATCHES,
        checkpoint_dir=storage,
        workers={"initial": workers, "min": workers, "max": max(workers, 4)},
        checkpoint={"every": every_s, "keep_last": 2},
    ) as job:
        job.wait_step(5)
        deadline = time.monotonic() + seconds
        is_saving = every_s < NEVER_S
        job.wait(
            lambda: time.monotonic() > deadline and (bool(job.events("checkpoint.committed")) or not is_saving),
            "the end",
        )
        memory = [peak_bytes(one["pid"]) for one in job.members()]
        return {"saved": job.events("checkpoint.committed"), "rows": job.rows(), "memory": memory}


def overlapping(rows: list[dict[str, Any]], saved: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds of steps during which a checkpoint was written, and of all others."""
    spans = [(seconds_of(one["time"]) - one["data"]["seconds"], seconds_of(one["time"])) for one in saved]
    during: list[float] = []
    between: list[float] = []
    for row in rows[5:]:
        end = seconds_of(row["time"])
        took = row["values"]["step_seconds"]
        is_hit = any(begin <= end and end - took <= stop for begin, stop in spans)
        (during if is_hit else between).append(took)
    return during, between


def report(flags: argparse.Namespace, found: dict[str, Any], plain: dict[str, Any], load: float) -> str:
    """Markdown."""
    stalls = [one["data"]["stall_seconds"] for one in found["saved"]]
    writes = [one["data"]["seconds"] for one in found["saved"]]
    size = found["saved"][-1]["data"]["bytes"]
    during, between = overlapping(found["rows"], found["saved"])
    usual = statistics.median(between or during)
    share = statistics.median(stalls) / DEFAULT_INTERVAL_S
    worst = max(stalls) / DEFAULT_INTERVAL_S
    more = (max(found["memory"]) - max(plain["memory"])) / 1e6
    copies = min(2, flags.workers) / flags.workers
    slower = f"{statistics.median(during):.3f} s ({len(during)} steps)" if during else "none seen"
    return "\n".join(
        [
            f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.workers} workers, a state of {size / 1e6:.0f} "
            f"MB, {len(stalls)} checkpoints, one every {flags.every:g} s, to {flags.storage or 'a local folder'}.",
            "",
            "| figure | median | worst |",
            "|---|---|---|",
            f"| stall of a checkpoint | {statistics.median(stalls) * 1e3:.0f} ms | {max(stalls) * 1e3:.0f} ms |",
            f"| its share of the time at the default interval (30 s); target under {TARGET:.0%} "
            f"| {share:.2%} | {worst:.2%} |",
            f"| from the copy until the manifest was there | {statistics.median(writes):.2f} s | {max(writes):.2f} s |",
            f"| step between checkpoints | {usual:.3f} s | |",
            f"| step while one is written | {slower} | |",
            "",
            f"Peak memory of a worker: {max(found['memory']) / 1e6:.0f} MB, without checkpoints "
            f"{max(plain['memory']) / 1e6:.0f} MB ({more:+.0f} MB); its copies are {copies:g} times the state, "
            f"{copies * size / 1e6:.0f} MB ([ADR 15](adr/0015-each-stripe-is-copied-twice.md)).",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what checkpoints cost the training.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between checkpoints, to see many of them")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--storage", default=None, help="folder or URI; default: a temporary folder")
    parser.add_argument("--json", type=Path, default=None, help="also write the raw figures here")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, dict[str, Any]] = {}
    for name, every in (("plain", NEVER_S), ("saving", flags.every)):
        print(f"{name} ...", file=sys.stderr, flush=True)
        seconds = min(15.0, flags.seconds) if name == "plain" else flags.seconds
        with nothing_left_behind(), tempfile.TemporaryDirectory(prefix="rb-save-") as home:
            storage = flags.storage if name == "saving" else None
            found[name] = measure(Path(home), flags.workers, every, seconds, storage)
    publish("checkpoints", report(flags, found["saving"], found["plain"], load), writes=flags.write)
    if flags.json is not None:
        flags.json.write_text(json.dumps(found["saving"]["saved"], indent=1))
    stalls = [one["data"]["stall_seconds"] for one in found["saving"]["saved"]]
    return 0 if statistics.median(stalls) / DEFAULT_INTERVAL_S < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
