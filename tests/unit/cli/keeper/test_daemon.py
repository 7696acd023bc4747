from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rubato.cli.keeper import daemon
from rubato.home import Home, RunRecord

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


class FullLog(io.StringIO):
    def write(self, text: str) -> int:
        raise NO_ROOM


def test_a_keeper_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NO_ROOM

    home = Home(tmp_path / "home")
    home.create()
    keeper = daemon.Keeper(home, port=8700, slots=8)
    # Started processes are this one; nothing is reaped.
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: SimpleNamespace(pid=os.getpid()))
    monkeypatch.setattr(daemon, "reap_children", dict)
    try:
        with monkeypatch.context() as full:
            full.setattr("sys.stderr", FullLog())
            full.setattr(Home, "write_record", refuse)
            full.setattr("rubato.cli.keeper.commands.plan_ray", refuse)
            keeper._round(0.0)
            assert list(keeper.processes) == ["service"], "what needs no room is started"
            assert keeper.backoffs["ray"].next_start_at > 0.0
            keeper._round(0.1)
            assert home.read_record() is None
        keeper._round(0.2)
        record: RunRecord | None = home.read_record()
        assert record is not None
        assert set(record.processes) == {"keeper", "service"}
        assert record.failures == {"ray": 1}
    finally:
        shutil.rmtree(keeper.layout.ray_temp_dir)
