from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rubato.cli.keeper.process_table import identify, read_table
from rubato.launch import supervisor as supervisor_module
from rubato.launch.environment import child_environment
from rubato.launch.output import OutputLine
from rubato.launch.process import ChildProcess
from rubato.launch.supervisor import ChildPlan, ChildSupervisor, resident_bytes
from rubato.wire import worker as wire
from tests.waiting import wait_for
from tests.watched_child import START, Watched, wait_gone, watching

PREAMBLE = """
import json, os, signal, socket, subprocess, sys, time
from rubato.launch.tether import guard_group, tether_to_supervisor
tether_to_supervisor()
control = socket.socket(fileno=int(os.environ["RUBATO_CONTROL_FD"]))
lines = control.makefile("r")
def say(**message):
    control.sendall(json.dumps(message).encode() + b"\\n")
def hello(store):
    say(type="Hello", incarnation="1.1", store=store)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    with watching() as begin:

        def start(script: str, command: tuple[str, ...] | None = None, **env: str) -> Watched:
            environment = child_environment(os.environ, working_dir=tmp_path, job_env=env)
            command = command or (sys.executable, "-P", "-c", PREAMBLE + textwrap.dedent(script))
            return begin(ChildPlan(START, "here", tmp_path, environment, command))

        yield start


@pytest.mark.parametrize(
    ("script", "code", "name"),
    [
        ("sys.exit(0)", 0, None),
        ("sys.exit(7)", 7, None),
        ("os._exit(70)", 70, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV"),
    ],
)
def test_how_it_ended_is_told(run: Any, script: str, code: int | None, name: str | None) -> None:
    watched = run(script)
    exited = watched.finish()
    assert (exited.exit_code, exited.signal) == (code, name)
    spawned = watched.seen[0]
    assert isinstance(spawned, wire.Spawned)
    assert (spawned.supervisor_pid, spawned.node) == (os.getpid(), "here")
    assert identify(spawned.pid) is None


def test_commands_go_down_and_messages_come_up_in_order(run: Any) -> None:
    watched = run(
        """
        assert json.loads(lines.readline())["type"] == "Start"
        for line in lines:
            command = json.loads(line)
            hello(str(command["step"]))
            if command["step"] == 499:
                break
        """
    )
    for step in range(500):
        watched.supervisor.send(wire.Acknowledge(3, step))
    watched.finish()
    assert [one.store for one in watched.seen if isinstance(one, wire.Hello)] == [str(step) for step in range(500)]


def test_commands_to_one_that_does_not_read_block_nobody_and_vanish_with_it(run: Any) -> None:
    watched = run("hello('up'); time.sleep(60)")
    watched.until(wire.Hello)
    for step in range(20_000):
        watched.supervisor.send(wire.Acknowledge(3, step))
    watched.supervisor.kill()
    assert watched.finish().signal == "SIGKILL"


def test_signs_of_life_say_what_it_does_and_its_memory(run: Any) -> None:
    watched = run(
        """
        from rubato.wire.progress import ProgressWord
        word, taken = ProgressWord(int(os.environ["RUBATO_PROGRESS_FD"])), bytearray(b"x") * 200_000_000
        word.write("compute", 7, 2)
        word.beat()
        time.sleep(60)
        """
    )
    beat = watched.until(wire.Beat)
    assert (beat.stage, beat.step, beat.generation) == ("compute", 7, 2)
    assert beat.memory_bytes == pytest.approx(200_000_000, rel=0.3)
    watched.supervisor.kill()
    watched.finish()
    assert resident_bytes(watched.supervisor.pid) is None


def test_output_comes_line_by_line_with_its_stream_before_the_exit(run: Any) -> None:
    watched = run(
        r"""
        print("one"); print("two", file=sys.stderr)
        os.write(1, b"bad \xff byte\n" + b"x" * 300_000 + b"\n" + b"unfinished")
        hello("last")
        sys.exit(3)
        """
    )
    exited = watched.finish()
    texts = [line for stream, line in watched.output if stream == "stdout"]
    assert texts[0] == "one"
    assert texts[1] == "bad \ufffd byte"
    assert texts[2].startswith("x" * 16384)
    assert texts[2].endswith("bytes cut)")
    assert texts[3] == "unfinished"
    assert ("stderr", "two") in watched.output
    assert exited.last_output[-1] == "unfinished"
    assert any(isinstance(one, wire.Hello) for one in watched.seen)


def test_a_storm_of_lines_is_cut_and_told_and_its_end_is_kept(run: Any) -> None:
    watched = run("print('y' * 99 + '\\n', end='' , flush=True); print(('z' * 99 + '\\n') * 100_000 + 'the end')")
    exited = watched.finish()
    assert sum(stream == "stdout" for stream, _ in watched.output) < 60_000
    assert any("lines were dropped" in line for stream, line in watched.output if stream == "system")
    assert exited.last_output[-1] == "the end"
    assert len(exited.last_output) == 100


def test_the_whole_group_goes_with_it(run: Any) -> None:
    watched = run(
        """
        children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
        print(*[child.pid for child in children])
        os._exit(0)
        """
    )
    assert watched.finish().exit_code == 0
    for pid in watched.output[0][1].split():
        wait_gone(int(pid))


def test_a_grandchild_that_left_the_group_cannot_hold_the_end_up(run: Any) -> None:
    watched = run(
        """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        print(child.pid)
        os._exit(5)
        """
    )
    assert watched.finish().exit_code == 5
    stray = int(watched.output[0][1])
    os.kill(stray, signal.SIGKILL)
    wait_gone(stray)


def test_a_stopped_process_is_killed_all_the_same(run: Any) -> None:
    watched = run("hello('up'); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)")
    watched.until(wire.Hello)
    watched.supervisor.kill("it hangs", with_stacks=True)
    assert watched.finish().signal in ("SIGKILL", "SIGABRT")


def test_one_that_the_kernel_does_not_end_is_waited_for_by_nobody(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, wait = threading.Event(), ChildProcess.wait_for_end

    def wait_in_the_kernel(process: ChildProcess) -> None:
        assert answers.wait(60)
        wait(process)

    monkeypatch.setattr(ChildProcess, "wait_for_end", wait_in_the_kernel)
    monkeypatch.setattr(supervisor_module, "UNENDED_S", 0.2)
    watched = run("print('up', flush=True); time.sleep(60)")
    watched.until(OutputLine)
    watched.supervisor.kill("it hangs")
    exited = watched.finish()
    assert (exited.exit_code, exited.signal, exited.last_output) == (None, None, ("up",))
    what = f"the kernel has not ended process {watched.supervisor.pid} within 0.2 s of SIGKILL"
    assert exited.cause.startswith(f"it hangs; {what}")
    assert [line.startswith(what) for stream, line in watched.output if stream == "system"] == [True]
    assert watched.supervisor.close()
    assert not watched.supervisor.is_gone
    answers.set()
    wait_for(lambda: not watched.supervisor._life.is_alive(), "its end", 10.0)
    assert watched.supervisor.is_gone
    watched.supervisor.kill("nobody waits")
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, watched.supervisor.pid, os.WEXITED | os.WNOHANG)  # it was reaped
    assert watched._events.empty()


def test_a_hung_process_leaves_its_stacks(run: Any) -> None:
    watched = run(
        """
        def where_it_hangs():
            hello('up')
            time.sleep(60)
        where_it_hangs()
        """
    )
    watched.until(wire.Hello)
    watched.supervisor.kill("it hangs", with_stacks=True)
    exited = watched.finish()
    assert any("where_it_hangs" in line for line in exited.last_output)


def test_killed_before_it_was_spawned_it_still_says_both(run: Any, tmp_path: Path) -> None:
    environment = child_environment(os.environ, working_dir=tmp_path)
    plan = ChildPlan(START, "here", tmp_path, environment, (sys.executable, "-c", "import time; time.sleep(60)"))
    watched = Watched(plan)
    watched.supervisor.kill("never mind")
    watched.supervisor.start()
    assert watched.finish().signal == "SIGKILL"


def test_what_cannot_be_started_is_an_exit_with_the_cause(run: Any) -> None:
    watched = run("", command=("/nowhere/python",))
    exited = watched.finish()
    assert "could not be started" in exited.cause
    assert watched.seen == [exited]
    assert watched.supervisor.is_gone


@pytest.mark.parametrize("line", ["nonsense", '{"type": "Coup"}', '{"type": "Hello", "incarnation": 5}', "[]"])
def test_one_that_speaks_no_protocol_is_ended(run: Any, line: str) -> None:
    watched = run(f"control.sendall({line!r}.encode() + b'\\n'); time.sleep(60)")
    exited = watched.finish()
    assert exited.signal == "SIGKILL"
    assert "does not hold" in exited.cause


def test_it_leads_its_own_group_and_its_folder_comes_first(run: Any, tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text("name = 'the user\\'s'")
    watched = run(
        "import api; print(os.getpgid(0) == os.getpid(), os.getcwd(), api.name, os.environ['MINE'])", MINE="x"
    )
    watched.finish()
    assert watched.output == [("stdout", f"True {tmp_path} the user's x")]


def test_it_dies_with_its_supervisors_process(tmp_path: Path) -> None:
    """The parent is SIGKILLed: nobody is left to clean up, the kernel must."""
    (child,) = _pids_at_the_death_of("print(os.getpid(), flush=True); time.sleep(60)", tmp_path)
    wait_gone(child)


def test_what_it_started_dies_with_its_supervisors_process(tmp_path: Path) -> None:
    """The kernel's signal reaches the training process alone: its group has a guard, which the group cannot end."""
    script = """
guard_group()
sleeper = subprocess.Popen(["sleep", "60"])
forked = os.fork()
if forked == 0:
    time.sleep(60)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
sleeper.wait()
sleeper = subprocess.Popen(["sleep", "60"])
forked = os.fork()
if forked == 0:
    time.sleep(60)
print(os.getpid(), sleeper.pid, forked, flush=True)
time.sleep(60)
"""
    group, *started = _pids_at_the_death_of(script, tmp_path)
    for pid in (group, *started):
        wait_gone(pid)
    wait_for(lambda: not group_of(group), "the end of the guard", 10.0)


def test_its_guard_is_no_child_of_it_and_ends_with_it(run: Any) -> None:
    watched = run(
        """
        guard_group()
        try:
            os.wait()
        except ChildProcessError:
            print(sorted(name for name in os.environ if name.endswith("_FD")))
        print(os.getpid(), flush=True)
        for line in lines:
            if json.loads(line)["type"] == "Acknowledge":
                break
        """
    )
    watched.until(OutputLine)
    watched.until(OutputLine)
    names, pid = [line for _, line in watched.output]
    assert "GUARD" not in names
    (guard,) = group_of(int(pid)) - {int(pid)}
    descriptors = Path(f"/proc/{guard}/fd")
    kinds = {str(one.readlink()).partition(":")[0] for one in descriptors.iterdir() if int(one.name) < 10}
    assert kinds <= {"socket", "/dev/null"}
    watched.supervisor.send(wire.Acknowledge(3, 1))
    assert watched.finish().exit_code == 0
    wait_for(lambda: not group_of(int(pid)), "the end of the guard", 10.0)


def group_of(pid: int) -> set[int]:
    """Living processes of the session that it leads."""
    return {row.pid for row in read_table().values() if row.session == pid and row.state != "Z"}


def _pids_at_the_death_of(script: str, tmp_path: Path) -> list[int]:
    """Kill a supervisor's process once its training process has printed pids; these."""
    script = PREAMBLE + script
    parent = f"""
import os, queue, sys, time
from pathlib import Path
from rubato.launch.supervisor import ChildPlan, ChildSupervisor
from rubato.wire import worker as wire
start = wire.Start(1, "j", "w1.1", "1.1", {{}}, "h", "")
plan = ChildPlan(start, "n", Path({str(tmp_path)!r}), dict(os.environ), (sys.executable, "-P", "-c", {script!r}))
ChildSupervisor(plan, lambda event: print(getattr(event, "line", ""), flush=True)).start()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in next(line for line in process.stdout if line.strip()).split()]
        assert all(identify(pid) is not None for pid in pids)
        process.kill()
        process.wait()
    return pids


def test_what_could_never_be_a_process_is_an_exit_with_the_cause(run: Any) -> None:
    watched = run("", MINE="a\0b")
    exited = watched.finish()
    assert "could not be started: embedded null byte" in exited.cause
    assert watched.seen == [exited]


def test_without_a_thread_for_its_output_it_is_ended(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("pump"):
            raise RuntimeError("can't start new thread")
        start(thread)

    before = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    watched = run("time.sleep(60)")
    exited = watched.finish()
    assert "could not be watched: RuntimeError: can't start new thread" in exited.cause
    assert identify(watched.seen[0].pid) is None
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_without_a_thread_for_itself_it_says_so_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = sorted(Path("/proc/self/fd").iterdir())
    watched = Watched(ChildPlan(START, "here", tmp_path, {}))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        watched.supervisor.start()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_an_error_in_whoever_listens_ends_it(tmp_path: Path) -> None:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen(event: Any) -> None:
        if isinstance(event, OutputLine):
            raise KeyError(event.line)
        heard.put(event)

    command = (sys.executable, "-c", "import time; print('lost', flush=True); time.sleep(60)")
    supervisor = ChildSupervisor(ChildPlan(START, "here", tmp_path, dict(os.environ), command), listen)
    supervisor.start()
    assert isinstance(heard.get(timeout=60), wire.Spawned)
    exited = heard.get(timeout=60)
    assert supervisor.join(10)
    assert (exited.signal, "KeyError: 'lost'" in exited.cause) == ("SIGKILL", True)


IGNORES_CHILDREN = """
import os, queue, signal, sys
from pathlib import Path
from rubato.launch.supervisor import ChildPlan, ChildSupervisor
from tests.watched_child import START
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
script = "import subprocess; from rubato.launch.tether import guard_group; guard_group();"
script += "print(subprocess.Popen(['sleep', '60']).pid)"
heard = queue.SimpleQueue()
ChildSupervisor(ChildPlan(START, "n", Path("."), dict(os.environ), (sys.executable, "-c", script)), heard.put).start()
for _ in range(3):
    print(getattr(event := heard.get(timeout=30), "line", event))
"""


def test_where_the_kernel_takes_its_end_away_that_is_told_and_its_group_ends() -> None:
    command = [sys.executable, "-c", IGNORES_CHILDREN]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=True
    )
    _, sleeper, exited = done.stdout.splitlines()
    assert "could not be watched: ChildProcessError" in exited
    wait_gone(int(sleeper))
