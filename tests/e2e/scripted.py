"""A scripted world for the page: jobs whose events, metric rows and log lines follow from a small simulation.

`World` is advanced by hand (`tick`), so a test decides what has happened when it looks. Shapes are those of /api/v1.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 41, in train
    loss = run.backward(model(batch.x), batch.y)
  File "train.py", line 17, in forward
    return self.head(torch.cat([a, b]))
RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 64 but got size 32 for tensor number 1."""


def stamp(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


class ScriptedJob:
    """One job that trains by simulation: steps, scalings with a pause, losses with a recovery."""

    def __init__(self, name: str, created_at: datetime, *, workers: int = 1, total: int = 600, number: int = 1) -> None:
        self.now = created_at
        self.random = random.Random(number)
        self.members: list[int] = []
        self.next_worker = 1
        self.events: list[Json] = []
        self.rows: list[Json] = []
        self.logs: list[Json] = []
        self.checkpoints: list[Json] = []
        self.positions = 0
        self.version = 0
        self.slots = 8
        self.view: Json = {
            "id": f"job_01kaj{number:04d}x7m2v9", "name": name, "project": "default", "labels": {"team": "vision"},
            "status": "queued", "reason": None, "message": "Waiting for 1 slot.", "phase": None,
            "desired_workers": workers, "workers": 0, "joining": 0, "min_workers": 1, "max_workers": 8,
            "step": 0, "total_steps": total, "metrics": {}, "attempt": 0, "generation": 0, "restarts": 0, "scalings": 0,
            "created_at": stamp(created_at), "started_at": None, "finished_at": None, "updated_at": stamp(created_at),
            "result": None, "failure": None, "queue": None,
            "spec": {
                "name": name, "project": "default", "labels": {"team": "vision"}, "recipe": "image-classifier",
                "config": {"lr": 0.001, "epochs": 5}, "workers": {"initial": workers, "min": 1, "max": 8, "autoscale": "off"},
                "resources_per_worker": {"cpu": 1, "gpu": 0, "memory": None}, "seed": 0, "reproducible": True,
                "batch": {"global_size": 256, "num_microbatches": 8}, "checkpoint": {"every_steps": 100, "keep_last": 3},
                "env": {"OMP_NUM_THREADS": "1"},
            },
        }  # fmt: skip
        self.say("job.submitted", f"Submitted by admin with {workers} worker{'s' if workers != 1 else ''}.")

    # --- what happened ---------------------------------------------------------------------------------------------

    def say(self, kind: str, message: str, **data: Any) -> None:
        self.positions += 1
        self.events.append(
            {
                "position": self.positions, "time": stamp(self.now), "kind": kind, "message": message,
                "step": self.view["step"] if self.view["generation"] else None,
                "generation": self.view["generation"] or None, "attempt": self.view["attempt"] or None, "data": data,
            }
        )  # fmt: skip
        self.touch()

    def touch(self, **changes: Any) -> None:
        self.version += 1
        self.view |= changes | {"updated_at": stamp(self.now)}

    def set_status(self, status: str, message: str, reason: str | None = None) -> None:
        before = self.view["status"]
        self.touch(status=status, message=message, reason=reason)
        self.say("job.status", f"{before.capitalize()} → {status}.", **{"from": before, "to": status, "reason": reason})

    def start(self, wait_s: float = 2.0) -> None:
        self.now += timedelta(seconds=wait_s)
        self.set_status("starting", "Starting the workers.")
        self.now += timedelta(seconds=4)
        self.touch(attempt=self.view["attempt"] + 1, started_at=stamp(self.now))
        self.say("attempt.acquired", f"Attempt {self.view['attempt']} was granted.", attempt=self.view["attempt"])
        for _ in range(self.view["desired_workers"]):
            self.add_worker()
        self.form("start", 0.0)
        self.set_status("running", "Training.")
        self.touch(phase="training")

    def add_worker(self) -> None:
        self.members.append(self.next_worker)
        self.say("worker.ready", f"w{self.next_worker} was ready after 3.1 s.", worker_id=f"w{self.next_worker}", seconds=3.1)
        self.next_worker += 1

    def form(self, cause: str, paused_s: float, redone: int = 0) -> None:
        before = self.view["workers"]
        count = len(self.members)
        self.touch(generation=self.view["generation"] + 1, workers=count, joining=0)
        word = "worker" if count == 1 else "workers"
        self.say(
            "generation.formed",
            f"Generation {self.view['generation']} formed with {count} {word}"
            + ("." if cause == "start" else f", paused {paused_s * 1000:.0f} ms."),
            generation=self.view["generation"], cause=cause, workers=count, from_workers=before,
            step=self.view["step"] + 1, paused_seconds=None if cause == "start" else paused_s, redone_microbatches=redone,
            members=[{"worker_id": f"w{worker}", "rank": rank} for rank, worker in enumerate(self.members)],
        )  # fmt: skip

    def ask(self, workers: int) -> None:
        before = self.view["desired_workers"]
        self.touch(desired_workers=workers)
        self.say("job.scale_requested", f"Scale {before} → {workers} was asked for by admin.", **{"from": before, "to": workers})
        granted = min(workers, self.slots)
        self.touch(joining=max(0, granted - len(self.members)), phase="scaling")
        if granted < workers:
            self.say("capacity.waiting", f"Waited for {workers - granted} slots.", wanted=workers, granted=granted)

    def settle(self) -> None:
        """The asked-for workers join or leave at the next step."""
        granted = min(self.view["desired_workers"], self.slots)
        if granted == len(self.members):
            return
        cause = "scale_up" if granted > len(self.members) else "scale_down"
        while len(self.members) < granted:
            self.add_worker()
        for worker in self.members[granted:]:
            self.say("worker.left", f"w{worker} left after step {self.view['step']}.", worker_id=f"w{worker}")
        del self.members[granted:]
        paused = self.random.uniform(0.02, 0.06)
        self.now += timedelta(seconds=paused)
        self.touch(scalings=self.view["scalings"] + 1, phase="training")
        self.form(cause, paused)

    def kill(self, rank: int) -> None:
        worker = self.members.pop(rank)
        self.say("worker.lost", f"w{worker} (rank {rank}) was killed by SIGKILL.", worker_id=f"w{worker}", rank=rank,
                 exit_code=None, signal="SIGKILL", cause="signal")  # fmt: skip
        paused = self.random.uniform(0.18, 0.4)
        self.now += timedelta(seconds=paused)
        self.form("recovery", paused, redone=3)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            if self.view["step"] >= self.view["total_steps"]:
                return
            self.step()

    def step(self) -> None:
        view, world = self.view, len(self.members)
        seconds = 0.42 / min(world, 8) ** 0.9 * self.random.uniform(0.94, 1.08) + 0.02
        self.now += timedelta(seconds=seconds)
        step = view["step"] + 1
        loss = 2.1 * math.exp(-step / 110) + 0.06 + self.random.gauss(0, 0.05) * math.exp(-step / 220)
        values = {"loss": max(0.01, loss), "samples": 256, "step_seconds": seconds, "samples_per_second": 256 / seconds,
                  "epoch": step // 120}  # fmt: skip
        if step % 60 == 0:
            values["accuracy"] = 0.985 - 0.6 * math.exp(-step / 90)
        self.touch(step=step, metrics=values)
        self.rows.append({"position": len(self.rows) + 1, "step": step, "time": stamp(self.now),
                          "generation": view["generation"], "workers": world, "attempt": view["attempt"],
                          "values": values})  # fmt: skip
        for rank in range(world):
            if step % 5 == 0:
                self.log(rank, f"step \x1b[1m{step}\x1b[0m  loss \x1b[32m{values['loss']:.4f}\x1b[0m  {values['samples_per_second']:.0f} samples/s")
        if step % 100 == 0:
            self.save()

    def log(self, rank: int, line: str, stream: str = "stdout") -> None:
        self.logs.append({"id": f"1:{len(self.logs) * 96}", "time": stamp(self.now), "worker_id": f"w{self.members[rank]}",
                          "rank": rank, "attempt": self.view["attempt"], "stream": stream, "line": line})  # fmt: skip

    def save(self) -> None:
        step, attempt = self.view["step"], self.view["attempt"]
        files = [{"name": f"stripe-{index}.safetensors", "bytes": 1_240_312, "sha256": "ab" * 32} for index in range(2)]
        files.append({"name": "manifest.json", "bytes": 2113, "sha256": "cd" * 32})
        self.checkpoints = [*self.checkpoints, {"id": f"ckpt_{self.view['id'][4:]}{step}", "checkpoint_id": f"{attempt}-{step}",
            "attempt": attempt, "step": step, "bytes": sum(file["bytes"] for file in files), "created_at": stamp(self.now),
            "metrics": {"loss": self.view["metrics"]["loss"]}, "files": files}][-3:]  # fmt: skip
        self.say("checkpoint.committed", f"Checkpoint {attempt}-{step} was committed in 38 ms.", checkpoint_id=f"{attempt}-{step}")

    def succeed(self) -> None:
        self.save()
        self.touch(result={"step": self.view["step"], "digest": "9f3c1b07d2a84e6f" * 4}, finished_at=stamp(self.now))
        self.members.clear()
        self.touch(workers=0, phase=None)
        self.set_status("succeeded", f"All {self.view['step']} steps were trained.")

    def fail(self) -> None:
        for line in TRACEBACK.splitlines():
            self.log(1, line, "stderr")
        message = "Rank 1 raised RuntimeError in step 83, and so did the worker that tried the same microbatch again."
        failure = {
            "failure_class": "user", "reason": "user_code_error", "message": message, "worker_id": "w2", "rank": 1,
            "node": "node-a", "exit_code": 1, "signal": None, "step": 83, "microbatch": 5, "traceback": TRACEBACK,
            "last_output": ["step 80  loss 1.0713", "epoch 0 · 80/600", "RuntimeError: Sizes of tensors must match"],
        }  # fmt: skip
        self.members.clear()
        self.touch(failure=failure, finished_at=stamp(self.now), workers=0, phase=None)
        self.set_status("failed", message, "user_code_error")

    def workers(self) -> list[Json]:
        return [
            {
                "worker_id": f"w{worker}", "incarnation": f"i{worker}", "rank": rank, "pid": 4100 + worker,
                "supervisor_pid": 4000 + worker, "node": "node-a" if rank % 2 == 0 else "node-b", "state": "active",
                "phase": "compute" if rank else "exchange", "step": self.view["step"],
            }
            for rank, worker in enumerate(self.members)
        ]  # fmt: skip


class World:
    """All jobs, and the one that is live."""

    def __init__(self, scenario: str = "busy", now: datetime | None = None) -> None:
        now = now or datetime.now(UTC)
        self.jobs: list[ScriptedJob] = []
        if scenario == "empty":
            return
        self.jobs = [past_success(now), past_failure(now), past_pause(now), live_story(now)]
        waiting = ScriptedJob("char-lm-large", now - timedelta(seconds=50), workers=4, total=4000, number=9)
        waiting.touch(min_workers=4, message="Waiting for 4 slots.",
                      queue={"position": 1, "reason": "needs 4 slots, free 2, held by digits-cnn"})  # fmt: skip
        self.jobs.append(waiting)

    @property
    def live(self) -> ScriptedJob:
        return self.jobs[3]

    def find(self, key: str) -> ScriptedJob | None:
        return next((job for job in reversed(self.jobs) if key in (job.view["id"], job.view["name"])), None)

    def tick(self, now: datetime) -> None:
        """Let the live job train up to `now`."""
        if not self.jobs or self.live.view["status"] != "running":
            return
        job = self.live
        if job.view["joining"] == 0 or (now - job.now).total_seconds() > 1.0:
            job.settle()
        while job.now < now and job.view["step"] < job.view["total_steps"]:
            job.step()


def past_success(now: datetime) -> ScriptedJob:
    job = ScriptedJob("digits-cnn", now - timedelta(hours=3), workers=2, total=500, number=1)
    job.start()
    job.train(180)
    job.ask(4)
    job.settle()
    job.train(320)
    job.succeed()
    return job


def past_failure(now: datetime) -> ScriptedJob:
    job = ScriptedJob("tabular-baseline", now - timedelta(minutes=44), workers=2, number=2)
    job.start()
    job.train(82)
    job.fail()
    return job


def past_pause(now: datetime) -> ScriptedJob:
    job = ScriptedJob("char-lm", now - timedelta(minutes=30), workers=3, total=2000, number=3)
    job.start()
    job.train(420)
    job.say("job.pause_requested", "Pause was asked for by admin.")
    job.save()
    job.members.clear()
    job.touch(workers=0, phase=None)
    job.set_status("paused", "Paused by admin at step 420; resume continues there.")
    return job


def live_story(now: datetime) -> ScriptedJob:
    """1 -> 3 -> 2 workers with a kill, at the present moment about two thirds through."""
    took = told_from(now).now - now
    return told_from(now - took)


def told_from(start: datetime) -> ScriptedJob:
    job = ScriptedJob("digits-cnn", start, workers=1, total=900, number=4)
    job.start()
    job.train(110)
    job.ask(3)
    job.train(8)
    job.settle()
    job.train(190)
    job.kill(1)
    job.touch(joining=1)
    job.train(26)
    job.settle()
    job.train(150)
    job.ask(2)
    job.settle()
    job.train(60)
    return job
