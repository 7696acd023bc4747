"""Pictures of the page: `make screenshots`, or `python -m tests.e2e.screenshots [--readme]` after `make web`.

Every view and state of tests/e2e/gallery.py, light and dark, wide and narrow, goes into build/screenshots, to be looked
at; those that the documents show are kept in docs/images. What runs on the cluster is simulated, but for the README's
picture: with --readme a real job is trained on a real Ray, and docs/images/job.png is of it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.conftest import CHROMIUM, FLAGS, ROOT, missing, running_service
from tests.e2e.gallery import View, walk
from tests.e2e.real_home import real_home, scale_and_kill, wait_for_step
from tests.e2e.simulated_cluster import SimulatedCluster

PICTURES = ROOT / "build" / "screenshots"
IMAGES = ROOT / "docs" / "images"
IN_DOCUMENTS = ("jobs", "job-loss", "job-failed", "job-waiting", "job-checkpoints")
"""Views of which the documents show the wide and light picture."""
SETTLE_MS = 250
"""Charts draw themselves anew after a change of colours."""


def shoot_all(browser: Browser, scratch: Path) -> None:
    """Every view."""
    shutil.rmtree(PICTURES, ignore_errors=True)

    def look(page: Page, view: View, width: str, scheme: str) -> None:
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=PICTURES / f"{view.name}-{width}-{scheme}.png", full_page="dialog" not in view.shown)
        if view.name in IN_DOCUMENTS and (width, scheme) == ("wide", "light"):
            page.screenshot(path=IMAGES / f"{view.name}.png")

    with (
        running_service(scratch / "home") as service,
        SimulatedCluster(service.url, service.cluster_token) as cluster,
    ):
        walk(browser, service, cluster, look)


def shoot_readme(browser: Browser, folder: Path, target: Path) -> None:
    """A real job on a real Ray that was scaled and lost a worker, in light."""
    with real_home(folder / "home") as home:
        context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, color_scheme="light", device_scale_factor=1.5
        )
        page = context.new_page()
        page.goto(home.up()["login"])
        job_id = home.submit("--name", "digits-cnn", "--workers", "1", "--config", "steps=1000", "--config", "width=64")
        page.locator(f"[data-job={job_id}]").get_by_role("link", name="digits-cnn").click()
        scale_and_kill(page, home, job_id, steps_apart=120)
        wait_for_step(page, 700)
        page.mouse.move(0, 0)
        page.locator("h1").click()
        page.screenshot(path=target)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="only docs/images/job.png, of a real job")
    is_readme = parser.parse_args().readme
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        if is_readme:
            shoot_readme(browser, Path(scratch), IMAGES / "job.png")
        else:
            shoot_all(browser, Path(scratch))
        browser.close()


if __name__ == "__main__":
    main()
