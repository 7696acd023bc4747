"""A real home (keeper, Ray, service, agent) and jobs on it, seen and disturbed from outside."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rubato.cli.keeper import control
from rubato.cli.keeper.commands import MARK
from rubato.cli.keeper.ports import find_free_ports
from rubato.cli.keeper.process_table import is_alive, marked_processes
from rubato.client import Client
from rubato.client.models import Event, Job, Worker
from rubato.home import Home, RecordedProcess
from rubato.packaging import pack_folder
from tests.redone import Told, check_told

PATIENCE_S = 240.0
"""A machine with two cores may run other things ten times as large meanwhile."""
PROGRAMS = Path(__file__).parent / "programs"
STEPS, BATCH, MICROBATCHES = 160, 96, 12


@dataclass
class ClusterJob:
    """A job, seen and disturbed from outside."""

    home: RunningHome
    id: str
    hold: Path
    """While it exists each step takes a little longer, so that something can happen between two."""

    @property
    def door(self) -> Path:
        """While it exists nobody who is started joins the others."""
        return self.hold.with_name(f"{self.hold.name}.door")

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.home.home.path / "checkpoints" / self.id

    @property
    def controller_pid(self) -> int:
        """Of the controller that acquired it last."""
        pid: int = self.events("attempt.acquired")[-1].data["pid"]
        return pid

    def now(self) -> Job:
        return self.home.client.job(self.id)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline, looked_at = time.monotonic() + PATIENCE_S, 0.0
        while not (found := condition()):
            if (now := time.monotonic()) > looked_at + 1.0:  # each look costs the service as much as the job's own word
                job, looked_at = self.now(), now
                assert now < deadline, f"no {what} within {PATIENCE_S} s: {job}"
                assert not job.is_final or condition(), f"the job ended without {what}: {job}"
            time.sleep(0.25)
        return found

    def wait_step(self, step: int) -> None:
        self.wait(lambda: self.now().step >= step, f"step {step}")

    def wait_members(self, count: int) -> list[Worker]:
        """The training workers by rank, once they are so many."""

        def members() -> list[Worker] | None:
            found = [one for one in self.home.client.workers(self.id) if one.rank is not None]
            trains = all(one.state == "active" for one in found)
            found.sort(key=lambda one: one.rank or 0)
            return found if len(found) == count and trains else None

        found: list[Worker] = self.wait(members, f"{count} workers")
        return found

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.home.client.events(self.id) if event.kind == kind]

    def formed(self) -> list[Event]:
        """Generations, without those that moved microbatches away from a slow worker: any may be, on a busy machine."""
        return [event for event in self.events("generation.formed") if event.data["cause"] != "rebalance"]

    def changes(self) -> list[Event]:
        """Of generations in a row that have the same cause the last one: joiners may come one after the other."""
        return [list(same)[-1] for _, same in itertools.groupby(self.formed(), lambda event: event.data["cause"])]

    def wait_events(self, kind: str, count: int = 1) -> list[Event]:
        found: list[Event] = self.wait(lambda: len(found := self.events(kind)) >= count and found, f"{count} {kind}")
        return found

    def wait_formed(self, workers: int, *, after: int = 0) -> None:
        """Until the newest generation has so many workers, and was formed after the event at a position."""

        def is_formed() -> bool:
            formed = self.events("generation.formed")
            return bool(formed) and formed[-1].position > after and formed[-1].data["workers"] == workers

        self.wait(is_formed, f"a generation of {workers} workers")
        self.wait_members(workers)

    def scale(self, workers: int) -> None:
        """Ask for so many workers, and wait until they train."""
        self.home.client.scale(self.id, workers)
        self.wait_formed(workers)

    def kill(self, ranks: Iterable[int], among: int) -> None:
        """SIGKILL the training processes of these ranks, once `among` workers train."""
        members = self.wait_members(among)
        for rank in ranks:
            pid = members[rank].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    def told(self) -> Told:
        """For `check_told`. After a change of controllers the members are repaired where a change was under way."""
        events = self.home.client.events(self.id)
        kinds = Counter(event.kind for event in events)
        spec = self.now().spec
        assert spec is not None
        return Told(
            formed=[(event.step or 0, event.data) for event in events if event.kind == "generation.formed"],
            steps=[point.step for point in self.home.client.metrics(self.id)],
            microbatches=spec["batch"]["num_microbatches"],
            losses=kinds["worker.lost"] + kinds["controller.attached"],
            restarts=kinds["job.restarting"] + kinds["attempt.acquired"] - 1,
        )

    def finish(self) -> Job:
        """The job at its end, to which it may now go at full speed."""
        self.hold.unlink(missing_ok=True)
        return self.home.client.wait(self.id, timeout_s=PATIENCE_S)

    def check(self, digest: str, steps: int = STEPS) -> None:
        """The right bits, one row a step, at most one step again a loss, events without a gap, and no process left."""
        job = self.finish()
        assert job.status == "succeeded", job
        assert job.result == {"step": steps, "digest": digest}
        assert sorted(point.step for point in self.home.client.metrics(self.id)) == list(range(1, steps + 1))
        check_told(self.told())
        positions = [event.position for event in self.home.client.events(self.id)]
        assert positions == list(range(1, len(positions) + 1))
        self.check_processes()

    def check_cancelled(self) -> None:
        """It ends so, whatever has happened to it, and leaves no process."""
        assert self.home.client.wait(self.id, timeout_s=PATIENCE_S).status == "cancelled"
        self.check_processes()

    def check_processes(self) -> None:
        """None is left of all that trained."""
        pids = {event.data["pid"] for event in self.events("worker.started")}
        self.wait(lambda: not any((Path("/proc") / str(pid)).exists() for pid in pids), "end of all processes")


@dataclass
class RunningHome:
    """A home that is up."""

    home: Home
    client: Client
    made: int = 0
    jobs: list[str] = field(default_factory=list)

    def process(self, role: str) -> RecordedProcess:
        record = self.home.read_record()
        assert record is not None
        return record.processes[role]

    def wait_restarted(self, role: str, before: RecordedProcess) -> None:
        """Until the keeper has started it again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            record = self.home.read_record()
            now = record.processes.get(role) if record is not None else None
            if now is not None and now != before and is_alive(now) and (role != "service" or self.client.is_ready()):
                return
            assert time.monotonic() < deadline, f"the keeper has not started the {role} again"
            time.sleep(0.05)

    def submit(
        self, folder: Path, entrypoint: str, scratch: Path, *, can_be_held: bool = True, **spec: Any
    ) -> ClusterJob:
        """A job of this program, which looks for its `hold` where it can be held."""
        packed = pack_folder(folder, scratch / f"package-{self.made}.zip")
        self.client.upload(packed)
        self.made += 1
        hold = scratch / f"hold-{self.made}"
        hold.touch()
        config = ({"hold": str(hold)} if can_be_held else {}) | spec.pop("config", {})
        draft = {"name": f"job-{self.made}", "entrypoint": entrypoint, "package": packed.sha256, "config": config}
        job = self.client.submit({**draft, "restart": {"backoff": {"initial": 0.2}}, **spec})
        self.jobs.append(job.id)
        return ClusterJob(self, job.id, hold)

    def classifier(
        self, scratch: Path, workers: int = 1, spares: int = 0, held_s: float = 0.05, **spec: Any
    ) -> ClusterJob:
        """Seconds that a microbatch takes at least, while the job is held: `held_s`."""
        return self.submit(
            PROGRAMS,
            "classifier.py:train",
            scratch,
            config={"steps": STEPS, "held_s": held_s},
            batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
            workers={"initial": workers, "min": 1, "max": 4, "standby": spares},
            **spec,
        )

    def end_jobs(self) -> None:
        """End what a failed test left."""
        for job in self.jobs:
            if not self.client.job(job).is_final:
                self.client.cancel(job, force=True)
                self.client.wait(job, timeout_s=PATIENCE_S)
        self.jobs.clear()


@contextmanager
def running_home(path: Path, slots: int = 8, **settings: str) -> Iterator[RunningHome]:
    """A home that is up until the end, and then leaves no process.

    Args:
        path: of the home; made if need be.
        slots: of its Ray.
        settings: environment of `rubato up` besides that of the tests, from which every RUBATO_ variable is taken away.
    """
    place = Home(path)
    (port,) = find_free_ports(1)
    before = {name: value for name, value in os.environ.items() if name.startswith("RUBATO_")}
    for name in before:
        del os.environ[name]
    os.environ.update(settings)
    mark = ""
    try:
        up = control.bring_up(place, port=port, slots=slots, tell=lambda _: None)
        record = place.read_record()
        assert record is not None
        mark = record.mark
        with Client(up.url, home=place) as client:
            yield RunningHome(place, client)
    finally:
        control.bring_down(place, tell=lambda _: None)
        for name in settings:
            del os.environ[name]
        os.environ.update(before)
    assert marked_processes(MARK, mark) == []
