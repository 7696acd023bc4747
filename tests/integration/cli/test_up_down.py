"""`rubato up` to `rubato down` on a real Ray: one story, because a head node takes seconds to start."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rubato.cli.keeper.commands import MARK
from rubato.cli.keeper.ports import find_free_ports
from rubato.cli.keeper.process_table import is_alive, marked_processes
from rubato.client import Client
from rubato.home import Home
from tests.shell import Shell


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_home_from_up_to_down(shell: Shell) -> None:
    (port,) = find_free_ports(1)
    up = shell("up", "--port", str(port), "--json")
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout)
    assert told["url"] == f"http://127.0.0.1:{port}"
    assert told["login"].startswith(f"{told['url']}/login?code=")
    assert Path(told["token_file"]).stat().st_mode & 0o077 == 0
    record = shell.home.read_record()
    assert record is not None
    assert set(record.processes) == {"keeper", "ray", "service", "agent"}
    assert all(is_alive(process) for process in record.processes.values())
    assert (shell.home.path / "ray-token").stat().st_mode & 0o077 == 0

    again = shell("up", "--json")
    assert (again.returncode, json.loads(again.stdout)["url"]) == (0, told["url"])
    assert shell.home.read_record() == record
    other = Shell(Home(shell.home.path.parent / "other"))
    taken = other("up", "--port", str(port))
    assert taken.returncode == 1
    assert f"RUBATO_HOME={shell.home.path}" in taken.stderr

    doctor = shell("doctor")
    assert doctor.returncode == 0, doctor.stdout

    done = shell("submit", "--recipe", "image-classifier", "--config", "steps=6", "--workers", "2", "--follow")
    assert done.returncode == 0, done.stderr
    with Client(told["url"], home=shell.home) as client:
        job = client.job(done.stdout.strip())
        assert job.result is not None
        assert len(job.result["digest"]) == 64

    os.kill(record.processes["agent"].pid, signal.SIGKILL)
    wait_for_another_agent(shell.home, record.processes["agent"].pid)

    down = shell("down")
    assert down.returncode == 0, down.stderr
    assert marked_processes(MARK, record.mark) == []
    assert not Path(record.ray_temp_dir).exists()
    assert shell.home.read_record() is None
    assert shell("ps").returncode == 5


def wait_for_another_agent(home: Home, former_pid: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        record = home.read_record()
        agent = record.processes.get("agent") if record is not None else None
        if agent is not None and agent.pid != former_pid and is_alive(agent):
            return
        assert time.monotonic() < deadline, "no agent came back"
        time.sleep(0.1)
