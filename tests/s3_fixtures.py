"""A real S3 server for the tests that name `s3`; a conftest imports both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "server.log") as server:
        server.make_bucket("jobs")
        yield server


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, where clients of this process and its children find it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server
