from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato.cli.keeper import process_table
from rubato.cli.keeper.process_table import (
    PROC,
    ProcessRow,
    end_processes,
    identify,
    is_alive,
    is_own_namespace,
    marked_processes,
    parse_stat,
    pid_namespace,
    read_table,
    send_signal,
    session_of,
    tree_of,
    wait_until_gone,
)
from rubato.home import RecordedProcess

PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end after the test, whatever it did."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start(started: list[subprocess.Popen[bytes]], code: str, **environment: str) -> tuple[RecordedProcess, str]:
    """Start Python with `code`, and wait for its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **environment}, start_new_session=True
    )
    started.append(process)
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    found = identify(process.pid)
    assert found is not None
    return found, line


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    fields = " ".join(["S", "7", "8", "9", *("0" for _ in range(15)), "4242", "0"])
    assert parse_stat(f"12 (a) b (c) {fields}") == ProcessRow(pid=12, parent=7, session=9, start_time=4242, state="S")


def test_this_process_is_alive_and_one_with_another_start_time_is_not() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(RecordedProcess(own.pid, own.start_time + 1))


def test_a_recycled_pid_is_never_signalled(started: list[subprocess.Popen[bytes]]) -> None:
    process, _ = start(started, DEAF)
    stranger = RecordedProcess(process.pid, process.start_time - 1)
    assert not send_signal(stranger, signal.SIGKILL)
    assert end_processes([stranger], grace_s=0) == []
    assert is_alive(process)


def test_a_zombie_counts_as_gone(started: list[subprocess.Popen[bytes]]) -> None:
    process, _ = start(started, DEAF)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert read_table()[process.pid].state == "Z"
    assert not is_alive(process)
    assert identify(process.pid) is None
    assert not send_signal(process, signal.SIGTERM)


def test_the_tree_holds_children_that_lead_their_own_session(started: list[subprocess.Popen[bytes]]) -> None:
    parent, line = start(started, PARENT)
    child = identify(int(line))
    assert tree_of([parent], read_table()) == [parent, child]
    assert end_processes(tree_of([parent], read_table()), grace_s=0) == []


def test_orphans_are_found_by_session_or_by_mark(started: list[subprocess.Popen[bytes]]) -> None:
    code = "import os, time\npid = os.fork()\nif pid == 0: time.sleep(600)\nprint(pid, flush=True)\ntime.sleep(600)\n"
    parent, line = start(started, code, RUBATO_TEST_MARK="here")
    child = identify(int(line))
    assert child is not None
    end_processes([parent], grace_s=0)
    assert tree_of([parent], read_table()) == []
    assert session_of([parent], read_table()) == [child]
    assert marked_processes("RUBATO_TEST_MARK", "here") == [child]
    assert marked_processes("RUBATO_TEST_MARK", "her") == []
    assert end_processes([child], grace_s=0) == []


def test_a_session_of_a_recycled_pid_is_not_ours() -> None:
    row = ProcessRow(pid=50, parent=1, session=50, start_time=900, state="S")
    member = ProcessRow(pid=51, parent=50, session=50, start_time=901, state="S")
    table = {50: row, 51: member}
    assert session_of([RecordedProcess(50, 100)], table) == []
    assert session_of([RecordedProcess(50, 900)], table) == [row.identity, member.identity]


def test_term_is_tried_before_kill(started: list[subprocess.Popen[bytes]]) -> None:
    polite, _ = start(
        started,
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('', flush=True); time.sleep(600)",
    )
    deaf, _ = start(started, DEAF)
    began = time.monotonic()
    assert end_processes([polite, deaf], grace_s=0.5) == []
    assert time.monotonic() - began >= 0.5
    assert not is_alive(polite)
    assert not is_alive(deaf)


def test_waiting_names_who_lives_on() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert wait_until_gone([own], 0.0) == [own]


def test_a_record_tells_whether_its_processes_can_be_seen_here() -> None:
    boot, _, namespace = pid_namespace().partition("/")
    assert boot == (PROC / "sys/kernel/random/boot_id").read_text().strip()
    assert Path("/proc/self/ns/pid").readlink() == Path(f"pid:[{namespace}]")
    assert is_own_namespace(pid_namespace())
    assert is_own_namespace(boot), "as told by a release before"
    assert not is_own_namespace(f"{boot}/1")
    assert not is_own_namespace("")


def test_where_the_namespace_cannot_be_told_no_record_is_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_table, "PROC", tmp_path)
    assert pid_namespace() == ""
    assert not is_own_namespace("")
