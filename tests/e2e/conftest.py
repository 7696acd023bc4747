"""A real Chromium against the real service; what runs on the cluster is simulated. Needs `make web` and a Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from rubato.client import Client
from rubato.recipes import find_recipe
from tests.e2e.simulated_cluster import SimulatedCluster

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 90
"""Half a minute was too short once, where training processes started beside it."""
# The machine also trains while the page is watched.
expect.set_options(timeout=15_000)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, [os.environ.get("RUBATO_CHROMIUM"), *map(shutil.which, BROWSERS)]), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def missing() -> str | None:
    """What the page's tests lack here, and how to get it."""
    if CHROMIUM is None:
        return "no Chromium: install one (apt-get install chromium) or name it in RUBATO_CHROMIUM"
    if not (ROOT / "web" / "dist" / "index.html").is_file():
        return "the page is not built: run `make web`"
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if (reason := missing()) is not None:
        terminalreporter.section("THE PAGE WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(reason, red=True)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    # It occupies the loop of its thread: no asynchronous test runs before it ends, with the last test of this folder.
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


PROGRAM = find_recipe("image-classifier").path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


HTTP = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
"""One for all requests: to read the certificates that a client may need takes longer than most of them."""


class Service:
    """`python -m api` on a home of its own; can die and come back."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = {"RUBATO_HOME": str(self.home), "RUBATO_PORT": str(self.port), "PYTHONPATH": str(ROOT)}
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api"], env=os.environ | own, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            assert self._process.poll() is None, (self.home / "service.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the service did not become ready"
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return HTTP.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=10)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def cluster_token(self) -> str:
        return (self.home / "cluster-token").read_text().strip()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        response = HTTP.request(method, f"{self.url}/api/v1{path}", json=body, headers=headers, timeout=30)
        assert response.is_success, response.text
        return response.json()

    def submit(self, name: str, **config: Any) -> str:
        workers = config.pop("workers", {"initial": 2, "min": 1, "max": 8})
        program = {"entrypoint": f"{PROGRAM.name}:train", "package": self._package}
        return str(self.call("POST", "/jobs", {"name": name, **program, "config": config, "workers": workers})["id"])

    @cached_property
    def _package(self) -> str:
        """A copy of a recipe: the recipe itself takes its own config only, and not the script of a simulated run."""
        with Client(self.url, self.token) as client, tempfile.TemporaryDirectory() as folder:
            shutil.copy(PROGRAM, folder)
            return client.upload_folder(folder)


@contextmanager
def running_service(home: Path) -> Iterator[Service]:
    service = Service(home)
    try:
        service.start()
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="package")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by the stories that leave it as it is; their jobs have names of their own."""
    with running_service(tmp_path_factory.mktemp("shared") / "home") as started:
        yield started


@pytest.fixture(scope="package")
def cluster(service: Service) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(service.url, service.cluster_token) as running:
        yield running


@pytest.fixture
def own_service(browser: Browser, tmp_path: Path) -> Iterator[Service]:
    """For stories about an empty or a dying service."""
    with running_service(tmp_path / "home") as started:
        yield started


@pytest.fixture
def own_cluster(own_service: Service) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(own_service.url, own_service.cluster_token) as running:
        yield running


NewPage = Callable[..., Page]


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Pages that are signed in and that must end without an error on their console."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        # A dead service is part of some stories; the browser logs each failed request by itself.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    def make(service: Service, *, is_signed_in: bool = True, token: str | None = None, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        if is_signed_in:
            context.request.post(f"{service.url}/api/v1/session", data={"token": token or service.token})
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(service.url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


def event_positions(page: Page) -> list[int]:
    """Of the events shown, the newest first; read in one go: one that arrives meanwhile moves the others down."""
    shown: list[int] = page.locator(".event").evaluate_all("events => events.map(each => +each.dataset.position)")
    return shown
