"""What people see who may not change everything."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import of_person

CHANGES = {"Pause", "Checkpoint", "Clone", "Cancel", "Scale", "Drain", "Kill", "Stacks"}


def buttons(page: Page) -> list[str]:
    return [name.strip() for name in page.get_by_role("main").get_by_role("button").all_inner_texts()]


def test_a_viewer_watches_and_is_offered_nothing_that_would_be_refused(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("watched", steps=2000, pace=0.1)
    editor = new_page(service, token=of_person(service, "ed", "editor"))
    viewer = new_page(service, token=of_person(service, "vera", "viewer"))
    for page, may_change in ((editor, True), (viewer, False)):
        row = page.locator(f"[data-job={job_id}]")
        expect(row.locator("[data-status=running]")).to_be_visible()
        expect(page.get_by_role("button", name="New job")).to_have_count(int(may_change))
        expect(row.locator(".row-actions")).to_have_count(int(may_change))
        offered: set[str] = set()
        for tab in ("", "#workers", "#checkpoints"):
            page.goto(f"{service.url}/jobs/{job_id}{tab}")
            expect(page.get_by_role("heading", level=1)).to_have_text("watched")
            if tab == "#workers":
                expect(page.locator("[data-worker]")).to_have_count(2)
            offered |= set(buttons(page))
        assert offered & CHANGES == (CHANGES if may_change else set())
        expect(page.get_by_text("You may watch the jobs of default")).to_have_count(int(not may_change))
    service.call("POST", f"/jobs/{job_id}/cancel")
