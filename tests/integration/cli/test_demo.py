"""`make demo`, which is the first thing that a newcomer tries."""

from __future__ import annotations

import re

import pytest

from rubato.cli.keeper.commands import MARK
from rubato.cli.keeper.ports import find_free_ports
from rubato.cli.keeper.process_table import marked_processes
from tests.shell import Shell


@pytest.mark.timeout(1200)
def test_the_demo_ends_well_and_down_leaves_nothing(shell: Shell) -> None:
    (port,) = find_free_ports(1)
    shell.environment["RUBATO_PORT"] = str(port)
    demo = shell("demo", timeout_s=1000)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    digests = re.findall(r"disturbed +([0-9a-f]{64})", demo.stdout)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert "equal: whatever happened left no trace" in demo.stdout
    for change in ("scale up", "recovery", "replace", "scale down"):
        assert change in demo.stdout, demo.stdout
    assert re.search(r"test accuracy (9[7-9]|100)\.", demo.stdout), demo.stdout

    record = shell.home.read_record()
    assert record is not None
    down = shell("down")
    assert down.returncode == 0, down.stderr
    assert marked_processes(MARK, record.mark) == []
