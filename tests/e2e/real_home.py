"""A home on a real Ray, and the story of the README in it: nothing is simulated."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from rubato.cli.keeper import control
from rubato.client import Client
from rubato.home import Home
from tests.e2e.conftest import ROOT, free_port

SLOW_MS = 90_000
"""Workers import torch, and the machine has other things to do."""


class RealHome:
    """The command in one home, as a person uses it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
        self._environment = kept | {"RUBATO_HOME": str(home.path), "PYTHONPATH": str(ROOT)}

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rubato.cli", *arguments],
            env=self._environment, cwd=self.home.path.parent, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.command("up", "--port", str(free_port()), "--json"))
        return told

    def submit(self, *arguments: str) -> str:
        return self.command("submit", "--recipe", "image-classifier", *arguments).strip()

    @property
    def url(self) -> str:
        record = self.home.read_record()
        assert record is not None
        return record.url

    def client(self) -> Client:
        return Client(self.url, home=self.home)


@contextmanager
def real_home(path: Path) -> Iterator[RealHome]:
    """A home that is down again at the end, whatever happened."""
    home = Home(path)
    try:
        yield RealHome(home)
    finally:
        control.bring_down(home, tell=lambda _: None)


def marker(page: Page, sentence: str) -> Locator:
    """The chip of a change of membership, by what it says."""
    return page.get_by_role("button", name=re.compile(sentence))


def scale_by_stepper(page: Page, workers: int) -> None:
    field = page.get_by_label("Workers", exact=True)
    field.fill(str(workers))
    field.press("Enter")


def wait_for_step(page: Page, step: int) -> None:
    tile = page.locator(".tile", has_text="Step").locator("dd").first
    for _ in range(SLOW_MS // 100):
        if int(re.sub(r"\D", "", tile.inner_text())) >= step:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"step {step} was not reached")


def scale_and_kill(page: Page, home: RealHome, job_id: str, steps_apart: int) -> None:
    """1 -> 3 workers by the stepper, one is killed and replaced, then 2; each is seen on the page."""
    wait_for_step(page, steps_apart)
    scale_by_stepper(page, 3)
    expect(page.locator("#workers-note")).to_contain_text("1 → 3")
    expect(marker(page, r"^Scaled up \d → 3 workers, paused \d").last).to_be_visible(timeout=SLOW_MS)
    with home.client() as client:
        wait_for_step(page, client.job(job_id).step + steps_apart)
        victim = next(worker for worker in client.workers(job_id) if worker.rank == 1)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        lost = (
            rf"^Recovered from a loss 3 → 2 workers, {re.escape(victim.worker_id)} \(rank 1\) lost: SIGKILL, paused \d"
        )
        expect(marker(page, lost)).to_be_visible(timeout=SLOW_MS)
        expect(marker(page, r"^Replaced a lost worker 2 → 3 workers, paused \d")).to_be_visible(timeout=SLOW_MS)
        wait_for_step(page, client.job(job_id).step + steps_apart)
    scale_by_stepper(page, 2)
    expect(marker(page, r"^Scaled down 3 → 2 workers, paused \d")).to_be_visible(timeout=SLOW_MS)
