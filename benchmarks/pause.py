"""Downtime at scale-up, scale-down and SIGKILL, measured from the commits of real training processes.

Downtime = gap between the last committed step before the event and the first one after it, less one median step of the
first ten after it. Each round is one run: 1 -> 2 -> 4 workers, 4 -> 3, back to 4, SIGKILL of one of the four. The
digest at its end must equal that of one undisturbed worker.

    python benchmarks/pause.py [--rounds 3] [--steps 260] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rubato.testing import LocalJob, oracle

PROGRAM = Path(__file__).parent / "programs" / "mlp.py"
BATCH, MICROBATCHES = 256, 8
SETTLE_STEPS = 12
"""Steps between two events: the pause needs ten after it."""
TARGETS_S = {"scale-up 1 -> 2": 0.1, "scale-up 2 -> 4": 0.1, "leave 4 -> 3": 0.1, "SIGKILL of one of 4": 0.4}


@dataclass
class Figures:
    """What the rounds measured, by event."""

    pauses_s: dict[str, list[float]] = field(default_factory=dict)
    redone: list[int] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    requests_s: list[float] = field(default_factory=list)

    def add(self, event: str, pause_s: float) -> None:
        self.pauses_s.setdefault(event, []).append(pause_s)


def formed(job: LocalJob, count: int) -> dict[str, Any]:
    """The data of the count-th generation, once its pause is known."""
    job.wait(lambda: len(job.events("generation.formed")) >= count, f"generation {count}")
    data: dict[str, Any] = job.events("generation.formed")[count - 1]["data"]
    job.wait_step(job.step + SETTLE_STEPS)
    return data


def one_round(home: Path, steps: int, figures: Figures) -> str:
    with LocalJob(
        home,
        PROGRAM,
        config={"steps": steps},
        batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
        workers={"initial": 1, "min": 1, "max": 4},
    ) as job:
        formed(job, 1)
        for count, (event, workers) in enumerate(
            (("scale-up 1 -> 2", 2), ("scale-up 2 -> 4", 4), ("leave 4 -> 3", 3), ("scale-up 3 -> 4", 4)), start=2
        ):
            job.scale(workers)
            job.wait_workers(workers)
            figures.add(event, formed(job, count)["paused_seconds"])
        job.kill([2])
        data = formed(job, 6)
        assert data["cause"] == "recovery", data
        figures.add("SIGKILL of one of 4", data["paused_seconds"])
        figures.redone.append(data["redone_microbatches"])
        replaced = formed(job, 7)
        figures.add("replacement joins", replaced["paused_seconds"])
        ready = [event["data"]["seconds"] for event in job.events("worker.ready")]
        figures.requests_s += ready[1:]
        figures.steps_s += [row["values"]["step_seconds"] for row in job.rows() if row["workers"] == 4]
        _, digest = job.result()
        return digest


def spread(values: list[float], unit: float = 1000.0) -> str:
    return f"{statistics.median(values) * unit:.0f} ({min(values) * unit:.0f} to {max(values) * unit:.0f})"


def report(figures: Figures, rounds: int, *, is_equal: bool) -> str:
    lines = [
        f"{rounds} rounds on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; 10 M parameters, global batch "
        f"{BATCH} in {MICROBATCHES} microbatches, gloo, one thread a worker",
        "",
        "| event | downtime, median (range), ms | target, ms |",
        "|---|---|---|",
    ]
    for event, pauses in figures.pauses_s.items():
        target = f"{TARGETS_S[event] * 1000:.0f}" if event in TARGETS_S else ""
        lines.append(f"| {event} | {spread(pauses)} | {target} |")
    lines += [
        "",
        f"median step at 4 workers {statistics.median(figures.steps_s) * 1000:.0f} ms; a new process is warm after "
        f"{statistics.median(figures.requests_s):.1f} s; microbatches computed again after SIGKILL: {figures.redone} "
        f"of {MICROBATCHES}",
        f"digests equal to one undisturbed worker's: {'yes, in every round' if is_equal else 'NO'}",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the downtime of scaling and of a kill.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--json", type=Path, default=None, help="also write the raw figures here")
    flags = parser.parse_args()
    figures, digests = Figures(), set()
    for number in range(flags.rounds):
        print(f"round {number + 1} of {flags.rounds} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="rubato-bench-") as home:
            digests.add(one_round(Path(home), flags.steps, figures))
    print("one undisturbed worker ...", file=sys.stderr, flush=True)
    digests.add(oracle(PROGRAM, config={"steps": flags.steps}, batch=BATCH, num_microbatches=MICROBATCHES))
    print(report(figures, flags.rounds, is_equal=len(digests) == 1))
    if flags.json is not None:
        flags.json.write_text(json.dumps({"pauses_s": figures.pauses_s, "digests": sorted(digests)}, indent=1))
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
