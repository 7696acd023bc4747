"""A steady step taken apart: what each phase of Rubato costs, beside DistributedDataParallel on the same model.

python -m benchmarks.steady [--workers 1,2,4] [--rounds 3] [--steps 40] [--microbatches 8] [--width 1780]

All take turns, round by round: what else the machine does meets each of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.document import publish
from benchmarks.flags import numbers
from benchmarks.local_job import local_job
from benchmarks.machine import machine, today, versions
from benchmarks.peers.peer import read_results
from benchmarks.processes import PROGRAMS, Processes, free_port, nothing_left_behind
from benchmarks.programs import WARM_STEPS
from benchmarks.programs.phases import ORDER
from benchmarks.programs.workload import WIDTH, Workload
from benchmarks.timeline import seconds_of

DDP_TIMEOUT_S = 600.0

Laps = list[dict[str, tuple[int, int]]]


@dataclass(frozen=True)
class Steady:
    """What one run showed."""

    step_ms: float
    """Median time from commit to commit, as the lowest rank saw it."""
    peak_bytes: int
    """Of the largest worker."""
    cpu_ms: float
    """Processor time of a step, of a worker with all its threads: the mean over steps, the median of workers."""
    phases_ms: dict[str, tuple[float, float]]
    """By phase: wall clock and CPU time of the main thread, each the median over steps and workers."""


def of_rubato(folder: Path, job: Workload, workers: int, microbatches: int, *, reproducible: bool) -> Steady:
    with local_job(
        job,
        microbatches,
        config={"phases": reproducible},
        workers={"initial": workers, "min": 1, "max": max(workers, 4)},
        reproducible=reproducible,
    ) as run:
        run.result()
        times = [seconds_of(row["time"]) for row in run.rows()]
    laps: Laps = [lap for path in folder.glob("phases-*.json") for lap in json.loads(path.read_text())[WARM_STEPS:]]
    return Steady(median_step_ms(times), peak_bytes(folder), cpu_ms(folder), medians_ms(laps))


def of_ddp(folder: Path, job: Workload, workers: int) -> Steady:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
    with Processes(folder / "log") as processes:
        started = [
            processes.python(PROGRAMS / "ddp_mlp.py", job.to_json(), **address, RANK=str(rank))
            for rank in range(workers)
        ]
        codes = [process.wait(DDP_TIMEOUT_S) for process in started]
        if any(codes):
            raise RuntimeError(f"DDP ended with {codes}:\n{processes.output()}")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return Steady(median_step_ms([row["time"] for row in rows]), peak_bytes(folder), cpu_ms(folder), {})


def median_step_ms(times_s: Sequence[float]) -> float:
    """Between commits; the first steps do not count."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times_s[WARM_STEPS:])]
    return statistics.median(gaps) * 1000


def peak_bytes(folder: Path) -> int:
    """Of the largest worker of a run."""
    return max(int(one["peak_bytes"]) for one in read_results(folder))


def cpu_ms(folder: Path) -> float:
    """Of a step of a worker."""
    return statistics.median(float(one["step_cpu_s"]) for one in read_results(folder)) * 1000


def medians_ms(laps: Laps) -> dict[str, tuple[float, float]]:
    """By phase; a step without a phase spent nothing in it."""
    found = {}
    for name in {name for lap in laps for name in lap}:
        spent = [lap.get(name, (0, 0)) for lap in laps]
        wall, cpu = (statistics.median(column) / 1e6 for column in zip(*spent, strict=True))
        found[name] = (wall, cpu)
    return found


@dataclass
class Runs:
    """The runs of one worker count."""

    rubato: Steady
    fast: Steady
    """With `reproducible: false`."""
    ddp_once: Steady
    ddp_same: Steady


def measure(workers: int, number: int, flags: argparse.Namespace) -> Runs:
    """One round."""

    def folder(name: str) -> Path:
        made = Path(flags.folder) / f"{name}-{workers}-{number}"
        made.mkdir()
        return made

    def job(where: Path, passes: int = 1) -> Workload:
        return Workload(str(where), steps=flags.steps, width=flags.width, passes=passes)

    def say(what: str) -> None:
        tell(f"round {number + 1} of {flags.rounds}, {workers} workers: {what}")

    say("DDP, one pass")
    once = of_ddp(place := folder("once"), job(place), workers)
    say("Rubato, reproducible: false")
    fast = of_rubato(place := folder("fast"), job(place), workers, flags.microbatches, reproducible=False)
    say(f"DDP, {flags.microbatches // workers} passes")
    same = of_ddp(place := folder("same"), job(place, flags.microbatches // workers), workers)
    say("Rubato")
    rubato = of_rubato(place := folder("rubato"), job(place), workers, flags.microbatches, reproducible=True)
    return Runs(rubato, fast, once, same)


def typical(runs: Sequence[Steady]) -> Steady:
    """Medians over the rounds; of memory the most."""
    phases = {
        name: (
            statistics.median(run.phases_ms[name][0] for run in runs),
            statistics.median(run.phases_ms[name][1] for run in runs),
        )
        for name in set.intersection(*(set(run.phases_ms) for run in runs))
    }
    return Steady(
        statistics.median(run.step_ms for run in runs),
        max(run.peak_bytes for run in runs),
        statistics.median(run.cpu_ms for run in runs),
        phases,
    )


def report(rounds: dict[int, list[Runs]], flags: argparse.Namespace, load: float) -> str:
    """Four tables: steps, what they take of a processor and of memory, the phases of the reproducible mode.

    Args:    rounds: by number of workers.
    """
    runs = {
        workers: Runs(*(typical([getattr(one, field.name) for one in found]) for field in fields(Runs)))
        for workers, found in rounds.items()
    }
    lines = [
        f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.steps} steps, hidden layers of {flags.width}, "
        f"global batch {Workload.batch} in {flags.microbatches} microbatches; medians of {flags.rounds} rounds. A "
        "ratio is the median of those of the rounds, which its brackets span.",
        "",
        "| workers | DDP, one pass | Rubato, `reproducible: false` | ratio | DDP, same passes | Rubato | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for workers, found in rounds.items():
        once = beside([(one.ddp_once, one.fast) for one in found])
        lines.append(f"| {workers} | {once} | {beside([(one.ddp_same, one.rubato) for one in found])} |")
    lines += ["", *by_workers("memory", runs, lambda one: f"{one.peak_bytes / 2**20:.0f} MiB")]
    lines += ["", *by_workers("processor time of a worker's step", runs, lambda one: f"{one.cpu_ms:.0f} ms")]
    heads = " | ".join(f"{workers}: wall | CPU" for workers in runs)
    lines += ["", f"| phase of Rubato's step, ms | {heads} |", "|---|" + "---|" * (2 * len(runs))]
    lines += [phase_line(name, runs.values()) for name in ORDER]
    return "\n".join(lines)


def by_workers(what: str, runs: dict[int, Runs], cell: Callable[[Steady], str]) -> list[str]:
    """A table of one figure."""
    lines = [
        f"| workers | {what}: DDP, one pass | Rubato, `reproducible: false` | DDP, same passes | Rubato |",
        "|---|---|---|---|---|",
    ]
    for workers, one in runs.items():
        cells = [cell(each) for each in (one.ddp_once, one.fast, one.ddp_same, one.rubato)]
        lines.append(f"| {workers} | {' | '.join(cells)} |")
    return lines


def phase_line(name: str, runs: Iterable[Runs]) -> str:
    cells = [one.rubato.phases_ms.get(name) for one in runs]
    return (
        f"| {name} | " + " | ".join("- | -" if one is None else f"{one[0]:.1f} | {one[1]:.1f}" for one in cells) + " |"
    )


def beside(pairs: Sequence[tuple[Steady, Steady]]) -> str:
    """Three cells: DDP, Rubato, and their ratio, with the range of it over the rounds."""
    ddp, rubato = (statistics.median(one.step_ms for one in column) for column in zip(*pairs, strict=True))
    ratios = [other.step_ms / base.step_ms for base, other in pairs]
    return f"{ddp:.0f} ms | {rubato:.0f} ms | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def tell(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Take a steady step apart.")
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    with nothing_left_behind(), tempfile.TemporaryDirectory(prefix="rb-steady-") as flags.folder:
        rounds: dict[int, list[Runs]] = {workers: [] for workers in flags.workers}
        for number in range(flags.rounds):
            for workers, found in rounds.items():
                found.append(measure(workers, number, flags))
    publish("steady", report(rounds, flags, load), writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
