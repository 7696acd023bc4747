from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubato.checkpoint.manifest import find_latest
from rubato.checkpoint.storage import LocalFolder
from rubato.cli.keeper.process_table import identify
from rubato.errors import CheckpointError, UserError
from rubato.launch import supervisor as supervisor_module
from rubato.launch.archive import next_attempt
from rubato.launch.claim import OWNER_NAME
from rubato.launch.control import ask_run
from rubato.launch.local import LocalFleet, LocalRun, describe_left_out, run_local
from rubato.launch.output import OutputLine
from rubato.launch.process import ChildProcess
from rubato.launch.supervisor import ChildPlan
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure, Outcome
from rubato.wire.reasons import Reason
from rubato.wire.spec import CheckpointSpec, LimitsSpec, spec_to_json
from rubato.wire.storage import parse_storage
from tests.integration.launch.toy_run import TOY, Background, read_lines, spec
from tests.waiting import wait_for


def test_a_run_ends_with_step_and_digest(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_local(spec(steps=5), working_dir=tmp_path, checkpoint_dir=None, home=home, command=TOY) == 0
    out, err = capsys.readouterr()
    run_id, last = out.splitlines()
    assert last == f"succeeded: step 5, digest {'d' * 64}"
    assert f"its last checkpoint is in {home / 'runs' / run_id / 'checkpoints'}; `rubato export {run_id}`" in err
    assert "[w1.1] hello from 1.1" in err
    folder = home / "runs" / run_id
    assert [row["step"] for row in read_lines(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    kinds = [event["kind"] for event in read_lines(folder / "events.jsonl")]
    assert kinds[:2] == ["worker.started", "worker.ready"]
    assert "generation.formed" in kinds
    assert kinds[-1] == "outcome"
    assert find_latest(LocalFolder(folder / "checkpoints"), lambda path, cause: pytest.fail(cause)) is not None


def test_a_killed_worker_is_replaced_and_the_run_goes_on_from_its_checkpoint(background: Any) -> None:
    one = background(spec(steps=100, step_s=0.02, die_at=30, signal=9))
    one.wait(10)
    one.ask(verb="checkpoint")
    assert one.join().state == "succeeded"
    events = read_lines(one.run.folder / "events.jsonl")
    lost = next(event for event in events if event["kind"] == "worker.lost")
    assert lost["data"]["signal"] == "SIGKILL"
    again = [event for event in events if event["kind"] == "generation.formed"][-1]
    assert again["data"]["cause"] == "restart"
    assert again["step"] > 10


def test_a_program_that_always_crashes_fails_with_its_last_output(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = spec(steps=3, die_at=0, exit_code=3)
    crash = (sys.executable, "-c", "print('boom'); raise SystemExit(3)")
    assert run_local(job, working_dir=tmp_path, checkpoint_dir=None, home=home, command=crash) == 100
    last = capsys.readouterr().out
    assert "exited with code 3" in last
    assert "boom" in last


def test_a_failure_that_names_a_file_in_another_encoding_is_printed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    failure = Failure("user", Reason.USER_CODE_ERROR, "No such file: caf\udce9.pt")
    monkeypatch.setattr(LocalRun, "run", lambda run, on_ready: Outcome("failed", failure=failure))
    assert run_local(spec(), working_dir=tmp_path, checkpoint_dir=None, home=home, command=TOY) == 100
    out.seek(0)
    assert "failed: No such file: caf\\udce9.pt" in out.read()


def test_the_wish_of_another_terminal_is_obeyed(background: Any) -> None:
    one = background(spec(steps=10**6))
    one.wait(3)
    one.ask(verb="scale", workers=1)
    with pytest.raises(UserError, match=r"1\.\.4"):
        one.ask(verb="scale", workers=9)
    assert one.ask(verb="status")["observed"]["workers"] == 1
    one.ask(verb="pause")
    assert one.join().state == "paused"
    found = find_latest(one.run.checkpoints, lambda path, cause: pytest.fail(cause))
    assert found is not None
    rows = read_lines(one.run.folder / "metrics.jsonl")
    assert found[1].step == rows[-1]["step"]


def test_a_run_goes_on_from_a_folder_with_checkpoints(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    where = parse_storage(str(folder))
    for steps, first in ((4, 1), (7, 5)):
        assert run_local(spec(steps=steps), working_dir=tmp_path, checkpoint_dir=where, home=home, command=TOY) == 0
        run_id = capsys.readouterr().out.splitlines()[0]
        rows = read_lines(home / "runs" / run_id / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(first, steps + 1))
    assert sorted(path.name for path in folder.iterdir()) == ["1-4", "2-7"]
    assert next_attempt(LocalFolder(folder)) == 3


def test_the_id_is_printed_when_the_run_can_be_asked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where looking for GPUs takes long."""
    asked: list[dict[str, Any]] = []

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith("run_"):
                asked.append(ask_run(home / "runs" / text.strip(), {"verb": "status"}))
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run_local(spec(steps=1), working_dir=tmp_path, checkpoint_dir=None, home=home, command=TOY) == 0
    assert [reply["desired_workers"] for reply in asked] == [1]


def test_where_a_run_can_be_asked_is_written_whole_or_not_at_all(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun(spec(), tmp_path, None, home, TOY, io.StringIO())

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", refuse)
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.touch() or refuse())
    with pytest.raises(UserError, match=r"cannot write .*run\.json: No space left on device; make room"):
        run.run()
    with pytest.raises(FileNotFoundError):
        ask_run(run.folder, {"verb": "status"})


def test_a_start_that_is_refused_leaves_no_run(home: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot make the folder"):
        LocalRun(spec(), tmp_path, parse_storage(str(tmp_path / "taken")), home)
    assert not list(home.glob("runs/*"))


def test_a_checkpoint_of_a_service_is_refused_instead_of_begun_without(home: Path, tmp_path: Path) -> None:
    job = replace(spec(), checkpoint=CheckpointSpec(resume_from="ckpt_1"))
    with pytest.raises(
        UserError, match=r"checkpoint.resume_from \(ckpt_1\) names a checkpoint of a service.*--checkpoint-dir"
    ):
        LocalRun(job, tmp_path, None, home)
    assert not list(home.glob("runs/*"))


def test_what_only_a_service_does_is_told() -> None:
    job = replace(spec(), secrets=("HERE", "GONE"), limits=LimitsSpec(max_duration=60.0))
    secrets, limit = describe_left_out(job, {"HERE": "x"})
    assert secrets.startswith("secrets GONE: no service is asked")
    assert limit.startswith("limits.max_duration: only a service")
    assert describe_left_out(spec(), {}) == []


def test_a_checkpoint_is_refused_in_place_of_its_folder(home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    where = parse_storage(str(kept))
    assert run_local(spec(steps=2), working_dir=tmp_path, checkpoint_dir=where, home=home, command=TOY) == 0
    with pytest.raises(UserError, match=r"kept/1-2 is itself a checkpoint: name the folder that it lies in, /.*/kept,"):
        LocalRun(spec(steps=4), tmp_path, parse_storage(f"{kept}/1-2"), home)


def test_a_folder_that_another_run_saves_in_is_refused_also_its_own(
    home: Path, tmp_path: Path, background: Any
) -> None:
    first = background(spec(steps=10**6))
    first.wait(2)
    with pytest.raises(UserError, match=rf"{first.run.run_id} \(process .* saves to .*`rubato cancel run_.* --wait`"):
        LocalRun(spec(), tmp_path, parse_storage(str(first.run.checkpoints)), home)
    assert [path.name for path in home.glob("runs/*")] == [first.run.run_id]
    first.ask(verb="pause")
    assert first.join().state == "paused"
    kept, steps = (
        parse_storage(str(first.run.checkpoints)),
        read_lines(first.run.folder / "metrics.jsonl")[-1]["step"] + 2,
    )
    assert run_local(spec(steps=steps), working_dir=tmp_path, checkpoint_dir=kept, home=home, command=TOY) == 0


def test_a_run_whose_folder_was_taken_over_fails_and_deletes_nothing(home: Path, tmp_path: Path) -> None:
    """Where there are no locks, as in an object store."""
    kept = LocalFolder(tmp_path / "kept")
    run = LocalRun(spec(steps=10**6), tmp_path, parse_storage(str(kept)), home, TOY, io.StringIO())
    one = Background(run)
    one.wait(3)
    (kept.path / OWNER_NAME).write_text(json.dumps({"run": "run_other", "host": "b", "pid": 7, "token": "theirs"}))
    (kept / "2-1").write("stripe", [b"of another run"])
    one.ask(verb="checkpoint")
    outcome = one.join()
    assert outcome.state == "failed"
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("run_other (process 7 on b")
    assert "so this run has stopped" in outcome.failure.message
    assert "2-1" in kept.folders()
    assert (kept.path / OWNER_NAME).exists(), "it is the other's"


PROGRAM = """
import sys
from pathlib import Path
from rubato.launch.local import run_local
from rubato.wire.spec import parse_spec, spec_to_json
spec = parse_spec({"name": "toy", "entrypoint": "t.py", "config": {"steps": 10**6}, "limits": {"stop_grace": 20}})
sys.exit(run_local(spec, working_dir=Path("."), checkpoint_dir=None, home=Path("home"), command=tuple(sys.argv[1:])))
"""


@contextlib.contextmanager
def start_program(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", PROGRAM, *command]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # its workers go with it


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"it ended without saying {text!r}")


def test_an_interrupt_stops_at_the_boundary(tmp_path: Path) -> None:
    with start_program(tmp_path, *TOY) as process:
        read_until(process, "generation 1 formed")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 103
    assert out.splitlines()[-1] == "cancelled"
    assert "rubato: this run has saved no checkpoint in " in err


SHOWS_DEVICES = "import os, time; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep(600)"


def test_each_worker_sees_a_device_of_its_own_and_a_replacement_that_of_the_lost_one(tmp_path: Path) -> None:
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def next_of(kind: type) -> Any:
        while not isinstance(event := said.get(timeout=30), kind):
            pass
        return event

    start = wire.Start(1, "toy", "", "", spec_to_json(spec()), "127.0.0.1", "")
    command = (sys.executable, "-S", "-c", SHOWS_DEVICES)
    fleet = LocalFleet(ChildPlan(start, "here", tmp_path, {}, command), said.put, ("4", "6"))
    try:
        for number, device in ((1, "4"), (2, "6"), (3, "4")):
            fleet.spawn(f"w1.{number}", f"1.{number}", 7)
            assert next_of(OutputLine).line == device
        assert fleet._workers["1.3"]._plan.start.last_step == 7
        fleet.kill("1.2", "a test", with_stacks=False)
        assert next_of(wire.Exited).incarnation == "1.2"
        fleet.spawn("w1.4", "1.4", 0)
        assert next_of(OutputLine).line == "6"
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("devices", "next_device"), [(("4", "6", "8"), "8"), (("4", "6"), "4")], ids=["one free", "none free"]
)
def test_a_process_that_the_kernel_does_not_end_shares_its_device_with_nobody_who_could_have_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], next_device: str
) -> None:
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stuck: list[ChildProcess] = []
    answers, wait = threading.Event(), ChildProcess.wait_for_end

    def wait_in_the_kernel(process: ChildProcess) -> None:
        if not stuck:
            stuck.append(process)
            assert answers.wait(60)
        wait(process)

    def device_of(number: int) -> str:
        fleet.spawn(f"w1.{number}", f"1.{number}", 0)
        while not isinstance(event := said.get(timeout=30), OutputLine) or event.stream == "system":
            pass
        return event.line

    monkeypatch.setattr(ChildProcess, "wait_for_end", wait_in_the_kernel)
    monkeypatch.setattr(supervisor_module, "UNENDED_S", 0.2)
    start = wire.Start(1, "toy", "", "", spec_to_json(spec()), "127.0.0.1", "")
    command = (sys.executable, "-S", "-c", SHOWS_DEVICES)
    fleet = LocalFleet(ChildPlan(start, "here", tmp_path, {}, command), said.put, devices)
    try:
        assert [device_of(number) for number in (1, 2)] == ["4", "6"]
        first = fleet._workers["1.1"]
        fleet.kill("1.1", "it hangs", with_stacks=False)
        while not isinstance(said.get(timeout=30), wire.Exited):
            pass
        assert device_of(3) == next_device
        answers.set()
        wait_for(lambda: first.is_gone, "its end", 10.0)
        if len(devices) > 2:
            assert device_of(4) == "4"
    finally:
        answers.set()
        fleet.close()


@contextlib.contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """This process may open no more than so many meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        while left > 0:
            os.close(held.pop())
            left -= 1
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in held:
            os.close(one)


def test_a_worker_for_which_there_are_no_descriptors_is_an_exit_and_holds_none(tmp_path: Path) -> None:
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start = wire.Start(1, "toy", "", "", spec_to_json(spec()), "127.0.0.1", "")
    command = (sys.executable, "-S", "-c", "")
    fleet = LocalFleet(ChildPlan(start, "here", tmp_path, {}, command), said.put)
    before = sorted(Path("/proc/self/fd").iterdir())
    for left in range(10):
        with few_descriptors(left):
            fleet.spawn("w1", f"1.{left}", 0)
            exited = said.get(timeout=30)
        assert "could not be started: [Errno 24]" in exited.cause
        wait_for(lambda: sorted(Path("/proc/self/fd").iterdir()) == before, f"what it held after {left}", 10.0)
    fleet.spawn("w1", "1.100", 0)
    while not isinstance(exited := said.get(timeout=30), wire.Exited):
        pass
    assert exited.exit_code == 0
    fleet.close()


def test_a_second_interrupt_kills_whom_the_first_one_does_not_end(tmp_path: Path) -> None:
    with start_program(tmp_path, *TOY, "deaf") as process:
        read_until(process, "generation 1 formed")
        (events,) = tmp_path.glob("home/runs/*/events.jsonl")
        pid = read_lines(events)[0]["data"]["pid"]
        process.send_signal(signal.SIGINT)
        read_until(process, "stopping at the next boundary")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 103
    assert identify(pid) is None


def test_interrupts_break_off_nothing_that_is_closed_at_the_end(tmp_path: Path) -> None:
    run = LocalRun(spec(steps=10**6), tmp_path, None, tmp_path / "home", TOY, io.StringIO())
    close = run._claim.close

    def interrupt_and_close() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        close()

    run._claim.close = interrupt_and_close  # type: ignore[method-assign]
    assert run.run(lambda: signal.raise_signal(signal.SIGINT)).state == "cancelled"


def test_nothing_is_left_when_the_run_itself_is_killed(tmp_path: Path) -> None:
    with start_program(tmp_path, *TOY) as process:
        read_until(process, "generation 1 formed")
        run_folder = next((tmp_path / "home" / "runs").iterdir())
        started = read_lines(run_folder / "events.jsonl")[0]
        child = int(started["data"]["pid"])
        assert identify(child) is not None
        process.kill()
        process.communicate(timeout=10)
    deadline = threading.Event()
    for _ in range(1000):
        if identify(child) is None:
            break
        deadline.wait(0.01)
    assert identify(child) is None
    assert (run_folder / "metrics.jsonl").exists()
