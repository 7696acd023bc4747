"""A cluster without Ray for looking at the page: an agent and controllers that train by simulation in a thread.

The service is the real one; only what runs on the cluster is played. A job's config is its script: `steps` and `pace`
(seconds a step), `has_past` for a past of 1 -> 3 -> 2 workers with a kill, `fail_at` for a step that raises, `say` for
a text that it prints, tells as an event, names a metric by, and fails with, `is_stuck` for workers that never begin,
`lose_all_at` for a step in which all workers are lost and none comes back, `is_deaf` for one that hears no wish.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from rubato.wire.cluster import EventReport, Failure, LogLine, MetricRow, NodeReport, Outcome, Result, WorkerReport
from tests.simulated_controller import RUNNING, SimulatedAgent, SimulatedController

TICK_S = 0.25
JOIN_S = 1.0
"""What a joining worker takes to warm up; in a past, where nobody waits for it, as long as a real one."""
PAST_JOIN_S = 6.0
MAX_LINES_A_BATCH = 2_000

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 41, in train
    loss = run.backward(model(batch.x), batch.y)
  File "train.py", line 17, in forward
    return self.head(torch.cat([a, b]))
RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 64 but got size 32 for tensor 1."""


def stamp(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


def count_workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


class SimulatedJob:
    """One training job: members, steps, and the facts not reported yet."""

    def __init__(self, controller: SimulatedController, spec: dict[str, Any], slots: int) -> None:
        self.controller = controller
        self.slots = slots
        self.config = spec["config"]
        self.pace_s = float(self.config.get("pace", 0.25))
        self.random = random.Random(7)
        self.now = datetime.now(UTC)
        self.members: list[int] = []
        self.next_worker = 1
        self.view = replace(RUNNING, workers=0, generation=0, total_steps=int(self.config.get("steps", 900)))
        self.desired = int(spec["workers"]["initial"])
        self.joined_at = self.now
        self.join = timedelta(seconds=JOIN_S)
        self.events: list[EventReport] = []
        self.rows: list[MetricRow] = []
        self.lines: list[LogLine] = []
        self.world_before_loss = 0
        self.outcome: Outcome | None = None

    # --- facts ---

    def say(self, kind: str, message: str, **data: Any) -> None:
        event = replace(self.controller.event(kind, message, self.view.step), data=data)
        self.events.append(replace(event, time=stamp(self.now), generation=self.view.generation or None))

    def see(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)

    def log(self, rank: int, line: str, stream: str = "stdout") -> None:
        worker = f"w{self.members[rank]}"
        self.lines.append(LogLine(worker_id=worker, rank=rank, time=stamp(self.now), stream=stream, line=line))

    def add_worker(self) -> None:
        worker = f"w{self.next_worker}"
        self.members.append(self.next_worker)
        self.next_worker += 1
        self.say("worker.ready", f"{worker} was ready after 3.1 s", worker_id=worker, seconds=3.1)

    def form(self, cause: str, paused_s: float | None, redone: int = 0) -> None:
        before, count = self.view.workers, len(self.members)
        self.see(generation=self.view.generation + 1, workers=count, joining=0, phase="training")
        pause = "" if paused_s is None else f", paused {paused_s * 1000:.0f} ms"
        self.say(
            "generation.formed",
            f"generation {self.view.generation} formed with {count_workers(count)}{pause}",
            step=self.view.step + 1, cause=cause, workers=count, from_workers=before, paused_seconds=paused_s,
            redone_microbatches=redone, generation=self.view.generation,
            members=[{"worker_id": f"w{worker}", "rank": rank} for rank, worker in enumerate(self.members)],
        )  # fmt: skip

    # --- what may happen ---

    def begin(self) -> None:
        if self.config.get("is_stuck"):
            self.see(state="starting", phase="forming")
            return
        has_past = bool(self.config.get("has_past")) and self.view.step == 0
        if has_past:
            self.desired = 1
        for _ in range(min(self.desired, self.slots)):
            self.add_worker()
        self.form("start", None)
        if said := self.config.get("say"):
            self.log(0, said)
            self.say("loss.missing", said)
        if has_past:
            self.live_through_the_story()

    def kill(self, rank: int) -> None:
        self.world_before_loss = len(self.members)
        worker = self.members.pop(rank)
        self.say("worker.lost", f"w{worker} (rank {rank}) was killed by SIGKILL", worker_id=f"w{worker}", rank=rank,
                 exit_code=None, signal="SIGKILL", cause="signal")  # fmt: skip
        paused = self.random.uniform(0.18, 0.4)
        self.now += timedelta(seconds=paused)
        self.form("recovery", paused, redone=3)
        self.joined_at = self.now + self.join

    def lose_all(self) -> None:
        for rank, worker in enumerate(self.members):
            self.say("worker.lost", f"w{worker} (rank {rank}) was lost with its node", worker_id=f"w{worker}",
                     rank=rank, exit_code=None, signal=None, cause="node_lost")  # fmt: skip
        self.members.clear()
        self.see(state="recovering", phase="forming", workers=0, restarts=self.view.restarts + 1)

    def want(self, workers: int) -> None:
        if workers == self.desired:
            return
        self.desired = workers
        self.world_before_loss = 0
        granted = min(workers, self.slots)
        self.joined_at = self.now + self.join
        if granted < workers:
            self.say("capacity.waiting", f"waited for {workers - granted} slots", wanted=workers, granted=granted)

    def settle(self) -> None:
        """Who was asked for joins or leaves at the next step, once warm."""
        granted = min(self.desired, self.slots)
        missing = granted - len(self.members)
        if missing > 0 and self.now < self.joined_at:
            self.see(joining=missing, phase="scaling")
            return
        if missing == 0:
            return
        for _ in range(missing):
            self.add_worker()
        for worker in self.members[granted:]:
            self.say("worker.left", f"w{worker} left after step {self.view.step}", worker_id=f"w{worker}")
        del self.members[granted:]
        paused = self.random.uniform(0.02, 0.06)
        self.now += timedelta(seconds=paused)
        if granted == self.world_before_loss:
            self.form("replace", paused)
            return
        self.see(scalings=self.view.scalings + 1)
        self.form("scale_up" if missing > 0 else "scale_down", paused)

    def step(self) -> None:
        world = len(self.members)
        seconds = self.pace_s * 1.7 / world**0.9 * self.random.uniform(0.94, 1.08)
        self.now += timedelta(seconds=seconds)
        step = self.view.step + 1
        loss = 2.1 * math.exp(-step / 110) + 0.06 + self.random.gauss(0, 0.05) * math.exp(-step / 220)
        speed = 256 / seconds
        values = {"loss": max(0.01, loss), "samples": 256.0, "step_seconds": seconds, "samples_per_second": speed,
                  "epoch": float(step // 120), "compute_seconds": seconds * 0.7,
                  "data_seconds": seconds * self.random.uniform(0.04, 0.08)}  # fmt: skip
        if said := self.config.get("say"):
            values[said[:60]] = 1.0
        if step % 60 == 0:
            values["accuracy"] = 0.985 - 0.6 * math.exp(-step / 90)
        self.see(step=step)
        self.rows.append(
            MetricRow(step=step, time=stamp(self.now), generation=self.view.generation, workers=world, values=values)
        )
        if step % 5 == 0:
            for rank in range(world):
                self.log(
                    rank, f"step \x1b[1m{step}\x1b[0m  loss \x1b[32m{values['loss']:.4f}\x1b[0m  {speed:.0f} samples/s"
                )
        if step % 100 == 0:
            self.save()

    def save(self) -> None:
        attempt = self.controller.acquired.attempt if self.controller.acquired else 1
        name = f"{attempt}-{self.view.step}"
        files = [{"name": f"stripe-{index}.safetensors", "bytes": 1_240_312, "sha256": "ab" * 32} for index in range(2)]
        files.append({"name": "manifest.json", "bytes": 2_113, "sha256": "cd" * 32})
        self.say("checkpoint.committed", f"checkpoint {name} was committed in 38 ms", checkpoint_id=name,
                 bytes=sum(int(file["bytes"]) for file in files), seconds=0.038, metrics={}, files=files)  # fmt: skip

    def train_until(self, now: datetime) -> None:
        while self.now < now and self.outcome is None and self.view.state == "running":
            self.settle()
            self.step()
            if self.view.step + 1 == self.config.get("fail_at"):
                self.fail()
            elif self.view.step == self.config.get("lose_all_at"):
                self.lose_all()
            elif self.view.total_steps is not None and self.view.step >= self.view.total_steps:
                self.save()
                self.outcome = Outcome("succeeded", result=Result(self.view.step, "9f3c1b07d2a84e6f" * 4))

    def fail(self) -> None:
        said = self.config.get("say", "")
        traceback = f"{TRACEBACK} {said}"
        for line in traceback.splitlines():
            self.log(1, line, "stderr")
        failure = Failure(
            failure_class="user", reason="user_code_error",
            message=said or "Rank 1 raised RuntimeError in step 83, and so did the worker that tried it again.",
            worker_id="w2", rank=1, node="node-a", exit_code=1, step=83, microbatch=5, traceback=traceback,
            last_output=(said or "step 75  loss 1.112", "step 80  loss 1.0713", "RuntimeError: Sizes of tensors"),
        )  # fmt: skip
        self.outcome = Outcome("failed", failure=failure)

    def live_through_the_story(self) -> None:
        """The past of the README's picture, ending now."""
        begun = self.now
        self.join = timedelta(seconds=PAST_JOIN_S)
        for steps, happening in ((110, lambda: self.want(3)), (190, lambda: self.kill(1)), (150, lambda: self.want(2))):
            for _ in range(steps):
                self.settle()
                self.step()
            happening()
        for _ in range(60):
            self.settle()
            self.step()
        took = self.now - begun
        self.events = [replace(event, time=earlier(event.time, took)) for event in self.events]
        self.rows = [replace(row, time=earlier(row.time, took)) for row in self.rows]
        self.lines = [replace(line, time=earlier(line.time, took)) for line in self.lines]
        self.now = begun
        self.join = timedelta(seconds=JOIN_S)

    def workers(self) -> tuple[WorkerReport, ...]:
        return tuple(
            WorkerReport(
                worker_id=f"w{worker}", incarnation=f"{worker:08x}", rank=rank, pid=4100 + worker,
                supervisor_pid=4000 + worker, node="node-a" if rank % 2 == 0 else "node-b", state="active",
                step=self.view.step, phase="exchange" if rank == 0 else "compute",
                microbatches=32 // len(self.members), microbatch_seconds=0.021 if rank == 1 else 0.011,
                device="NVIDIA H100", memory_bytes=3_480_000_000 + 10**6 * rank, silent_seconds=0.2 + rank / 10,
            )
            for rank, worker in enumerate(self.members)
        )  # fmt: skip


def earlier(time: str, by: timedelta) -> str:
    return stamp(datetime.fromisoformat(time) - by)


class SimulatedCluster:
    """Runs the agent and all controllers in a thread of its own; survives the service's death as real ones do."""

    def __init__(self, url: str, token: str, slots: int = 32) -> None:
        self._url = url
        self._token = token
        self.slots = slots
        self._jobs: dict[str, SimulatedJob] = {}
        self._commands: list[Callable[[], None]] = []
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="simulated-cluster")

    def __enter__(self) -> SimulatedCluster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=20)
        assert not self._thread.is_alive(), "the simulated cluster did not stop"

    def kill(self, job_id: str, rank: int) -> None:
        """Kill a worker of a job at its next step."""
        self._commands.append(lambda: self._jobs[job_id].kill(rank))

    def hold(self, job_id: str) -> None:
        """Nothing is heard of a job's controller from now on."""
        is_held = threading.Event()
        self._commands += [lambda: self._held.add(job_id), is_held.set]
        assert is_held.wait(20)

    def set_slots(self, slots: int) -> None:
        """Change how many slots the cluster has."""
        self.slots = slots
        for job in self._jobs.values():
            job.slots = slots

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url) as client:
            agent = SimulatedAgent(client, self._token)
            while not self._stop.is_set():
                with contextlib.suppress(httpx.TransportError, AssertionError):
                    await self._look(client, agent)
                while self._commands:
                    self._commands.pop(0)()
                for job_id in self._jobs.keys() - self._held:
                    with contextlib.suppress(httpx.TransportError):
                        await self._lead(job_id)
                await asyncio.sleep(TICK_S)

    async def _look(self, client: httpx.AsyncClient, agent: SimulatedAgent) -> None:
        agent.version = 0
        used = sum(len(job.members) for job in self._jobs.values()) / 2
        sizes = {"node-a": (self.slots + 1) // 2, "node-b": self.slots // 2}
        agent.nodes = tuple(
            NodeReport(name, "127.0.0.1", cpu, cpu_used=used, hostname=name) for name, cpu in sizes.items()
        )
        reply = await agent.sync()
        for item in reply.run:
            if item.job_id in self._jobs:
                continue
            controller = SimulatedController(client, item.job_id, item.ticket)
            acquired = await controller.acquire()
            job = SimulatedJob(controller, acquired.spec, self.slots)
            job.see(step=acquired.resume_step, scalings=acquired.scalings)
            job.desired = acquired.desired.workers
            job.begin()
            self._jobs[item.job_id] = job

    async def _lead(self, job_id: str) -> None:
        job = self._jobs[job_id]
        desired = await job.controller.desired()
        job.train_until(datetime.now(UTC))
        if desired.run == "run":
            job.want(desired.workers)
        elif job.outcome is None and not job.config.get("is_deaf"):
            job.outcome = Outcome("paused" if desired.run == "pause" else "cancelled")
        await self._report(job)
        if job.outcome is not None:
            del self._jobs[job_id]

    async def _report(self, job: SimulatedJob) -> None:
        job.controller.observed = job.view
        report = job.controller.next_report(
            events=tuple(job.events), metrics=tuple(job.rows), logs=tuple(job.lines[:MAX_LINES_A_BATCH]),
            worker_reports=job.workers(), outcome=job.outcome,
        )  # fmt: skip
        # A batch whose reply was lost may be stored: the very same one is sent until it is acknowledged.
        while not self._stop.is_set():
            with contextlib.suppress(httpx.TransportError):
                response = await job.controller.send(report)
                if response.status_code != 503:  # its disk is busy: the same once more, as real controllers do
                    assert response.status_code == 200, response.text
                    break
            await asyncio.sleep(TICK_S)
        job.events, job.rows, job.lines = [], [], job.lines[MAX_LINES_A_BATCH:]
