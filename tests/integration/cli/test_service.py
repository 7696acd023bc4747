"""The command against the real service (no cluster: jobs queue)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rubato.cli.app import run
from rubato.cli.keeper.ports import find_free_ports
from rubato.client import Client

ROOT = Path(__file__).parents[3]
Rubato = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A service on a free port; its address and home."""
    home = tmp_path_factory.mktemp("home")
    (port,) = find_free_ports(1)
    environment = {**os.environ, "RUBATO_HOME": str(home), "RUBATO_PORT": str(port), "PYTHONPATH": str(ROOT)}
    with (home / "service.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "api"], cwd=ROOT, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        with Client(url, environment={"RUBATO_HOME": str(home)}) as client:
            while not client.is_ready():
                assert process.poll() is None, (home / "service.log").read_text()
                assert time.monotonic() < deadline, "the service did not start"
                time.sleep(0.05)
        yield url, home
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def rubato(service: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rubato:
    """The command with the service's home: address by RUBATO_URL, token by its file."""
    monkeypatch.setenv("RUBATO_URL", service[0])
    monkeypatch.setenv("RUBATO_HOME", str(service[1]))
    monkeypatch.delenv("RUBATO_TOKEN", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A job file beside a program."""
    (tmp_path / "train.py").write_text("def train(run):\n    pass\n")
    path = tmp_path / "job.yaml"
    path.write_text("name: first\nentrypoint: train.py\nworking_dir: .\nworkers: {initial: 2, max: 4}\n")
    return path


def test_the_life_of_a_job_that_waits_for_a_cluster(rubato: Rubato, spec: Path) -> None:
    code, out, err = rubato("submit", str(spec), "--json")
    assert code == 0, err
    job = json.loads(out)
    assert job["spec"]["package"] is not None
    assert job["spec"]["working_dir"] is None
    assert f"Packed {spec.parent}: " in err
    assert "uploaded." in err

    code, out, _ = rubato("ps", "--json")
    assert [item["id"] for item in json.loads(out)] == [job["id"]]
    assert rubato("get", "first")[0] == 0

    code, _, err = rubato("submit", str(spec))
    assert code == 1
    assert "first" in err

    code, out, _ = rubato("scale", "first", "4", "--json")
    assert (code, json.loads(out)["desired_workers"]) == (0, 4)
    code, _, err = rubato("scale", "first", "5")
    assert code == 1
    assert "1..4" in err

    assert rubato("pause", "first", "--wait")[0] == 0
    assert rubato("wait", "first", "--for", "paused")[:2] == (0, "paused\n")
    assert rubato("resume", "first")[0] == 0
    assert rubato("wait", "first", "--timeout", "0")[:2] == (101, "queued\n")
    assert rubato("cancel", "first", "--wait")[0] == 0
    assert rubato("wait", "first")[:2] == (103, "cancelled\n")
    code, _, err = rubato("scale", "first", "2")
    assert code == 1
    assert "cancelled" in err
    assert rubato("logs", "first", "-f")[:2] == (0, "")
    assert rubato("submit", str(spec), "--follow", "--dry-run")[0] == 0


def test_the_package_that_arrives_is_the_folder(
    rubato: Rubato, service: tuple[str, Path], spec: Path, tmp_path: Path
) -> None:
    from rubato.packaging import hash_file, unpack_folder

    _, out, _ = rubato("submit", str(spec), "--name", "packed", "--json")
    sha256 = json.loads(out)["spec"]["package"]
    stored = service[1] / "packages" / f"{sha256}.zip"
    assert hash_file(stored) == sha256
    unpack_folder(stored, tmp_path / "out", sha256=sha256)
    assert (tmp_path / "out/train.py").read_bytes() == (spec.parent / "train.py").read_bytes()


def test_mistakes_that_only_the_service_sees(rubato: Rubato, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rubato("get", "nobody")[0] == 102
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_wrong")
    code, _, err = rubato("ps")
    assert code == 4
    assert "RUBATO_TOKEN" in err


def test_a_login_link_signs_in_once(rubato: Rubato) -> None:
    code, out, _ = rubato("login")
    assert code == 0
    with httpx.Client(trust_env=False) as browser:
        assert browser.get(out.strip()).headers["location"] == "/"
        assert [name for name in browser.cookies if name.startswith("rubato_session")]
        assert browser.get(out.strip()).headers["location"] == "/sign-in?link=spent"


def test_doctor_sees_the_service_and_the_missing_cluster(rubato: Rubato) -> None:
    code, out, _ = rubato("doctor", "--json")
    found: dict[str, Any] = {item["what"]: item for item in json.loads(out)}
    assert code == 1
    assert found["service"]["level"] == "ok"
    assert found["cluster"]["level"] == "problem"
