"""Write a recorded run of the scheduler into docs/explanation/scheduling.md, from the simulator that its tests drive.

`python scripts/scheduling_trace.py` writes it; `--check` only says whether it is current (exit code 1 where it is not).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from generated import ROOT, Part

from service.scheduling.simulation import Entry, Script, Simulation

PART = Part(ROOT / "docs" / "explanation" / "scheduling.md", "trace", "scheduling_trace.py")
SLOTS = 4

JOBS = (
    Script(name="explore", work_s=1400, wish=2, max_workers=4, autoscale="capacity", priority=30),
    Script(name="nightly", at_s=20, work_s=300, wish=2, max_workers=2),
    Script(name="tune-a", at_s=40, work_s=80),
    Script(name="tune-b", at_s=42, work_s=80),
    Script(name="tune-c", at_s=44, work_s=60),
    Script(name="report", at_s=60, work_s=60, priority=70),
    Script(name="large", at_s=150, work_s=400, min_workers=4, wish=4, max_workers=4, priority=60),
    Script(name="urgent", at_s=330, work_s=90, min_workers=2, wish=2, max_workers=2, priority=95, is_preemptible=False),
    Script(name="sweep", at_s=340, work_s=120, max_workers=3, autoscale="capacity", priority=10),
    Script(name="notebook", at_s=350, work_s=120, max_workers=2, scales=((420, 2),)),
)


def record() -> Simulation:
    """The run."""
    simulation = Simulation([SLOTS], JOBS)
    simulation.run(until_s=3600)
    assert simulation.unfinished == []
    return simulation


def draw() -> str:
    """The jobs, then every decision with its sentence and who holds how many slots afterwards."""
    lines = [
        "| job | comes at | priority | workers: min, wanted, max | autoscale | work, seconds of one worker |",
        "|---|---|---|---|---|---|",
    ]
    for job in JOBS:
        bounds = f"{job.min_workers}, {job.wish}, {job.max_workers}"
        priority = f"{job.priority}" if job.is_preemptible else f"{job.priority}, not preemptible"
        lines.append(f"| {job.name} | {job.at_s:g} s | {priority} | {bounds} | {job.autoscale} | {job.work_s:g} |")
    lines += ["", "| second | job | what | the sentence | slots after it |", "|---|---|---|---|---|"]
    lines += list(_rows(record().trace))
    return "\n".join(lines)


def _rows(trace: list[Entry]) -> Iterator[str]:
    for entry in trace:
        grants = ", ".join(f"{name} {count}" for name, count in entry.grants) or "all free"
        yield f"| {entry.at_s:g} | {entry.name} | {entry.what} | {entry.because} | {grants} |"


if __name__ == "__main__":
    raise SystemExit(PART.keep(draw(), sys.argv[1:]))
