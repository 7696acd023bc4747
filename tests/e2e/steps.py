"""What stories of the page do again and again."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.e2e.conftest import Service


def open_job(page: Page, service: Service, job_id: str, tab: str = "") -> None:
    page.goto(f"{service.url}/jobs/{job_id}{tab}")
    expect(page.locator(".job-head")).to_be_visible()


def of_person(service: Service, name: str, role: str | None) -> str:
    """The token of somebody who has that role in the default project; None: in no project."""
    service.call("POST", "/users", {"name": name})
    if role is not None:
        service.call("PUT", f"/projects/default/members/{name}", {"role": role})
    return str(service.call("POST", "/tokens", {"name": f"{name}-page", "user": name})["token"])


def step_of(page: Page) -> int:
    text = page.locator(".tile", has_text="Step").locator("dd").first.inner_text()
    return int(re.sub(r"\D", "", text))


def wait_until(page: Page, condition: Callable[[], bool], timeout_ms: int = 20_000) -> None:
    """Let the page live until the condition holds."""
    waited = 0
    while not condition():
        assert waited < timeout_ms, "the page never came to the expected state"
        page.wait_for_timeout(100)
        waited += 100
