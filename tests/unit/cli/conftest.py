from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from rubato.cli.app import run
from tests.unit.cli.fake_service import FakeService, Handler, Outcome, Rubato


@pytest.fixture
def service() -> Iterator[FakeService]:
    found = FakeService()
    handler = type("BoundHandler", (Handler,), {"service": found})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture(params=["America/New_York", "Europe/Berlin"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """A time zone west and one east of UTC, as the one that the user lives in."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.fixture
def rubato(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rubato:
    """The command, against the fake service, with a token."""
    monkeypatch.setenv("RUBATO_URL", service.url)
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_test")
    monkeypatch.setenv("RUBATO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.01)

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out + captured.err, "no ANSI where there is no terminal"
        return Outcome(code, captured.out, captured.err)

    return call
