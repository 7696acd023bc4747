"""How fast the page is where there is much to show: `python -m tests.e2e.speed [--lines 1000000]`, after `make web`.

Fails where a view is beyond tests/e2e/speed_limits.py. Times are a matter of the machine: on one that has much else to
do, `--no-limits` only prints them. How much is loaded, and that the page holds a screenful of a log or of the jobs and
not all there is, is judged in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.conftest import CHROMIUM, FLAGS, Service, missing, running_service
from tests.e2e.speed_limits import MAX_LIST_ELEMENTS, MAX_LOG_ELEMENTS, Seen, judge
from tests.simulated_controller import SimulatedAgent, SimulatedController, log_line, metric, worker

JOBS = 1_000
WORKERS = 256
ALL = tuple(worker(number + 1) for number in range(WORKERS))
LINES_A_REPORT = 2_000
SETTLE_MS = 500
WATCH = """() => {
    window.long = [];
    new PerformanceObserver((list) => window.long.push(...list.getEntries().map((one) => one.duration)))
        .observe({ type: "longtask", buffered: true });
}"""
FRAMES = """(selector) => new Promise((done) => {
    const box = selector ? document.querySelector(selector) : document.scrollingElement;
    const times = [];
    let last = performance.now();
    const next = (now) => {
        times.push(now - last);
        last = now;
        box.scrollTop = box.scrollTop > 0 && times.length % 60 > 30 ? box.scrollTop - 400 : box.scrollTop + 400;
        if (times.length < 180) requestAnimationFrame(next);
        else done(times.slice(1).sort((a, b) => a - b));
    };
    requestAnimationFrame(next);
})"""
"""Times between frames while a box is scrolled up and down, in order."""


class BigJob:
    """A job of many workers and lines whose controller goes on to report."""

    def __init__(self, service: Service, lines: int) -> None:
        self._service, self._lines = service, lines
        self.job_id = service.submit("big", workers={"initial": WORKERS, "min": 1, "max": WORKERS})
        self.is_filled = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> BigJob:
        self._thread.start()
        self.is_filled.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        try:
            async with httpx.AsyncClient(base_url=self._service.url, timeout=60) as client:
                controller = await self._acquire(client)
                await self._fill(controller)
                self.is_filled.set()
                while not self._stop.is_set():
                    step = controller.observed.step + 1
                    said = tuple(log_line(f"step {step}", rank) for rank in range(WORKERS))
                    await controller.report(metrics=(metric(step),), logs=said, worker_reports=ALL, step=step)
                    await asyncio.sleep(0.5)
        finally:
            self.is_filled.set()

    async def _acquire(self, client: httpx.AsyncClient) -> SimulatedController:
        agent = SimulatedAgent(client, self._service.cluster_token)
        agent.nodes = tuple(replace(node, cpu=2 * WORKERS) for node in agent.nodes)
        run = (await agent.sync()).run
        while not run:  # the scheduler has not looked yet
            run = (await agent.sync(wait=5)).run
        controller = SimulatedController(client, run[0].job_id, run[0].ticket)
        await controller.acquire()
        return controller

    async def _fill(self, controller: SimulatedController) -> None:
        await controller.report(worker_reports=ALL, workers=WORKERS, total_steps=100_000)
        for first in range(0, self._lines, LINES_A_REPORT):
            lines = (log_line(f"line {number}", number % WORKERS) for number in range(first, first + LINES_A_REPORT))
            await controller.report(logs=tuple(lines), worker_reports=ALL)


@contextmanager
def opened(browser: Browser, service: Service, address: str) -> Iterator[Page]:
    """A fresh page, with its long tasks watched from the start."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.request.post(f"{service.url}/api/v1/session", data={"token": service.token})
    page = context.new_page()
    page.add_init_script(f"({WATCH})()")
    page.goto(service.url + address)
    yield page
    context.close()


def loaded_bytes(page: Page) -> int:
    """What came over the wire for the page itself, without what it asked the service for."""
    read = "performance.getEntries().filter((one) => 'encodedBodySize' in one && !one.name.includes('/api/'))"
    return int(page.evaluate(f"{read}.reduce((sum, one) => sum + one.encodedBodySize, 0)"))


def look(
    page: Page, name: str, selector: str | None = None, loaded: int | None = None, most: int | None = None
) -> Seen:
    """Scroll it, and print how that went."""
    page.wait_for_timeout(SETTLE_MS)
    seen = Seen(
        name,
        paint_ms=page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"),
        frames_ms=tuple(page.evaluate(FRAMES, selector)),
        tasks_ms=tuple(page.evaluate("window.long")),
        elements=page.evaluate("document.querySelectorAll('*').length"),
        most_elements=most,
        loaded_bytes=loaded,
    )
    print(seen, flush=True)
    return seen


def measure(browser: Browser, service: Service, lines: int) -> Iterator[Seen]:
    """Each view with much in it."""
    with opened(browser, service, "/") as page:
        expect(page.locator(".empty")).to_be_visible()
        yield look(page, "no jobs", loaded=loaded_bytes(page))
    with BigJob(service, lines) as big:
        for tab, shown, box, most in (
            ("overview", ".lane canvas", None, None),
            ("workers", "[data-worker]", None, None),
            ("logs", ".log-row", ".log-box", MAX_LOG_ELEMENTS),
        ):
            with opened(browser, service, f"/jobs/{big.job_id}#{tab}") as page:
                expect(page.locator(shown).first).to_be_visible()
                yield look(page, f"{tab} of {WORKERS} workers, {lines:,} lines", box, most=most)
        for number in range(JOBS):
            service.submit(f"many-{number}")
        with opened(browser, service, "/") as page:
            expect(page.locator("[data-job]").first).to_be_visible()
            table = page.locator("table.jobs")
            while (rows := int(table.get_attribute("aria-rowcount") or 0) - 1) <= JOBS:
                page.get_by_role("button", name="Older jobs").click()
                expect(table).not_to_have_attribute("aria-rowcount", str(rows + 1))
            yield look(page, f"{rows:,} jobs", most=MAX_LIST_ELEMENTS)


def main() -> None:
    """Measure, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--no-limits", action="store_true", help="times are only printed")
    flags = parser.parse_args()
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with running_service(Path(scratch) / "home") as service:
            seen = list(measure(browser, service, flags.lines))
        browser.close()
    wrong = [text for one in seen for text in judge(one, with_times=not flags.no_limits)]
    if wrong:
        raise SystemExit("\n".join(["too slow or too large:", *wrong]))


if __name__ == "__main__":
    main()
