"""Storage that does not answer any more, as a network file system whose server is gone: calls that never return.

What hangs is a real system call: the opening of a pipe that nobody writes to, in place of a write or a read.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_run import Chaos, causes, expected, unarmed
from local_job import LocalJob

from rubato.checkpoint import due
from rubato.checkpoint.storage import LocalFolder
from rubato.errors import StorageUnreachable

pytestmark = pytest.mark.timeout(240)

WRITE = "call rubato.checkpoint.storage:LocalFolder.write"
READ = "call rubato.checkpoint.storage:LocalFolder.read"
SHORT = {"due_s": 1.0, "busy_s": 0.2}
HANGS_AT = 6


class Server:
    """What a storage hangs on."""

    def __init__(self, home: Path) -> None:
        self.pipe = home / "server"
        os.mkfifo(self.pipe)

    def come_back(self, marker: Path) -> None:
        """All calls that hang return; from now on none hangs."""
        unarmed(marker)
        os.close(os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK))  # as a writer, too: that is who readers wait for


def hanging(tmp_path: Path, row: str, **spec: Any) -> tuple[Chaos, Server, Path]:
    """A run in which the writes of one worker hang from some step on."""
    chaos = Chaos(tmp_path, row, config=SHORT, checkpoint={"every_steps": 3}, **spec)
    server = Server(tmp_path)
    marker = chaos.fault(WRITE, "block", str(server.pipe), always=True, step=HANGS_AT)
    return chaos, server, marker


def threads_of(run: LocalJob) -> int:
    return sum(len(list(Path(f"/proc/{member['pid']}/task").iterdir())) for member in run.members())


def failures(run: LocalJob) -> list[dict[str, Any]]:
    return run.events("checkpoint.failed")


def given_up(run: LocalJob, marker: Path) -> int:
    """Checkpoints of steps from which on writes hang, once one does: a slow machine may give up others before."""
    return sum((failure["step"] or 0) >= HANGS_AT for failure in failures(run)) if marker.exists() else 0


@pytest.mark.short
def test_training_goes_on_and_saves_again_when_the_storage_does(tmp_path: Path) -> None:
    chaos, server, marker = hanging(tmp_path, "storage hangs")
    with chaos.start() as run:
        run.wait(lambda: given_up(run, marker) >= 2, "two checkpoints that are given up")
        before, told = threads_of(run), given_up(run, marker)
        run.wait(lambda: given_up(run, marker) >= told + 3, "more of them")
        run.wait(lambda: threads_of(run) <= before + len(run.members()), "threads that do not pile up")
        server.come_back(marker)
        saved = len(run.events("checkpoint.committed"))
        run.wait(lambda: len(run.events("checkpoint.committed")) > saved, "a checkpoint after it came back")
        chaos.check(run)
    assert any("is its server there" in failure["message"] for failure in failures(run))
    assert causes(run) == ["start"]
    assert not run.events("worker.lost")


def test_the_end_does_not_wait_for_the_last_checkpoint(tmp_path: Path) -> None:
    chaos, server, marker = hanging(tmp_path, "storage hangs at the end", steps=20)
    with chaos.start() as run:
        chaos.check(run)
        server.come_back(marker)
    assert failures(run)[-1]["step"] == 20, "the last checkpoint was not missed"


@pytest.mark.parametrize(("verb", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_no_wish_waits_for_a_checkpoint_that_hangs(tmp_path: Path, verb: str, state: str) -> None:
    chaos, server, marker = hanging(tmp_path, f"storage hangs, {verb}", limits={"stop_grace": 60})
    with chaos.start() as run:
        run.wait(lambda: given_up(run, marker) > 0, "a checkpoint that is given up")
        run.run.answer({"verb": verb})
        outcome = run.wait_for_end()
        server.come_back(marker)
    assert outcome.state == state
    assert marker.exists()
    lost = [event for event in run.events("worker.lost") if "stop_grace" in event["message"]]
    assert not lost, "it was the grace that ended them"
    if verb == "pause":
        assert "skipped" in failures(run)[-1]["message"]


def test_a_checkpoint_that_cannot_be_read_for_ever_fails_the_job_with_the_reason(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "storage hangs while it is read", config=SHORT, checkpoint={"every_steps": 3})
    server = Server(tmp_path)
    marker = chaos.fault(READ, "block", str(server.pipe), who="any", step=0, always=True)
    with chaos.start() as run:
        run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint to go on from")
        run.kill(range(3))
        outcome = run.wait_for_end()
        server.come_back(marker)
    assert marker.exists()
    assert outcome.failure is not None, outcome
    assert "the storage hangs" in outcome.failure.message
    assert "reading checkpoint" in outcome.failure.message


@contextlib.contextmanager
def hanging_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> Iterator[threading.Event]:
    """Calls of this method hang in the test's own process, which leads the runs; the event says when one does."""
    pipe, reached = tmp_path / "server", threading.Event()
    os.mkfifo(pipe)
    real = getattr(LocalFolder, name)

    def hang(*arguments: Any) -> Any:
        reached.set()
        os.close(os.open(pipe, os.O_RDONLY))
        return real(*arguments)

    monkeypatch.setattr(LocalFolder, name, hang)
    monkeypatch.setattr(due, "DUE_S", 1.0)
    try:
        yield reached
    finally:
        monkeypatch.setattr(LocalFolder, name, real)
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def test_a_manifest_that_cannot_be_written_costs_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos = Chaos(tmp_path, "storage hangs at the manifest", steps=20, checkpoint={"every_steps": 5})
    expected(chaos.model, chaos.steps)  # trained here, too: it would hang with the others
    with chaos.start() as run:
        run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint")
        with hanging_here(monkeypatch, tmp_path, "write_new") as reached:
            run.wait(lambda: bool(failures(run)), "a manifest that is given up")
            assert reached.is_set()
            chaos.check(run)
            assert failures(run)[-1]["step"] == 20, "the last manifest was not missed"
    assert "its manifest was not written" in failures(run)[0]["message"]


def test_a_search_that_hangs_is_told_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = Chaos(tmp_path, "storage hangs before the start", steps=20)
    run = chaos.start()
    with hanging_here(monkeypatch, tmp_path, "folders") as reached:
        run.__enter__()
        run.wait(lambda: bool(failures(run)), "word of it")
        assert reached.is_set()
        assert run.step == 0
    with contextlib.ExitStack() as stack:
        stack.push(run)
        chaos.check(run)
    assert "the job waits for it" in failures(run)[0]["message"]


def test_a_run_does_not_begin_on_a_storage_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        hanging_here(monkeypatch, tmp_path, "prepare") as reached,
        pytest.raises(StorageUnreachable, match="the storage hangs"),
    ):
        Chaos(tmp_path, "storage hangs when a run begins", checkpoint_dir=str(tmp_path / "kept")).start()
    assert reached.is_set()
