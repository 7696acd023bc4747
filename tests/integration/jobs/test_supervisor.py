"""The supervisor as an object, with a real training process (a toy) and without Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs import supervisor as module
from jobs.supervisor import AttachReply, WorkerOrder, WorkerSupervisor
from rubato.cli.keeper.process_table import identify
from rubato.errors import StaleAttempt
from rubato.launch.output import OutputLine
from rubato.wire import worker as wire
from tests.stopping import stopped

TOY = (sys.executable, str(Path(__file__).parents[1] / "launch" / "toy_child.py"))
START = wire.Start(1, "job", "w1.1", "1.1", {"config": {"steps": 10**6, "step_s": 0.01}}, "", "")
# The dead man's switch ends the whole process, which is the one of the tests here.
NEVER_S = 1e6
ORDER = WorkerOrder(START, "http://127.0.0.1:9", "token", None, {}, command=TOY, dead_man_s=NEVER_S)
MEMBERS = (wire.Member("w1.1", "1.1"),)
RECORD = wire.GenerationRecord(1, 1, MEMBERS, (0,), "store", wire.Origin("fresh"), "start", 0)


class Controller:
    """Polls a supervisor as a controller does."""

    def __init__(self, supervisor: WorkerSupervisor, attempt: int = 1, seq: int = 0) -> None:
        self.supervisor = supervisor
        self.attempt = attempt
        self.seq = seq
        self.seen: list[Any] = []
        self.sent = 0

    def until(self, condition: Callable[[Any], bool]) -> Any:
        while True:
            for one in self.supervisor.poll(self.attempt, self.seq, 10.0).events:
                assert one.seq == self.seq + 1
                self.seq = one.seq
                self.seen.append(one.event)
                if condition(one.event):
                    return one.event

    def until_kind(self, kind: type) -> Any:
        return self.until(lambda event: isinstance(event, kind))

    def send(self, command: wire.Command) -> None:
        self.sent += 1
        self.supervisor.command(self.attempt, self.sent, (command,))

    def train(self, steps: int = 3) -> None:
        self.until_kind(wire.Standby)
        self.send(wire.Prepare(1, RECORD))
        self.until(lambda event: isinstance(event, wire.Committed) and event.step >= steps)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerSupervisor]]:
    monkeypatch.setattr(module, "_own_place", lambda: ("127.0.0.1", "host", "node"))
    monkeypatch.setattr("jobs.package.scratch_root", lambda: tmp_path)
    made: list[WorkerSupervisor] = []

    def build(**changes: Any) -> WorkerSupervisor:
        made.append(WorkerSupervisor(replace(ORDER, **changes)))
        return made[-1]

    yield build
    for supervisor in made:
        supervisor.kill(99, "the test is over")
        wait(lambda supervisor=supervisor: supervisor.attach(99).snapshot is None)


def test_a_worker_from_its_start_to_its_end(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: (time.sleep(0.3), rmtree(path, **options)))
    controller = Controller(make())
    controller.train()
    spawned = next(event for event in controller.seen if isinstance(event, wire.Spawned))
    processes = controller.supervisor.poll(1, controller.seq, 0).processes
    assert processes.child == identify(spawned.pid)
    assert (tmp_path / "workers" / "job-1.1" / "code").is_dir()
    controller.supervisor.kill(1, "no longer wanted")
    exited = controller.until_kind(wire.Exited)
    assert exited.signal == "SIGKILL"
    assert identify(spawned.pid) is None
    assert list((tmp_path / "workers").iterdir()) == [], "whoever hears of the end kills the supervisor at once"


def test_a_command_that_comes_twice_counts_once(make: Any) -> None:
    supervisor = make()
    controller = Controller(supervisor)
    controller.until_kind(wire.Standby)
    commands = (wire.Prepare(1, RECORD), wire.Acknowledge(1, 0))
    assert supervisor.command(1, 1, commands) == 2
    assert supervisor.command(1, 1, commands) == 2
    assert supervisor.command(1, 2, (wire.Acknowledge(1, 0), wire.Attach(1))) == 3
    controller.until_kind(wire.Snapshot)
    assert sum(isinstance(event, wire.Entered) for event in controller.seen) == 1


def test_a_new_controller_attaches_and_the_old_one_is_stale(make: Any) -> None:
    supervisor = make()
    old = Controller(supervisor)
    old.train()
    refused = threading.Event()

    def poll_until_refused() -> None:
        try:
            while True:
                old.supervisor.poll(1, 10**6, 10)
        except StaleAttempt:
            refused.set()

    thread = threading.Thread(target=poll_until_refused, daemon=True)
    thread.start()
    reply: AttachReply = supervisor.attach(2)
    assert refused.wait(10), "the poll under way ends, it does not only fail next time"
    assert reply.spawned is not None
    assert reply.snapshot is not None
    assert (reply.snapshot.record, reply.snapshot.incarnation) == (RECORD, "1.1")
    assert reply.snapshot.step >= 3
    assert [row.step for row in reply.snapshot.rows] == list(range(1, reply.snapshot.step + 1))
    for call in (lambda: supervisor.command(1, 9, ()), lambda: supervisor.kill(1, "no"), lambda: supervisor.attach(1)):
        with pytest.raises(StaleAttempt):
            call()
    new = Controller(supervisor, attempt=2, seq=reply.seq)
    step = new.until_kind(wire.Committed).step
    assert step > reply.snapshot.step
    assert not any(isinstance(event, wire.Snapshot) for event in new.seen), "it was handed over already"


def test_one_that_does_not_answer_is_taken_over_as_it_is_known(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_WAIT_S", 0.2)
    supervisor = make()
    old = Controller(supervisor)
    old.train()
    spawned = next(event for event in old.seen if isinstance(event, wire.Spawned))
    with stopped(spawned.pid):
        reply: AttachReply = supervisor.attach(2)
        assert reply.snapshot is not None
        assert (reply.snapshot.record, reply.snapshot.pending, reply.snapshot.broken) == (RECORD, 1, None)
        assert (reply.snapshot.hello, reply.snapshot.standby) != (None, None)
        assert reply.snapshot.step >= 3
        assert [row.step for row in reply.snapshot.rows] == list(range(1, reply.snapshot.step + 1))
        assert reply.spawned == spawned
    new = Controller(supervisor, attempt=2, seq=reply.seq)
    late = new.until_kind(wire.Snapshot)
    new.until(lambda event: isinstance(event, wire.Committed) and event.step > late.step)
    steps = [row.step for event in new.seen if isinstance(event, wire.Committed) for row in event.rows]
    assert steps == list(range(reply.snapshot.step + 1, steps[-1] + 1)), "what it said after, each once"


def test_one_that_is_still_importing_is_taken_over_as_it_is(make: Any) -> None:
    slow = f"import time, runpy; time.sleep(1); runpy.run_path({TOY[1]!r}, run_name='__main__')"
    supervisor = make(command=(sys.executable, "-c", slow))
    Controller(supervisor).until_kind(wire.Spawned)
    reply = supervisor.attach(2)
    assert reply.snapshot == wire.Snapshot("1.1", None, None, None, 0, None, None, 0)
    assert reply.spawned is not None
    new = Controller(supervisor, attempt=2, seq=reply.seq)
    new.until_kind(wire.Standby)


def test_what_nobody_has_taken_is_handed_over(make: Any) -> None:
    talk = f"print('said to nobody', flush=True); import runpy; runpy.run_path({TOY[1]!r}, run_name='__main__')"
    supervisor = make(command=(sys.executable, "-c", talk))
    # The first controller takes nothing at all: each poll begins at the start.
    wait(lambda: any(isinstance(one.event, wire.Standby) for one in supervisor.poll(1, 0, 1).events))
    reply = supervisor.attach(2)
    lines = [event.line for event in reply.backlog if isinstance(event, OutputLine)]
    assert lines[0] == "said to nobody"
    assert reply.snapshot is not None


def test_one_that_is_gone_says_so(make: Any) -> None:
    supervisor = make(command=(sys.executable, "-c", "raise SystemExit(3)"))
    wait(lambda: any(isinstance(one.event, wire.Exited) for one in supervisor.poll(1, 0, 1).events))
    reply = supervisor.attach(2)
    assert reply.snapshot is None
    assert reply.backlog[-1] == wire.Exited("1.1", 3, None, ())


@pytest.mark.parametrize("kind", [wire.StripeWritten, wire.StripeFailed])
def test_what_became_of_the_stripe_of_the_end_is_told_to_every_controller(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(module, "FRESH_STRIPE_S", 0.0)
    storage = tmp_path / "ckpt"
    if kind is wire.StripeFailed:
        storage.write_text("not a folder")
    start = replace(START, spec={"config": {"steps": 2}}, storage=str(storage))
    supervisor = make(start=start)
    controller = Controller(supervisor)
    controller.until_kind(wire.Standby)
    controller.send(wire.Prepare(1, RECORD))
    controller.until_kind(wire.Ended)
    supervisor.poll(1, controller.seq, 0)
    for attempt in (2, 3):
        reply = supervisor.attach(attempt)
        assert [event.folder for event in reply.backlog if isinstance(event, kind)] == ["1-2"]
        assert reply.snapshot is not None


def test_code_that_cannot_be_had_is_an_exit_with_the_cause(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_TRIES", 1)
    supervisor = make(package="a" * 64)
    exited = Controller(supervisor).until_kind(wire.Exited)
    assert "could not be prepared" in exited.cause
    assert "does not answer" in exited.cause


def test_what_nobody_foresaw_is_an_exit_with_the_cause(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("secrets")

    monkeypatch.setattr(module, "child_environment", fail)
    exited = Controller(make()).until_kind(wire.Exited)
    assert exited.cause == "it could not be prepared: KeyError: 'secrets'"


def test_without_a_thread_for_its_process_it_says_so(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("life"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    exited = Controller(make()).until_kind(wire.Exited)
    assert "RuntimeError: can't start new thread" in exited.cause


DEAD_MAN = """
import sys
from dataclasses import replace
from jobs import supervisor as module
from tests.integration.jobs.test_supervisor import ORDER
module._own_place = lambda: ("127.0.0.1", "host", "node")
one = module.WorkerSupervisor(replace(ORDER, dead_man_s=3.0))
events = []
while not any(isinstance(event.event, module.wire.Spawned) for event in events):
    # Shorter than the switch, or the wait itself would be a silence.
    events = one.poll(1, 0, 0.1).events
print(next(event.event.pid for event in events if isinstance(event.event, module.wire.Spawned)), flush=True)
import threading
threading.Event().wait(60)
"""


def test_hearing_no_controller_it_ends_its_process_and_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEAD_MAN]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env={"TMPDIR": str(tmp_path), "PATH": "/bin"}, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert identify(int(done.stdout)) is None
    assert not list(tmp_path.glob("rubato-*/workers/*")), "its folder went too"


STOPPED = """
import sys
from dataclasses import replace
from jobs import supervisor as module
from tests.integration.jobs.test_supervisor import ORDER
module._own_place = lambda: ("127.0.0.1", "host", "node")
one = module.WorkerSupervisor(replace(ORDER, dead_man_s=2.0))
for line in sys.stdin:
    print(len(one.poll(1, 0, 0.1).events), flush=True)
one.kill(1, "the test is over")
"""


def test_the_time_in_which_it_was_stopped_is_no_silence(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {"TMPDIR": str(tmp_path), "PATH": "/bin"}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def poll() -> bytes:
            process.stdin.write(b"poll\n")
            process.stdin.flush()
            return bytes(process.stdout.readline())

        assert poll()
        with stopped(process.pid):
            time.sleep(3.0)
        time.sleep(0.7)  # it looks, and has not been polled yet
        assert poll(), "it had ended itself"
        process.stdin.close()
        process.wait(30)


def wait(condition: Callable[[], Any]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to pass")
