from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato.cli.keeper import control
from rubato.cli.keeper.commands import MARK
from rubato.cli.keeper.daemon import family_of, is_held
from rubato.cli.keeper.process_table import is_alive, marked_processes
from rubato.home import Home, RecordedProcess, RunRecord
from tests.waiting import wait_for

STUB = Path(__file__).with_name("stub_keeper.py")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


class Keepers:
    """Keepers of one home, and what they started."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.started: list[subprocess.Popen[bytes]] = []
        self.marks: set[str] = set()

    def start(self) -> subprocess.Popen[bytes]:
        with self.home.open_log("keeper") as output:
            process = subprocess.Popen(
                [sys.executable, str(STUB), str(self.home.path), "1"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=output,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def record(self) -> RunRecord:
        found = self.home.read_record()
        assert found is not None
        self.marks.add(found.mark)
        return found

    def wait_until_complete(self, *, other_than: RunRecord | None = None, roles: tuple[str, ...] = ()) -> RunRecord:
        """Wait until all roles live; those in `roles` as other processes than before."""

        def complete() -> bool:
            found = self.home.read_record()
            return (
                found is not None
                and set(found.processes) == {"keeper", "ray", "service", "agent"}
                and all(is_alive(process) for process in found.processes.values())
                and all(other_than is None or found.processes[role] != other_than.processes[role] for role in roles)
            )

        wait_for(complete, "ray, service and agent to live", PATIENCE_S)
        return self.record()

    def left(self) -> list[RecordedProcess]:
        return [process for mark in self.marks for process in marked_processes(MARK, mark)]


@pytest.fixture
def keepers(tmp_path: Path) -> Iterator[Keepers]:
    home = Home(tmp_path / "home")
    home.create()
    found = Keepers(home)
    yield found
    for process in found.started:
        process.kill()
        process.wait()
    control.bring_down(home, tell=lambda _: None)
    assert found.left() == []


def test_what_ends_is_started_again_and_the_rest_is_left_alone(keepers: Keepers) -> None:
    keepers.start()
    before = keepers.wait_until_complete()
    for role in ("service", "agent"):
        os.kill(before.processes[role].pid, signal.SIGKILL)
    after = keepers.wait_until_complete(other_than=before, roles=("service", "agent"))
    assert after.processes["ray"] == before.processes["ray"]
    assert after.failures == {"service": 1, "agent": 1}
    assert "service was killed by signal 9" in keepers.home.log_file("keeper").read_text()


def test_a_lost_ray_takes_its_family_and_the_agent_along_and_comes_back(keepers: Keepers) -> None:
    keepers.start()
    before = keepers.wait_until_complete()
    wait_for(lambda: len(family_of([before.processes["ray"]])) >= 3, "the stand-in's children", PATIENCE_S)
    family = family_of([before.processes["ray"]])
    os.kill(before.processes["ray"].pid, signal.SIGKILL)
    after = keepers.wait_until_complete(other_than=before, roles=("ray", "agent"))
    assert [process for process in family if is_alive(process)] == []
    assert after.processes["service"] == before.processes["service"]
    assert after.ray_address != before.ray_address


def test_a_second_keeper_is_refused(keepers: Keepers) -> None:
    keepers.start()
    keepers.wait_until_complete()
    second = keepers.start()
    assert second.wait(PATIENCE_S) == 1
    assert "another keeper holds" in keepers.home.log_file("keeper").read_text()


def test_a_killed_keeper_is_succeeded_without_a_restart(keepers: Keepers) -> None:
    first = keepers.start()
    before = keepers.wait_until_complete()
    first.kill()
    first.wait()
    assert not is_held(keepers.home)
    keepers.start()
    after = keepers.wait_until_complete(other_than=before, roles=("keeper",))
    assert {role: after.processes[role] for role in ("ray", "service", "agent")} == {
        role: before.processes[role] for role in ("ray", "service", "agent")
    }
    # What it adopted it also ends: adopted processes are not its children.
    os.kill(after.processes["ray"].pid, signal.SIGKILL)
    keepers.wait_until_complete(other_than=after, roles=("ray",))


def test_down_leaves_no_process_and_no_folder(keepers: Keepers) -> None:
    keepers.start()
    before = keepers.wait_until_complete()
    assert (Path(before.ray_temp_dir) / "session").is_dir()
    told: list[str] = []
    assert control.bring_down(keepers.home, tell=told.append)
    assert keepers.left() == []
    assert not Path(before.ray_temp_dir).exists()
    assert keepers.home.read_record() is None
    assert keepers.started[0].wait(PATIENCE_S) == 0
    assert not control.bring_down(keepers.home, tell=told.append)


def test_down_without_a_keeper_still_leaves_nothing(keepers: Keepers) -> None:
    keeper = keepers.start()
    record = keepers.wait_until_complete()
    wait_for(lambda: len(family_of([record.processes["ray"]])) >= 3, "the stand-in's children", PATIENCE_S)
    keeper.kill()
    keeper.wait()
    os.kill(record.processes["ray"].pid, signal.SIGKILL)
    assert control.bring_down(keepers.home, tell=lambda _: None)
    assert keepers.left() == []
    assert not Path(record.ray_temp_dir).exists()


def test_a_record_from_before_a_reboot_names_nobody(keepers: Keepers) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    keepers.started.append(victim)
    keepers.start()
    record = keepers.wait_until_complete()
    control.bring_down(keepers.home, tell=lambda _: None)
    keepers.home.write_record(
        RunRecord(
            url=record.url,
            ray_address="",
            ray_temp_dir=record.ray_temp_dir,
            started_at="",
            boot_id="another boot",
            processes={"ray": RecordedProcess(victim.pid, 1), "service": RecordedProcess(victim.pid, 1)},
        )
    )
    assert not control.bring_down(keepers.home, tell=lambda _: None)
    assert victim.poll() is None
    assert keepers.home.read_record() is None
