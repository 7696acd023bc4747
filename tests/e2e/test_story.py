"""The whole path with nothing simulated: `rubato up` on a real Ray, the image classifier, a person with a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.real_home import SLOW_MS, real_home, scale_and_kill


@pytest.mark.long  # in CI `rubato demo` goes the same way, and the page is tested on a simulated cluster
@pytest.mark.timeout(900)
def test_a_person_scales_a_real_job_and_sees_what_a_kill_cost(browser: Browser, tmp_path: Path) -> None:
    with real_home(tmp_path / "home") as home:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(home.up()["login"])
        expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()

        job_id = home.submit("--name", "digits", "--workers", "1", "--config", "steps=600")
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
        page.close()
