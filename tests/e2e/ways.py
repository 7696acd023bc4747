"""How a person, or a service that fails, gets the page into the states of tests/e2e/gallery.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from rubato.planner.profile import Layer, Profile

WRONG_SPEC = "name: By Hand\nrecipe: image-classifier\nworkers: {min: 3, max: 2}\n"
PROFILE = Profile((Layer("first", ((512, 256), (512,)), 1e-4, 2e-4), Layer("last", ((64, 512), (64,)), 5e-5, 1e-4)))
NODE = {
    "node_id": "node-a", "address": "10.0.0.1", "hostname": "node-a", "cpu": 8, "cpu_used": 3, "gpu": 0, "gpu_used": 0,
    "memory": 64 << 30, "accelerators": ["H100"], "state": "ready", "by": None, "since": None, "drain_within_s": None,
    "workers_left": 0, "jobs": [],
}  # fmt: skip
NODES = {
    "items": [
        NODE,
        {**NODE, "node_id": "node-b", "state": "cordoned", "by": "ada", "since": "2026-01-31T12:00:00Z"},
        {**NODE, "node_id": "node-c", "state": "draining", "by": "ray", "drain_within_s": 90, "workers_left": 2},
        {**NODE, "node_id": "node-d", "state": "drained", "by": "ada", "since": "2026-01-31T12:00:00Z"},
    ]
}
CLUSTER = {"id": "default", "status": "offline", "last_seen": "2026-01-31T12:00:00Z", "slots_total": 32,
           "slots_used": 3, "nodes": []}  # fmt: skip

WEBHOOK = {"id": "wh_1", "name": "chat", "project": "default", "url": "https://chat.example.com/hook",
           "events": ["failure"], "created_at": "2026-01-31T12:00:00Z", "created_by": "ada"}  # fmt: skip
_TRIED = {"type": "job.status", "job_id": "job_1", "tries": 1, "created_at": "2026-01-31T12:00:00Z"}
_TRIED |= {"next_at": None, "finished_at": "2026-01-31T12:00:01Z", "last_status": 200, "error": ""}
DELIVERIES = [
    {**_TRIED, "id": "msg_3", "status": "pending", "tries": 3, "next_at": "2026-01-31T12:05:00Z", "finished_at": None,
     "last_status": 503, "error": "It answered with status 503."},
    {**_TRIED, "id": "msg_2", "status": "delivered"},
    {**_TRIED, "id": "msg_1", "status": "failed", "last_status": 410, "error": "It answered with status 410."},
]  # fmt: skip
WITH_A_SECRET = {
    "**/projects/default/secrets?*": {
        "items": [{"name": "WANDB_API_KEY", "updated_at": "2026-01-31T12:00:00Z", "updated_by": "ada"}],
        "next_cursor": None,
    }
}
WITH_DELIVERIES = {
    "**/projects/default/webhooks?*": {"items": [WEBHOOK], "next_cursor": None},
    "**/webhooks/chat/deliveries?*": {"items": DELIVERIES, "next_cursor": None},
}

NEVER_ANSWERED = """((part) => {
    const answered = window.fetch;
    window.fetch = (url, ...rest) => (String(url).includes(part) ? new Promise(() => {}) : answered(url, ...rest));
})"""

Way = Callable[[Page], None]


def press(*names: str) -> Way:
    """One button after the other."""

    def enter(page: Page) -> None:
        for name in names:
            page.get_by_role("button", name=name, exact=True).first.click()

    return enter


def hold_back(part: str) -> Way:
    """No answer comes to requests with this in their address."""

    def enter(page: Page) -> None:
        page.add_init_script(f"{NEVER_ANSWERED}({json.dumps(part)})")
        page.reload()

    return enter


def cut(pattern: str, seen: str | None = None) -> Way:
    """Such requests fail: from the start, or once this was seen."""

    def enter(page: Page) -> None:
        if seen is not None:
            see(seen)(page)
        page.route(pattern, lambda route: route.abort())
        if seen is None:
            page.reload()

    return enter


def cut_a_minute_later(pattern: str, seen: str) -> Way:
    """Such requests fail once this was seen; what a page asks each minute is asked then."""

    def enter(page: Page) -> None:
        page.clock.install()
        page.reload()
        cut(pattern, seen)(page)
        page.clock.run_for(61_000)

    return enter


def then(*ways: Way) -> Way:
    """One after the other."""

    def enter(page: Page) -> None:
        for way in ways:
            way(page)

    return enter


def see(selector: str) -> Way:
    """Wait for what shows that the page is there."""
    return lambda page: expect(page.locator(selector).first).to_be_visible()


def refuse(pattern: str) -> Way:
    """The service does not want to answer such requests."""
    problem = {"title": "Forbidden", "status": 403, "detail": "You have no role in this project.", "code": "forbidden"}
    return answer({pattern: problem}, status=403)


def answer(replies: dict[str, Any], status: int = 200) -> Way:
    """The service says this instead, by address."""

    def saying(body: Any) -> Callable[[Route], None]:
        return lambda route: route.fulfill(status=status, json=body)

    def enter(page: Page) -> None:
        for pattern, body in replies.items():
            page.route(pattern, saying(body))
        page.reload()

    return enter


def spend_the_link(page: Page) -> None:
    page.goto(page.url.rstrip("/") + "/login?code=used")


def lose_the_way(page: Page) -> None:
    # Whoever leads the way must listen already.
    expect(page.locator("[data-job]").first).to_be_visible()
    page.evaluate("history.pushState(null, '', '/nowhere'); dispatchEvent(new PopStateEvent('popstate'))")


def search_in_vain(page: Page) -> None:
    page.get_by_label("Search jobs").fill("nothing like it")


def write_yaml(page: Page, spec: str) -> Locator:
    """Returns: where it is written."""
    press("New job", "YAML")(page)
    written = page.get_by_label("Job spec in YAML")
    written.fill(spec)
    return written


def submit_a_wrong_spec(page: Page) -> None:
    write_yaml(page, WRONG_SPEC)


def fill_in_wrongly(page: Page) -> None:
    press("New job")(page)
    page.get_by_label("workers.min").fill("3")


def bring_a_folder(page: Page) -> None:
    press("New job")(page)
    press("A folder of mine")(page)


def ask_for_a_plan(page: Page) -> None:
    press("New job")(page)
    page.get_by_text("How many workers are worth it?").click()


def choose_a_profile(page: Page, profile: Any) -> None:
    content = json.dumps(profile).encode()
    file = FilePayload(name="profile.json", mimeType="application/json", buffer=content)
    page.get_by_label("Profile").set_input_files(file)


def bring_a_profile(profile: Any) -> Way:
    def enter(page: Page) -> None:
        ask_for_a_plan(page)
        choose_a_profile(page, profile)
        press("Predict")(page)

    return enter


def pause_in_vain(page: Page) -> None:
    page.route("**/pause", lambda route: route.abort())
    press("Pause")(page)


def look_at_a_loss(page: Page) -> None:
    press("Time")(page)
    for _ in range(20):
        page.get_by_role("button", name="Recovered").hover()
        page.wait_for_timeout(100)  # the chart moves on under the pointer
        if page.locator(".tip >> visible=true").count():
            return


def find_in_logs(text: str) -> Way:
    return lambda page: page.get_by_label("Find in logs").fill(text)


def change_by_hand(page: Page) -> None:
    submit_a_wrong_spec(page)
    press("Form")(page)


def compare_attempts(page: Page) -> None:
    for name in ("Time", "Attempt 1", "Attempt 2"):
        press(name)(page)


def choose_two(page: Page) -> None:
    for name in ("tabular", "char-lm"):
        page.get_by_label(f"Compare {name}", exact=True).check()
