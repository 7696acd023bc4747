from __future__ import annotations

from pathlib import Path

import pytest

from rubato.cli.keeper.control import _save_jobs, find_missing
from rubato.cli.service_commands import make_login_link
from rubato.home import Home, RecordedProcess, RunRecord
from tests.unit.cli.fake_service import FakeService


def test_a_home_is_asked_with_its_own_token_whatever_the_shell_holds(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_of_another_service")
    home = Home(tmp_path)
    home.token_file.write_text("rbt_own\n")
    process = RecordedProcess(1, 1)
    roles = dict.fromkeys(("service", "ray", "agent"), process)
    record = RunRecord(service.url, "127.0.0.1:1", str(tmp_path), "2026-01-31T12:00:00+00:00", processes=roles)
    service.on("GET", "/readyz", {"status": "ok"})
    service.on("GET", "/cluster", {"clusters": [{"name": "default", "status": "online"}]})
    service.on("GET", "/jobs", {"items": [], "next_cursor": None})
    service.on("POST", "/login-links", {"url": "http://127.0.0.1/once"})
    told: list[str] = []

    find_missing(home, record)
    _save_jobs(home, record, told.append)
    assert make_login_link(service.url, home) == "http://127.0.0.1/once"
    assert told == []
    asked = {request.path: request.headers.get("Authorization") for request in service.requests}
    paths = ("/readyz", "/api/v1/cluster", "/api/v1/jobs", "/api/v1/login-links")
    assert asked == dict.fromkeys(paths, "Bearer rbt_own")
