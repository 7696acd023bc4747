"""The fork server: forks end, and are ended, as fresh processes are; a server that does not serve is done without."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rubato.cli.keeper.process_table import identify, read_table
from rubato.launch.environment import child_environment
from rubato.launch.forkserver import READY, SERVER_COMMAND, SERVER_VARIABLE, ForkServer, ForkServerGone, reap_group
from rubato.launch.output import OutputLine
from rubato.launch.supervisor import ChildPlan
from rubato.wire import worker as wire
from rubato.wire.spec import parse_spec, spec_to_json
from tests.stopping import stop
from tests.waiting import wait_for
from tests.watched_child import START, Watched, wait_gone, watching

Begin = Callable[..., Watched]
Own = Callable[[Path], ForkServer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("working")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ForkServer]:
    server = ForkServer(folder, environment_of(folder))
    yield server
    server.close()
    assert identify(server.pid) is None


@pytest.fixture
def own() -> Iterator[Own]:
    """Start a server of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(working_dir: Path) -> ForkServer:
            server = ForkServer(working_dir, environment_of(working_dir))
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def begin(folder: Path, server: ForkServer) -> Iterator[Begin]:
    """Start a training process whose program does this when it is imported."""
    with watching() as watch:

        def start(program: str, forkserver: ForkServer = server, working_dir: Path = folder) -> Watched:
            (working_dir / "program.py").write_text(program)
            return watch(plan_of(working_dir, forkserver))

        yield start


def environment_of(working_dir: Path) -> dict[str, str]:
    # Programs follow each other within a second, some with equal sizes: bytecode of one would be taken for the next's.
    own = {"MINE": "x", "PYTHONDONTWRITEBYTECODE": "1"}
    return child_environment(os.environ, working_dir=working_dir, job_env=own)


def plan_of(working_dir: Path, forkserver: ForkServer) -> ChildPlan:
    spec = parse_spec({"name": "forked", "entrypoint": "program.py:train"})
    start = replace(START, spec=spec_to_json(spec))
    return ChildPlan(start, "here", working_dir, environment_of(working_dir), forkserver=forkserver)


def server_of(watched: Watched) -> str:
    """Which module the process began with."""
    return next(line for _, line in watched.output if line.startswith("began as")).rpartition(".")[2]


BEGAN_AS = "import sys; print('began as', sys.modules['__main__'].__spec__.name, flush=True)\n"


@pytest.mark.short
@pytest.mark.parametrize(
    ("program", "code", "name"),
    [
        ("import os; os._exit(7)", 7, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV"),
        ("1 / 0", 1, None),
    ],
)
def test_how_a_fork_ended_is_told_as_of_any_other(begin: Begin, program: str, code: int | None, name: str) -> None:
    watched = begin(BEGAN_AS + program)
    exited = watched.finish()
    assert (exited.exit_code, exited.signal) == (code, name)
    assert server_of(watched) == "forkserver_process"
    spawned = watched.seen[0]
    assert isinstance(spawned, wire.Spawned)
    assert identify(spawned.pid) is None


@pytest.mark.short
def test_a_fork_is_like_a_fresh_process(begin: Begin, folder: Path) -> None:
    watched = begin(
        """
import os, sys, threading, torch
print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), os.environ["MINE"], os.environ["RUBATO_WORKER_ID"])
print(sys.path[0], [name for name in os.environ if name.endswith("_FD")], threading.current_thread().name)
print("to stderr", file=sys.stderr)
print(torch.randn(3, 3).matmul(torch.ones(3, 3)).shape[0], torch.get_num_threads())
print("is called", open("/proc/self/comm").read().strip())
"""
    )
    watched.finish()
    said = [line for stream, line in watched.output if stream == "stdout"]
    assert said == [f"{os.getpid()} True {folder} x w1.1", f"{folder} [] MainThread", "3 1", "is called rubato w1.1"]
    assert ("stderr", "to stderr") in watched.output


def test_a_hung_fork_leaves_its_stacks(begin: Begin) -> None:
    watched = begin("def where_it_hangs():\n    import time\n    print('up')\n    time.sleep(60)\nwhere_it_hangs()")
    watched.until(OutputLine)
    watched.supervisor.kill("it hangs", with_stacks=True)
    assert any("where_it_hangs" in line for line in watched.finish().last_output)


def test_who_is_killed_while_the_server_imports_is_not_started_at_all(tmp_path: Path, own: Own) -> None:
    (tmp_path / "numpy.py").write_text("import time\ntime.sleep(60)")
    with watching() as watch:
        watched = watch(plan_of(tmp_path, own(tmp_path)))
        watched.supervisor.kill("never mind")
        assert "never mind" in watched.until(wire.Exited).cause


def test_a_server_that_hangs_is_given_up(
    tmp_path: Path, own: Own, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.launch.forkserver.ANSWER_S", 0.5)
    server = own(tmp_path)
    begin("", server, tmp_path).finish()
    stop(server.pid)
    watched = begin(BEGAN_AS, server, tmp_path)
    watched.finish()
    assert server_of(watched) == "child"
    assert ("system", "started afresh, for the fork server does not serve: timed out") in watched.output
    assert server.failure == "timed out"


def test_a_request_that_fails_leaves_no_descriptor(tmp_path: Path, own: Own) -> None:
    server = own(tmp_path)
    reaped = server.spawn({}, {})
    assert reaped is not None
    reaped.stdout.close()
    reaped.stderr.close()
    assert reaped.reap() != 0  # it was given no control socket
    before = sorted(Path("/proc/self/fd").iterdir())
    os.kill(server.pid, signal.SIGKILL)
    for _ in range(3):
        with pytest.raises(ForkServerGone):
            server.spawn({}, {})
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_server_that_dies_takes_nobody_with_it_and_is_done_without(tmp_path: Path, own: Own, begin: Begin) -> None:
    server = own(tmp_path)
    (tmp_path / "go").touch()
    program = BEGAN_AS + "import os, time\nwhile os.path.exists('go'): time.sleep(0.01)\nos._exit(5)"
    before = begin(program, server, tmp_path)
    before.until(wire.Spawned)
    os.kill(server.pid, signal.SIGKILL)
    after = begin(program, server, tmp_path)
    after.until(wire.Spawned)
    (tmp_path / "go").unlink()
    assert before.finish().exit_code == after.finish().exit_code == 5
    assert (server_of(before), server_of(after)) == ("forkserver_process", "child")


def test_what_breaks_the_imports_is_told_by_a_fresh_process(tmp_path: Path, own: Own, begin: Begin) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('this is the wrong torch')")
    watched = begin("", own(tmp_path), tmp_path)
    assert watched.finish().exit_code != 0
    assert any("this is the wrong torch" in line for line in watched.seen[-1].last_output)


def test_a_process_with_threads_is_not_forked(tmp_path: Path, own: Own, begin: Begin) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    watched = begin(BEGAN_AS, own(tmp_path), tmp_path)
    watched.finish()
    assert server_of(watched) == "child"


def test_a_fork_that_its_launcher_has_not_heard_of_ends_itself(folder: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**environment_of(folder), SERVER_VARIABLE: str(theirs.fileno())}
    with subprocess.Popen(SERVER_COMMAND, env=environment, pass_fds=(theirs.fileno(),)) as server, ours:
        theirs.close()
        assert ours.recv(64) == READY
        go, unheard = os.pipe()
        with Path(os.devnull).open("wb") as output:
            request = json.dumps({"variables": {}, "descriptors": []}).encode()
            socket.send_fds(ours, [request], [output.fileno(), output.fileno(), go])
        pid = int(ours.recv(64))
        assert identify(pid) is not None
        os.close(go)
        os.close(unheard)
        wait_gone(pid)
        ours.shutdown(socket.SHUT_RDWR)
        assert server.wait(10) == 0


def test_nobody_is_adopted_afterwards(begin: Begin) -> None:
    begin("").finish()
    is_subreaper = ctypes.c_int(1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(is_subreaper), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert is_subreaper.value == 0


def test_orphans_that_were_adopted_meanwhile_are_collected(begin: Begin) -> None:
    """Each fork has a guard, which loses its parent while other forks are made."""
    forks = [begin("import time; time.sleep(60)") for _ in range(4)]
    pids = [fork.until(wire.Spawned).pid for fork in forks]
    wait_for(lambda: all(len(members_of(pid)) == 2 for pid in pids), "their guards", 30.0)
    for fork in forks:
        fork.supervisor.kill()
        fork.finish()
    own = [row for row in read_table().values() if row.parent == os.getpid()]
    assert [row for row in own if row.state == "Z" or row.session in pids] == []


def test_what_a_fork_started_dies_with_it(begin: Begin) -> None:
    watched = begin("import os, subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); os._exit(3)")
    assert watched.finish().exit_code == 3
    wait_gone(int(watched.output[0][1]))


def members_of(pid: int) -> list[int]:
    """Of the session that it leads."""
    return [row.pid for row in read_table().values() if row.session == pid]


def test_forks_and_their_server_die_with_the_launchers_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, subprocess, time; print('pid', os.getpid(), subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = f"""
import time
from pathlib import Path
from rubato.launch.supervisor import ChildSupervisor
from tests.chaos.test_forkserver import ForkServer, environment_of, plan_of
folder = Path({str(tmp_path)!r})
server = ForkServer(folder, environment_of(folder))
print("pid", server.pid, flush=True)
ChildSupervisor(plan_of(folder, server), lambda event: print(getattr(event, "line", ""), flush=True)).start()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = (line.split() for line in process.stdout)
        _, server, _, fork, its_own = [
            word for _ in range(2) for word in next(one for one in told if one[:1] == ["pid"])
        ]
        assert identify(int(fork)) is not None
        process.kill()
        process.wait()
    for pid in (server, fork, its_own):
        wait_gone(int(pid))


def test_what_the_kernel_does_not_end_is_not_waited_for() -> None:
    """A process in a read of a dead storage; here one that nobody killed."""
    leader = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setpgroup=0)
    undead = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setpgroup=leader)
    try:
        os.kill(leader, signal.SIGKILL)
        assert reap_group(leader) == -signal.SIGKILL
        os.kill(undead, 0)  # it lives
    finally:
        os.kill(undead, signal.SIGKILL)
        os.waitpid(undead, 0)
