"""A page that was open while the service was away."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import NewPage, Service, event_positions
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import open_job, step_of, wait_until


def read_chart(page: Page) -> list[int]:
    """The steps that the keyboard reads along the first chart, from its beginning to its end."""
    page.locator(".lane-plot").first.focus()
    told = page.locator(".lane output").first
    steps: list[int] = []
    key = "Home"
    while True:
        page.keyboard.press(key)
        expect(told).to_have_text(re.compile(r"^step \d+:"))
        step = int(re.sub(r"^step (\d+):.*", r"\1", told.inner_text()))
        if steps and step == steps[-1]:
            return steps
        steps.append(step)
        key = "ArrowRight"


@pytest.mark.short
def test_after_the_service_died_nothing_is_missing_and_nothing_doubled(
    own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = own_service.submit("digits-5", pace=0.1)
    page, logs = new_page(own_service), new_page(own_service)
    open_job(page, own_service, job_id)
    open_job(logs, own_service, job_id, "#logs")
    wait_until(page, lambda: step_of(page) > 20)
    own_service.kill()
    banner = page.locator("[data-banner=stale]")
    expect(banner).to_contain_text(re.compile(r"Live updates lost \d+\ss ago — reconnecting. Running jobs train on."))
    figures = page.locator(".job-title, .tiles, .timeline-told")
    known = figures.all_inner_texts()
    page.wait_for_timeout(2500)  # of which no figure makes anything
    assert figures.all_inner_texts() == known
    own_cluster.kill(job_id, rank=0)
    own_service.start()
    expect(banner).to_have_count(0)
    before = step_of(page)
    wait_until(page, lambda: step_of(page) > before + 20)
    page.get_by_role("tab", name="Events").click()
    expect(page.locator(".event[data-kind='worker.lost']")).to_have_count(1)
    told = len(own_service.call("GET", f"/jobs/{job_id}/events")["items"])
    wait_until(page, lambda: len(event_positions(page)) >= told)
    shown = event_positions(page)
    assert shown == list(range(len(shown), 0, -1))
    own_service.call("POST", f"/jobs/{job_id}/pause")
    page.get_by_role("tab", name="Overview").click()
    expect(page.locator("[data-status=paused]").first).to_be_visible()
    last = own_service.call("GET", f"/jobs/{job_id}")["step"]
    wait_until(page, lambda: step_of(page) == last)
    stride = max(1, int(last / 100 + 0.5))  # of the keyboard, where many steps are in sight
    assert read_chart(page) == sorted({*range(1, last + 1, stride), last})
    lines = len(own_service.call("GET", f"/jobs/{job_id}/logs?tail=10000")["items"])
    expect(logs.get_by_text(f"{lines} lines", exact=True)).to_be_visible()
