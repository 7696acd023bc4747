"""Joiners that fail again and again, on their way in: the members train on and keep nothing of it; it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invariants import record
from small_job import job

from rubato.engine.coordinator.changes import MOST_JOINS

WATCHED = """
import ctypes, json, signal
import rubato.engine.join as join
import rubato.engine.membership as membership

ctypes.CDLL(None).mallopt(-3, 1 << 20)  # what is freed of tensors goes back to the kernel, so that it can be seen
IS_FIRST = os.environ.get("RUBATO_INCARNATION", "1.1").split(".")[1] == "1"

def wide(run):
    model = torch.nn.Sequential(torch.nn.Linear(4, 1024), torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)

def held():
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")), "bytes": resident}

def train(run):
    fail(Path(run.config["home"]))
    model, optimizer = wide(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
        if IS_FIRST:
            with (Path(run.config["home"]) / "held").open("a") as file:
                file.write(json.dumps({"step": step.index, **held()}) + chr(10))

if __name__ == "__main__":
    rubato.main(train)
"""

DIES_AT_THE_STATE = """
def fail(home):
    receive = join.receive_snapshot
    def die(*args):
        if not (home / "healed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return receive(*args)
    if not IS_FIRST:
        join.receive_snapshot = die
"""

HAS_NO_MEMORY = """
def fail(home):
    prepare = membership.Membership._prepare
    def refuse(self, record, comm):
        if not (home / "healed").exists():
            raise RuntimeError("CUDA out of memory")
        return prepare(self, record, comm)
    if not IS_FIRST:
        membership.Membership._prepare = refuse
"""

THE_MEMBER_HAS_NO_MEMORY = """
def fail(home):
    prepare = membership.Membership._prepare
    def refuse(self, record, comm):
        if record.follows and not (home / "healed").exists():
            raise RuntimeError("CUDA out of memory")
        return prepare(self, record, comm)
    if IS_FIRST:
        membership.Membership._prepare = refuse
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures follow each other as fast as workers start: the waits themselves are a unit test's."""
    monkeypatch.setattr("rubato.engine.coordinator.changes.LONGEST_WAIT_S", 0.5)


def held_after(home: Path, step: int) -> dict[str, int]:
    """The least that the first worker was seen to hold in a few steps from there on."""
    lines = [json.loads(line) for line in (home / "held").read_text().splitlines()]
    seen = [one for one in lines if step <= one["step"] < step + 10]
    return {name: min(one[name] for one in seen) for name in ("fds", "threads", "bytes")}


def wait_steps(run: Any, count: int) -> int:
    """Let so many go by. Returns where it stood."""
    step: int = run.step
    run.wait_step(step + count)
    return step


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (DIES_AT_THE_STATE, "was lost"),  # the peer, or the worker: whoever says so first
        (HAS_NO_MEMORY, "CUDA out of memory"),
        (THE_MEMBER_HAS_NO_MEMORY, "CUDA out of memory"),
    ],
)
def test_joins_that_fail_leave_nothing_with_the_members_and_end_with_the_reason(
    tmp_path: Path, how: str, cause: str
) -> None:
    config = {"steps": 10**4, "pace": 0.003}
    with job(tmp_path, how + WATCHED, workers=1, config=config) as run:
        run.wait_step(5)
        run.scale(2)
        run.wait(lambda: len(run.events("change.failed")) >= 2, "two failures")
        before = wait_steps(run, 12)
        run.wait(lambda: len(run.events("change.failed")) == MOST_JOINS, "giving up")
        after = wait_steps(run, 15)
        first, last = held_after(tmp_path, before), held_after(tmp_path, after)
        assert last["fds"] <= first["fds"] + 2, (first, last)
        assert last["threads"] <= first["threads"] + 2, (first, last)
        assert last["bytes"] <= first["bytes"] + 16 * 2**20, (first, last)
        told = run.events("change.failed")
        others = [event["data"]["cause"] for event in told if cause not in event["data"]["cause"]]
        assert not others, others
        assert cause in run.status()["observed"]["reason"]
        assert not any(event["data"]["cause"] == "recovery" for event in run.events("generation.formed"))
        (tmp_path / "healed").touch()
        run.scale(3)
        run.wait(lambda: run.rows()[-1]["workers"] == 3, "all three")
        assert run.status()["observed"]["reason"] == ""
        run.run.answer({"verb": "cancel"})
        run.wait_for_end()
    assert {row["workers"] for row in run.rows()} == {1, 3}
    record(run, "joins that fail eight times in a row, and then two that do not")
