"""The whole path with nothing simulated: `rubato up` on a real Ray, the image classifier, a person with a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.real_home import SLOW_MS, RealHome, real_home, scale_and_kill


@pytest.mark.timeout(900)
def test_a_person_scales_a_real_job_and_sees_what_a_kill_cost(browser: Browser, tmp_path: Path) -> None:
    with real_home(tmp_path / "home") as home:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(home.up()["login"])
        expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()

        job_id = home.submit("--name", "digits", "--workers", "1", "--config", "steps=900")
        page.locator(f"[data-job={job_id}]").get_by_role("link", name="digits").click()
        expect(page.locator(".lane canvas")).to_have_count(4, timeout=SLOW_MS)
        scale_and_kill(page, home, job_id, steps_apart=30)

        expect(page.locator(".job-head [data-status=succeeded]")).to_be_visible(timeout=3 * SLOW_MS)
        with home.client() as client:
            result = client.job(job_id).result
        assert result is not None
        expect(page.get_by_label("Final digest").locator("code")).to_have_text(result["digest"])
        page.get_by_role("tab", name="Checkpoints").click()
        expect(page.locator("[data-checkpoint]").first).to_be_visible()
        with page.expect_download() as download:
            page.locator("[data-checkpoint] a", has_text="manifest").first.click()
        assert "sha256" in Path(download.value.path()).read_text()
        newest = page.locator("[data-checkpoint]").first
        newest.get_by_role("button", name="Pin").click()
        expect(newest.get_by_role("button", name="Unpin")).to_be_visible()
        expect(newest.get_by_role("button", name="Delete")).to_be_disabled()
        operate_on_workers(page, home)
        page.close()


def operate_on_workers(page: Page, home: RealHome) -> None:
    """Look where a worker is, kill it, cancel the job, run it again, and delete it: all from the page."""
    job_id = home.submit("--name", "operated", "--workers", "2", "--config", "steps=1000000")
    page.goto(f"{home.url}/jobs/{job_id}#workers")
    rows = page.locator("[data-worker]")
    expect(page.locator(".state-active")).to_have_count(2, timeout=SLOW_MS)
    rows.nth(1).get_by_role("button", name="Stacks").click()
    stacks = page.get_by_role("dialog", name="Stacks of")
    expect(stacks.locator("pre")).to_contain_text("MainThread", timeout=SLOW_MS)
    stacks.get_by_role("button", name="Close").click()
    expect(stacks).to_have_count(0)
    name = rows.nth(1).get_attribute("data-worker")
    rows.nth(1).get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill it").click()
    expect(page.locator(f'[data-worker="{name}"]')).to_have_count(0, timeout=SLOW_MS)
    expect(page.locator(".state-active")).to_have_count(2, timeout=SLOW_MS)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-head [data-status=cancelled]")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Clone").click()
    page.get_by_label("Name", exact=True).fill("once-more")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="once-more")).to_be_visible()
    page.goto(f"{home.url}/jobs/{job_id}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the job").click()
    expect(page.locator("[data-job]").filter(has_text="once-more")).to_be_visible()
    expect(page.locator(f"[data-job={job_id}]")).to_have_count(0)
    with home.client() as client:
        client.cancel("once-more", force=True)
