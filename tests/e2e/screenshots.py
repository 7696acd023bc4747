"""Pictures of the page: `python -m tests.e2e.screenshots [FOLDER]` from the checkout, after `make web`.

Without a folder it trains a real job on a real Ray and writes docs/images/job.png, the README's picture; with one, it
shows the page in its main states on a simulated cluster, to be looked at.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.conftest import CHROMIUM, FLAGS, ROOT, Service, missing, running_service
from tests.e2e.real_home import real_home, scale_and_kill, wait_for_step
from tests.e2e.simulated_cluster import SimulatedCluster

TWO_WORKERS = {"initial": 2, "min": 1, "max": 8}
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}


def submit_jobs(service: Service, cluster: SimulatedCluster, context: BrowserContext) -> dict[str, str]:
    """One job in every state worth a picture."""
    ids = {
        "done": service.submit("tabular", steps=150, pace=0.01),
        "failed": service.submit("segmenter", pace=0.01, fail_at=83),
    }
    page = context.new_page()
    for name in ("succeeded", "failed"):
        page.goto(f"{service.url}/jobs/{ids['done' if name == 'succeeded' else name]}")
        expect(page.locator(f"[data-status={name}]")).to_be_visible(timeout=60_000)
    ids["paused"] = service.submit("char-lm", steps=2000, pace=0.05)
    page.goto(f"{service.url}/jobs/{ids['paused']}")
    expect(page.locator(".lane canvas")).to_have_count(4)
    service.call("POST", f"/jobs/{ids['paused']}/pause")
    expect(page.locator("[data-status=paused]")).to_be_visible()
    ids["live"] = service.submit("digits-cnn", has_past=True, pace=0.24, workers=TWO_WORKERS)
    page.goto(f"{service.url}/jobs/{ids['live']}")
    expect(page.get_by_role("button", name="Scaled down")).to_be_visible()
    ids["queued"] = service.submit("char-lm-large", workers={"initial": 8, "min": 8, "max": 16})
    page.close()
    return ids


def settle(page: Page) -> None:
    """Let transitions end."""
    page.wait_for_timeout(800)


def shoot_all(browser: Browser, service: Service, cluster: SimulatedCluster, folder: Path) -> None:
    """Every view, in light, dark and narrow."""
    context = signed_in(browser, service)
    page = context.new_page()
    page.goto(service.url)
    settle(page)
    page.screenshot(path=folder / "empty.png")
    ids = submit_jobs(service, cluster, context)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(service.url)
        settle(page)
        page.screenshot(path=folder / f"jobs-{scheme}.png")
        for name, job_id in ids.items():
            page.goto(f"{service.url}/jobs/{job_id}")
            settle(page)
            page.screenshot(path=folder / f"job-{name}-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.goto(service.url)
    page.get_by_role("button", name="New job").click()
    page.get_by_label("Job spec in YAML").fill("name: By Hand\nrecipe: image-classifier\nworkers: {min: 3, max: 2}\n")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".findings")).to_be_visible()
    page.screenshot(path=folder / "new-job.png")
    for tab in ("workers", "logs", "events", "checkpoints", "spec"):
        page.goto(f"{service.url}/jobs/{ids['live']}#{tab}")
        settle(page)
        page.screenshot(path=folder / f"tab-{tab}.png")
    page.goto(f"{service.url}/jobs/{ids['live']}")
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_role("button", name="Recovered").hover()
    settle(page)
    page.screenshot(path=folder / "tip.png")
    narrow = signed_in(browser, service, viewport=NARROW, device_scale_factor=2).new_page()
    for name, path in (("jobs", "/"), ("job", f"/jobs/{ids['live']}")):
        narrow.goto(service.url + path)
        settle(narrow)
        narrow.screenshot(path=folder / f"narrow-{name}.png", full_page=True)
    page.goto(f"{service.url}/jobs/{ids['live']}")
    cluster.set_slots(3)
    service.call("POST", f"/jobs/{ids['live']}/scale", {"workers": 5})
    expect(page.locator("#workers-note")).to_contain_text("Wants 5")
    service.kill()
    expect(page.locator("[data-banner=stale]")).to_be_visible()
    page.wait_for_timeout(2500)
    page.screenshot(path=folder / "stale.png")


def shoot_readme(browser: Browser, folder: Path, target: Path) -> None:
    """A real job on a real Ray that was scaled and lost a worker, in light."""
    with real_home(folder / "home") as home:
        context = browser.new_context(viewport=WIDE | {"height": 1000}, color_scheme="light", device_scale_factor=1.5)
        page = context.new_page()
        page.goto(home.up()["login"])
        job_id = home.submit("--name", "digits-cnn", "--workers", "1", "--config", "steps=1000", "--config", "width=64")
        page.locator(f"[data-job={job_id}]").get_by_role("link", name="digits-cnn").click()
        scale_and_kill(page, home, job_id, steps_apart=120)
        wait_for_step(page, 700)
        page.mouse.move(0, 0)
        page.locator("h1").click()
        page.screenshot(path=target)


def signed_in(browser: Browser, service: Service, **options: object) -> BrowserContext:
    """A browser context with a session."""
    context = browser.new_context(**({"viewport": WIDE, "color_scheme": "light"} | options))
    context.request.post(f"{service.url}/api/v1/session", data={"token": service.token})
    return context


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where every view goes; default: only docs/images/job.png")
    folder = parser.parse_args().folder
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    target = folder or ROOT / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        if folder is None:
            shoot_readme(browser, Path(scratch), target / "job.png")
        else:
            with (
                running_service(Path(scratch) / "home") as service,
                SimulatedCluster(service.url, service.cluster_token) as cluster,
            ):
                shoot_all(browser, service, cluster, folder)
        browser.close()


if __name__ == "__main__":
    main()
