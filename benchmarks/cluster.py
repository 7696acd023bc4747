"""What a change costs on the whole service: a home with Ray, agent and controller on this machine, seen through REST.

python -m benchmarks.cluster [--rounds 3] [--width 1780] [--batch 256] [--write]

Each round brings a home up and runs one job twice, without and with a spare worker: submit, scale 1 -> 2, 2 -> 1 and
back to 2, SIGKILL of a training process, SIGKILL of the controller. All that is known of it is what the API tells.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.document import publish
from benchmarks.machine import machine, today, versions
from benchmarks.processes import PROGRAMS, nothing_left_behind
from benchmarks.programs.workload import Workload
from benchmarks.timeline import SETTLING_STEPS, Event, Row, downtime_s, pause_s, recovery_s, requested_s, seconds_of
from rubato.cli.keeper import control
from rubato.cli.keeper.ports import find_free_ports
from rubato.client import Client
from rubato.client.models import MetricPoint
from rubato.home import Home
from rubato.packaging import pack_folder

BATCH, MICROBATCHES = 256, 8
ENDLESS = 10**6
BETWEEN_STEPS = 2 * SETTLING_STEPS
"""Committed between two events: what each is measured by must lie before the next."""
PATIENCE_S = 300.0
LOOK_S = 0.05
SPARES = (0, 1)
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    key: str
    title: str
    target: str = ""
    """Of the design, where it has one."""


FIGURES = (
    Figure("first", "submit -> first step, first job of the home", "< 5 s"),
    Figure("next", "submit -> first step, the job after it", "< 5 s"),
    Figure("leads", "of it: until its controller leads"),
    Figure("process", "of it: until its training process is there"),
    Figure("warm", "of it: until that is warm (torch, program, data)"),
    Figure("up", "1 -> 2: downtime", "< 0.1 s"),
    Figure("up_asked", "1 -> 2: request -> both train", "< 4 s; with a spare < 1 s"),
    Figure("down", "2 -> 1: downtime", "< 0.1 s"),
    Figure("down_asked", "2 -> 1: request -> one trains"),
    Figure("kill", "SIGKILL of one of 2: downtime", "< 0.4 s"),
    Figure("kill_back", "SIGKILL of one of 2: until two train again"),
    Figure("controller", "SIGKILL of the controller: downtime"),
    Figure("controller_back", "SIGKILL of the controller: until another one leads", "< 10 s"),
)


@dataclass
class Story:
    """One job and what was done to it."""

    client: Client
    job: str
    figures: dict[str, float] = field(default_factory=dict)
    _points: list[MetricPoint] = field(default_factory=list)

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """Until there is something to see.

        Raises:
            TimeoutError: there was nothing for too long, or the job is over.
        """
        deadline = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            job = self.client.job(self.job)
            if job.is_final or time.monotonic() > deadline:
                raise TimeoutError(f"no {what}: {job}")
            time.sleep(LOOK_S)
        return found

    def rows(self) -> list[Row]:
        """All committed steps, as the API tells them."""
        after = self._points[-1].position if self._points else 0
        self._points += self.client.metrics(self.job, after=after)
        return [Row(one.step, seconds_of(one.time), one.workers or 0, str(one.generation)) for one in self._points]

    def settle(self, event: Event, *, generation: int = 0) -> list[Row]:
        """The rows, once enough steps after the event, of a generation larger than that, have as many workers."""

        def settled() -> list[Row] | None:
            rows = self.rows()
            later = [row for row in rows if row.time > event.at and row.workers == event.workers]
            return rows if sum(int(row.generation) > generation for row in later) >= BETWEEN_STEPS else None

        return self.wait(settled, f"steps of {event.workers} workers after {event.name}")

    def scale(self, workers: int, key: str = "") -> None:
        """Ask for so many, and note what it cost."""
        event = Event(f"scale to {workers}", time.time(), workers)
        self.client.scale(self.job, workers)
        rows = self.settle(event)
        if key:
            self.note(key, downtime_s(rows, event))
            self.note(f"{key}_asked", requested_s(rows, event))

    def wait_spares(self, spares: int) -> None:
        """Until so many workers are warm and do not train."""

        def are_warm() -> bool | None:
            states = [one.state for one in self.client.workers(self.job) if one.rank is None]
            return True if states.count("standby") >= spares else None

        self.wait(are_warm, f"{spares} spare workers")

    def note_start(self, submitted_at: float) -> None:
        """Where the time until the first step went, as the events tell it."""
        events = list(self.client.events(self.job))
        for key, kind in (("leads", "attempt.acquired"), ("process", "worker.started"), ("warm", "worker.ready")):
            told_at = next((seconds_of(event.time) for event in events if event.kind == kind), None)
            self.note(key, None if told_at is None else told_at - submitted_at)

    def kill_a_worker(self) -> None:
        """SIGKILL of rank 1's training process, of two."""
        (pid,) = [one.pid for one in self.client.workers(self.job) if one.rank == 1]
        assert pid is not None
        generation, event = self.client.job(self.job).generation, Event("SIGKILL of a worker", time.time(), 2)
        os.kill(pid, signal.SIGKILL)
        rows = self.settle(event, generation=generation)
        self.note("kill", recovery_s(rows, event))
        back = next(row for row in rows if int(row.generation) > generation and row.workers == 2)
        self.note("kill_back", back.time - event.at)

    def kill_the_controller(self) -> None:
        """SIGKILL of its process; the workers train on without it."""
        acquired = [event for event in self.client.events(self.job) if event.kind == "attempt.acquired"]
        event = Event("SIGKILL of the controller", time.time(), 2)
        os.kill(acquired[-1].data["pid"], signal.SIGKILL)
        attached_at = self.wait(lambda: self._attached_after(event.at), "a new controller")
        rows = self.settle(Event(event.name, attached_at, 2))
        self.note("controller_back", attached_at - event.at)
        self.note("controller", longest_pause_s(rows, event.at))

    def _attached_after(self, at: float) -> float | None:
        events = (event for event in self.client.events(self.job) if event.kind == "controller.attached")
        return next((told_at for event in events if (told_at := seconds_of(event.time)) > at), None)

    def note(self, key: str, seconds: float | None) -> None:
        """Keep a figure.

        Raises:
            ValueError: there is none.
        """
        if seconds is None:
            raise ValueError(f"{key}: it never came to that")
        self.figures[key] = seconds


def longest_pause_s(rows: Sequence[Row], at: float) -> float:
    """The longest gap that ended after a moment, less a step; the last steps only tell what a step takes."""
    return max(pause_s(rows, index) for index, row in enumerate(rows[:-SETTLING_STEPS]) if index and row.time >= at)


def play(client: Client, package: str, folder: Path, *, width: int, batch: int, spares: int) -> dict[str, float]:
    """One job from submit to cancel; its figures, those of the submit as `next`."""
    work = Workload(str(folder), steps=ENDLESS, width=width, batch=batch)
    submitted_at = time.time()
    job = client.submit(
        {
            "name": f"bench-{spares}-spares",
            "entrypoint": "benchmarks/programs/rubato_mlp.py:train",
            "package": package,
            "config": {"steps": ENDLESS, "workload": work.to_json()},
            "batch": {"global_size": batch, "num_microbatches": MICROBATCHES},
            "workers": {"initial": 1, "min": 1, "max": 2, "standby": spares},
            "checkpoint": {"every": "1h"},
        }
    )
    story = Story(client, job.id)
    story.note("next", story.wait(lambda: story.rows() or None, "first step")[0].time - submitted_at)
    story.note_start(submitted_at)
    story.settle(Event("submit", submitted_at, 1))
    story.wait_spares(spares)
    story.scale(2, "up")
    story.scale(1, "down")
    story.wait_spares(spares)
    story.scale(2)
    story.wait_spares(spares)
    story.kill_a_worker()
    story.kill_the_controller()
    client.cancel(job.id, force=True)
    client.wait(job.id, timeout_s=PATIENCE_S)
    return story.figures


@contextmanager
def home_of_its_own() -> Iterator[tuple[Client, Path]]:
    """A home that is up, and a folder; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rb-cluster-") as folder:
        home = Home(Path(folder) / "home")
        (port,) = find_free_ports(1)
        try:
            up = control.bring_up(home, port=port, slots=8, tell=lambda _: None)
            with Client(up.url, home=home) as client:
                yield client, Path(folder)
        finally:
            control.bring_down(home, tell=lambda _: None)


def upload_programs(client: Client, folder: Path) -> str:
    """The programs of the benchmarks as a package; its SHA-256. A job's process sees nothing else of this checkout."""
    code = folder / "code" / "benchmarks"
    shutil.copytree(PROGRAMS, code / "programs", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "__init__.py").touch()
    packed = pack_folder(folder / "code", folder / "code.zip")
    client.upload(packed)
    return packed.sha256


def measure(width: int, batch: int) -> dict[int, dict[str, float]]:
    """One round: the figures by the number of spare workers."""
    found = {}
    with home_of_its_own() as (client, folder):
        package = upload_programs(client, folder)
        for spares in SPARES:
            found[spares] = play(client, package, folder, width=width, batch=batch, spares=spares)
    found[SPARES[0]]["first"] = found[SPARES[0]].pop("next")
    return found


def table(rounds: Sequence[dict[int, dict[str, float]]]) -> list[str]:
    """Medians and ranges, a row a figure."""
    lines = ["|  | " + " | ".join("with a spare worker" if spares else "cold" for spares in SPARES) + " | target |"]
    lines.append("|---" * (len(SPARES) + 2) + "|")
    for figure in FIGURES:
        cells = [cell([one[spares][figure.key] for one in rounds if figure.key in one[spares]]) for spares in SPARES]
        lines.append(f"| {figure.title} | {' | '.join(cells)} | {figure.target or '-'} |")
    return lines


def cell(seconds: Sequence[float]) -> str:
    """`1.23 s (1.10 to 1.40)`"""
    if not seconds:
        return "-"
    spread = f" ({min(seconds):.2f} to {max(seconds):.2f})" if len(seconds) > 1 else ""
    return f"{statistics.median(seconds):.2f} s{spread}"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a change costs on the whole service.")
    parser.add_argument("--width", type=int, default=1780, help="of layers; 1780: 10 million parameters")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples a step; fewer make shorter steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    rounds = []
    for number in range(flags.rounds):
        print(f"round {number + 1} of {flags.rounds} ...", file=sys.stderr, flush=True)
        with nothing_left_behind():
            rounds.append(measure(flags.width, flags.batch))
    head = (
        f"{today()}, {machine(load)}; {versions(['torch', 'ray'])}. Hidden layers of {flags.width}, global batch "
        f"{flags.batch} in {MICROBATCHES} microbatches; medians and ranges of {flags.rounds}."
    )
    publish("cluster" if flags.batch == BATCH else "short", "\n".join([head, "", *table(rounds)]), writes=flags.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
