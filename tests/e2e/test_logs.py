"""What workers wrote, in a real browser: followed, filtered, searched and saved."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import open_job, wait_until


def test_logs_follow_are_filtered_by_rank_and_survive_a_deep_link(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-6", pace=0.02)
    page = new_page(service)
    open_job(page, service, job_id, "#logs")
    rows = page.locator(".log-row")
    expect(rows.first).to_be_visible()
    box = page.get_by_role("log")
    wait_until(page, lambda: box.evaluate("box => box.scrollHeight > box.clientHeight + 200"))
    assert box.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 40")
    page.get_by_role("button", name="rank 1").click()
    expect(page.locator(".log-rank", has_text="0")).to_have_count(0)
    expect(page.locator(".log-rank", has_text="1").first).to_be_visible()
    page.get_by_role("button", name="rank 1").click()
    expect(page.locator(".log-rank", has_text="0").first).to_be_visible()
    box.evaluate("box => { box.scrollTop = 0 }")
    expect(page.get_by_role("button", name="Follow")).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Follow")).to_have_count(0)
    page.get_by_role("button", name="rank 1").click()
    page.get_by_label("Find in logs").fill("loss")
    expect(page).to_have_url(f"{service.url}/jobs/{job_id}?rank=1&q=loss#logs")
    page.reload()
    expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Find in logs")).to_have_value("loss")
    expect(page.get_by_role("button", name="rank 1")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".log-row mark").first).to_have_text("loss")


def test_a_search_looks_as_far_back_as_the_log_goes_and_the_whole_of_it_is_a_file(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-8", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id, "#logs")
    expect(page.locator(".log-row").first).to_be_visible()
    line = {"id": "0:5", "time": "2026-01-31T12:00:00Z", "worker_id": "w1", "rank": 0, "attempt": 1}
    line |= {"stream": "stdout", "line": "the needle"}
    held: list[Route] = []

    def look(route: Route) -> None:
        """Nothing in the newest part of the log; the part before fails, then waits; the line is in the oldest."""
        if "event-stream" in route.request.headers["accept"] or "q=needle" not in route.request.url:
            route.fallback()
        elif "before=8%3A5" in route.request.url or "before=8:5" in route.request.url:
            held.append(route)
            if len(held) == 1:
                route.abort()
        elif "before=" in route.request.url:
            route.fulfill(json={"items": [line], "next": "3:7", "has_more": True, "earlier": None})
        else:
            route.fulfill(json={"items": [], "next": "9:1", "has_more": False, "earlier": "8:5"})

    page.route("**/logs?*", look)
    page.get_by_label("Find in logs").fill("needle")
    expect(page.get_by_text("No line matches as far as it was looked.")).to_be_visible()
    page.get_by_role("button", name="Load earlier lines").click()
    expect(page.get_by_text("No line matches in the newest 10 % of the log. Looking further back")).to_be_visible()
    held[1].fulfill(json={"items": [], "next": "8:5", "has_more": True, "earlier": "3:7"})
    expect(page.locator(".log-row")).to_contain_text("the needle")
    page.get_by_label("Find in logs").fill("loss")
    expect(page.locator(".log-row").first).to_contain_text("loss")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "digits-8.log"
    lines = download.value.path().read_text().splitlines()
    assert lines
    assert all(re.match(r"\S+Z \[rank \d\] .*loss", text) for text in lines)


def test_lines_wrap_on_a_narrow_screen_and_what_is_over_is_not_followed(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("narrow-logs", pace=0.02, fail_at=83)
    page = new_page(service, viewport={"width": 390, "height": 844})
    open_job(page, service, job_id, "#logs")
    expect(page.locator(".job-head [data-status=failed]")).to_be_visible()
    page.reload()
    box = page.get_by_role("log")
    box.evaluate("box => box.scrollIntoView({ block: 'end' })")
    line = page.locator(".log-focus")
    expect(line).to_be_in_viewport(ratio=0.9)
    expect(line).to_contain_text("Expected size 64 but got size 32")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert line.evaluate("line => line.offsetHeight > 20 && line.scrollHeight <= line.offsetHeight")
    expect(page.get_by_role("button", name="Follow")).to_have_count(0)  # nothing comes any more
