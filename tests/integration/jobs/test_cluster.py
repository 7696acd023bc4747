"""Real jobs on a real Ray: scaled, killed, and left without controller, agent or service. The bits are the oracle's."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobs.package import scratch_root
from rubato.cli.keeper.process_table import read_table, tree_of
from tests.running_home import STEPS, ClusterJob, RunningHome

pytestmark = pytest.mark.timeout(300)
EXAMPLES = Path(__file__).parents[3] / "examples"
HOROVOD_EPOCHS = 200
"""Each of 12 short steps: enough for what happens to it meanwhile."""


@pytest.mark.long
def test_a_job_that_is_scaled_and_loses_workers_has_the_same_bits(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path)
    job.wait_step(3)
    running.client.scale(job.id, 3)
    before = job.wait_members(3)
    job.wait_events("generation.formed", 2)
    assert before[0].pid is not None
    os.kill(before[0].pid, signal.SIGKILL)
    lost = job.wait_events("worker.lost")[0]
    assert (lost.data["signal"], lost.data["rank"]) == ("SIGKILL", 0)
    replaced = job.wait_members(3)
    assert before[0].worker_id not in [one.worker_id for one in replaced]
    # The supervisor goes, and its training process with it.
    assert replaced[1].supervisor_pid is not None
    assert replaced[1].pid is not None
    assert len(session_of(replaced[1].pid)) == 2, "the training process and the guard of its group"
    os.kill(replaced[1].supervisor_pid, signal.SIGKILL)
    job.wait_events("worker.lost", 2)
    job.wait(lambda: not session_of(replaced[1].pid), "the end of the guard")
    job.wait_members(3)
    job.wait(lambda: len(list((scratch_root() / "workers").glob(f"{job.id}-*.lock"))) == 3, "the end of its folder")
    job.check(digest)
    formed = [(event.data["cause"], event.data["workers"]) for event in job.formed()]
    assert formed[:2] == [("start", 1), ("scale_up", 3)]
    assert {cause for cause, _ in formed[2:]} == {"recovery", "replace"}
    assert running.client.job(job.id).raw["scalings"] == 1
    assert running.client.checkpoints(job.id)[0].step == STEPS


def session_of(pid: int) -> list[int]:
    """Living processes of the session that it leads or led."""
    return [row.pid for row in read_table().values() if row.session == pid and row.state != "Z"]


@pytest.mark.long
def test_a_spare_worker_takes_the_place_of_one_that_is_killed(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path, workers=2, spares=1)
    members = job.wait_members(2)
    job.wait_events("worker.ready", 3)
    (spare,) = [one for one in running.client.workers(job.id) if one.rank is None]
    job.kill([1], among=2)
    job.wait(lambda: "replace" in {event.data["cause"] for event in job.formed()}, "the replacement")
    assert [one.worker_id for one in job.wait_members(2)] == [members[0].worker_id, spare.worker_id]
    job.wait_events("worker.ready", 4)  # there is a spare again
    job.check(digest)
    assert job.now().desired_workers == 2


def test_controller_and_agent_are_killed_and_nobody_notices(running: RunningHome, tmp_path: Path, digest: str) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    job.wait_step(3)
    agent = running.process("agent")
    controller = job.events("attempt.acquired")[-1].data["pid"]
    os.kill(agent.pid, signal.SIGKILL)
    os.kill(controller, signal.SIGKILL)
    # How soon is looked at where less runs beside it: tests/chaos/test_takeover.py.
    job.wait_events("controller.attached")
    assert job.events("attempt.acquired")[-1].attempt == 2
    assert [(one.worker_id, one.pid) for one in job.wait_members(2)] == [(one.worker_id, one.pid) for one in members]
    running.wait_restarted("agent", agent)
    # The successor leads in earnest: it scales.
    running.client.scale(job.id, 3)
    job.wait_members(3)
    job.check(digest)
    assert job.now().attempt == 2
    assert not job.events("worker.lost")


@pytest.mark.long
def test_the_service_is_killed_and_training_goes_on(running: RunningHome, tmp_path: Path, digest: str) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    job.wait_step(3)
    service = running.process("service")
    os.kill(service.pid, signal.SIGKILL)
    running.wait_restarted("service", service)
    job.wait_step(job.now().step + 5)
    assert [one.pid for one in job.wait_members(2)] == [one.pid for one in members]
    job.check(digest)
    assert job.now().attempt == 1
    assert not job.events("worker.lost")


def test_a_pause_frees_the_slots_and_a_resume_goes_on_from_there(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path, workers=2)
    job.wait_step(5)
    running.client.pause(job.id)
    paused = running.client.wait(job.id, statuses=("paused",), timeout_s=60)
    assert paused.status == "paused"
    saved = running.client.checkpoints(job.id)[0].step
    assert saved == paused.step
    running.client.resume(job.id)
    job.check(digest)
    assert job.now().attempt == 2
    first = next(event for event in job.formed() if event.attempt == 2)
    assert first.step == saved + 1


def test_a_cancel_ends_every_process(running: RunningHome, tmp_path: Path) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    running.client.cancel(job.id)
    assert running.client.wait(job.id, timeout_s=60).status == "cancelled"
    for one in members:
        job.wait(lambda pid=one.pid: not Path(f"/proc/{pid}").exists(), "end of a worker")


WIDE = """
import time
import torch
import rubato

def train(run):
    model = torch.nn.Linear(512, 512)
    data = torch.utils.data.TensorDataset(torch.randn(64, 512))
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data)
    for step in run.steps(steps=100_000):
        for (x,) in step:
            time.sleep(0.02)
            step.backward(model(x).square().mean())
"""
WIDE_BYTES = 4 * 512 * 513


@pytest.mark.long
def test_no_tensor_goes_through_the_object_store_of_ray(running: RunningHome, tmp_path: Path) -> None:
    """Not when workers start, train, join and save; training processes have not even loaded Ray."""
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "train.py").write_text(WIDE)
    before = touched_bytes_of_store(running)
    job = running.submit(
        tmp_path / "wide",
        "train.py:train",
        tmp_path,
        can_be_held=False,
        batch={"global_size": 16, "num_microbatches": 4},
        workers={"initial": 2, "min": 1, "max": 3},
        checkpoint={"every_steps": 5},
    )
    job.wait_members(2)
    job.wait_events("checkpoint.committed")
    job.scale(3)
    job.wait_step(job.now().step + 10)
    assert touched_bytes_of_store(running) - before < WIDE_BYTES / 10
    for member in job.wait_members(3):
        mapped = Path(f"/proc/{member.pid}/maps").read_text()
        assert "torch" in mapped
        assert "_raylet" not in mapped
    running.client.cancel(job.id)
    job.check_cancelled()


def touched_bytes_of_store(running: RunningHome) -> int:
    """Memory that the object store has used so far at most: what is freed there stays with it."""
    found = []
    for process in tree_of([running.process("ray")], read_table()):
        with contextlib.suppress(FileNotFoundError):  # it has just ended, or closed one
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                if file.readlink().name.startswith("plasma"):
                    found.append(512 * file.stat().st_blocks)
    assert found
    return max(found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_horovod_script_is_scaled_and_loses_a_worker_and_has_the_bits_of_one(
    running: RunningHome, tmp_path: Path
) -> None:
    alone, disturbed = (submit_horovod(running, tmp_path, workers) for workers in (1, 2))
    disturbed.wait_step(1)
    disturbed.scale(3)
    disturbed.kill([1], among=3)
    disturbed.wait(lambda: "recovery" in {event.data["cause"] for event in disturbed.formed()}, "a recovery")
    disturbed.wait_formed(3)
    expected = alone.finish().result
    assert expected is not None
    assert expected["step"] == HOROVOD_EPOCHS * 12
    disturbed.check(expected["digest"], steps=HOROVOD_EPOCHS * 12)
    rows = [row for row in running.client.metrics(disturbed.id) if "accuracy" in row.values]
    assert [row.step for row in rows] == [12 * epoch for epoch in range(1, HOROVOD_EPOCHS + 1)]
    assert (rows[-1].values["accuracy"] or 0) > 0.9


def submit_horovod(running: RunningHome, scratch: Path, workers: int) -> ClusterJob:
    """The script of the examples, which knows no setting but its own."""
    return running.submit(
        EXAMPLES,
        "horovod_digits.py:main",
        scratch,
        can_be_held=False,
        config={"epochs": HOROVOD_EPOCHS},
        batch={"global_size": 128, "num_microbatches": 4},
        workers={"initial": workers, "min": 1, "max": 3},
    )


FAULTY = """
import api
import jobs.own
import torch
import rubato

def train(run):
    print("whose api:", api.NAME, jobs.own.NAME)
    model = torch.nn.Linear(2, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=Data())
    for number, step in enumerate(run.steps(steps=20)):
        for x in step:
            if number == 7:
                raise ValueError("the seventh step is bad")
            step.backward(model(x).mean())

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(2)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A program with modules named as ours are."""
    folder = tmp_path / "package"
    (folder / "jobs").mkdir(parents=True)
    (folder / "train.py").write_text(FAULTY)
    (folder / "api.py").write_text("NAME = 'their api'")
    (folder / "jobs" / "own.py").write_text("NAME = 'their jobs'")
    return folder


@pytest.mark.long
def test_a_mistake_fails_a_program_whose_modules_are_called_as_ours(
    running: RunningHome, package: Path, tmp_path: Path
) -> None:
    batch: dict[str, Any] = {"global_size": 16, "num_microbatches": 8}
    job = running.submit(package, "train.py:train", tmp_path, batch=batch)
    ended = job.finish()
    assert ended.status == "failed"
    assert ended.failure is not None
    assert "the seventh step is bad" in ended.failure["message"]
    assert (ended.failure["failure_class"], ended.failure["step"], ended.failure["rank"]) == ("user", 7, 0)
    assert 'raise ValueError("the seventh step is bad")' in ended.failure["traceback"]
    assert "whose api: their api their jobs" in [line.line for line in running.client.logs(job.id)]
