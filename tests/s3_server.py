"""A real S3 server on this machine (moto's), as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rubato.cli.keeper.ports import find_free_ports

START_S = 120


@dataclass(frozen=True)
class S3Server:
    """Where it is, and the environment in which clients find it."""

    url: str
    environment: dict[str, str]

    def make_bucket(self, name: str) -> None:
        """An empty one."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert reply.status == 200

    def objects(self, bucket: str) -> str:
        """What lies in a bucket, as the server's XML."""
        with urllib.request.urlopen(f"{self.url}/{bucket}", timeout=30) as reply:
            return str(reply.read().decode())


@contextmanager
def s3_server(log: Path) -> Iterator[S3Server]:
    """Started, and ended afterwards."""
    (port,) = find_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"the S3 server did not start\n{log.read_text()}"
                time.sleep(0.05)
        yield S3Server(
            url,
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )
    finally:
        process.kill()
        process.wait()
