"""Every view and state of the page, as one table: the accessibility test walks it, and the pictures show it.

A new view is one row of VIEWS: its name, its address, and what a person does to get into the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.e2e.conftest import ROOT, Service
from tests.e2e.simulated_cluster import SimulatedCluster

PICTURES = ROOT / "build" / "screenshots"
WIDTHS: dict[str, ViewportSize] = {
    "wide": {"width": 1280, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WRONG_SPEC = "name: By Hand\nrecipe: image-classifier\nworkers: {min: 3, max: 2}\n"

NEVER_ANSWERED = """const answered = window.fetch;
window.fetch = (url, ...rest) => (String(url).includes("/events") ? new Promise(() => {}) : answered(url, ...rest));"""

Stage = Literal["empty", "full", "gone"]
"""Of the service: without a job, with one in every status, killed while it is watched."""


def stay(page: Page) -> None:
    """The address alone is the state."""


@dataclass(frozen=True)
class View:
    name: str
    address: str
    """`{live}` and the like are jobs of `fill`."""
    shown: str
    """A selector of what stands where the state is reached."""
    enter: Callable[[Page], None] = stay
    stage: Stage = "full"
    is_signed_in: bool = True


def press(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("button", name=name, exact=True).first.click()


def spend_the_link(page: Page) -> None:
    page.goto(page.url.rstrip("/") + "/login?code=used")


def hold_the_list_back(page: Page) -> None:
    page.add_init_script(NEVER_ANSWERED)
    page.reload()


def cut_off(page: Page) -> None:
    page.route("**/api/v1/me", lambda route: route.abort())
    page.reload()


def lose_the_way(page: Page) -> None:
    # Whoever leads the way must listen already.
    expect(page.locator("[data-job]").first).to_be_visible()
    page.evaluate("history.pushState(null, '', '/nowhere'); dispatchEvent(new PopStateEvent('popstate'))")


def search_in_vain(page: Page) -> None:
    page.get_by_label("Search jobs").fill("nothing like it")


def submit_a_wrong_spec(page: Page) -> None:
    press("New job")(page)
    press("YAML")(page)
    page.get_by_label("Job spec in YAML").fill(WRONG_SPEC)


def fill_in_wrongly(page: Page) -> None:
    press("New job")(page)
    page.get_by_label("workers.min").fill("3")


def bring_a_folder(page: Page) -> None:
    press("New job")(page)
    press("A folder of mine")(page)


def ask_for_a_plan(page: Page) -> None:
    press("New job")(page)
    page.get_by_text("How many workers are worth it?").click()


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


def see_it_live(page: Page) -> None:
    expect(page.locator(".lane canvas").first).to_be_visible()


def find_in_logs(page: Page) -> None:
    page.get_by_label("Find in logs").fill("runtimeerror")


def choose_two(page: Page) -> None:
    for name in ("tabular", "char-lm"):
        page.get_by_label(f"Compare {name}", exact=True).check()


def lose_the_jobs(page: Page) -> None:
    expect(page.locator(".lane canvas").first).to_be_visible()
    expect(page.locator(".pick-list li").first).to_be_visible()
    page.route("**/api/v1/jobs/**", lambda route: route.abort())


VIEWS = (
    View("sign-in", "/", "#token", is_signed_in=False, stage="empty"),
    View("sign-in-link-spent", "/", "#token-error:not(:empty)", spend_the_link, is_signed_in=False, stage="empty"),
    View("jobs-none", "/", ".empty", stage="empty"),
    View("jobs", "/", "[data-job]"),
    View("jobs-loading", "/", ".bone", hold_the_list_back),
    View("jobs-no-match", "/", "text=No job matches this filter.", search_in_vain),
    View("jobs-chosen", "/", ".chosen a", choose_two),
    View("new-job", "/", ".verdict :not(.soft)", press("New job")),
    View("new-job-wrong", "/", "[aria-invalid=true]", fill_in_wrongly),
    View("new-job-folder", "/", ".folder-picker", bring_a_folder),
    View("plan", "/", "text=Network of a worker", ask_for_a_plan),
    View("new-job-yaml-wrong", "/", ".findings", submit_a_wrong_spec),
    View("compare", "/compare?jobs={live},{done},{paused}", ".compare .lane canvas"),
    View("compare-metrics", "/compare?jobs={live},{done}&metric=loss&metric=accuracy&x=time", ".lane:nth-of-type(2)"),
    View("compare-one", "/compare?jobs={failed}", ".pick-list li"),
    View("compare-none", "/compare", ".pick-list li"),
    View("compare-unknown", "/compare?jobs=job_none,{live}", ".compare:has([data-missing]) .lane canvas"),
    View("compare-no-metric", "/compare?jobs={live},{done}&metric=bleu", ".lane-none"),
    View("compare-stale", "/compare?jobs={live},{done}", ".banner-bad", lose_the_jobs),
    View("cluster", "/cluster", "[data-node]"),
    View("cluster-drain", "/cluster", "dialog[open]", press("Drain")),
    View("settings", "/settings", "[data-token]"),
    View("settings-token", "/settings", "dialog[open]", press("New token")),
    View("settings-project", "/settings", ".part", press("Open default")),
    View("nothing-here", "/", "text=Nothing here", lose_the_way),
    View("unreachable", "/", "text=The service does not answer", cut_off),
    View("job-unknown", "/jobs/job_none", "text=Cannot show"),
    View("job-live", "/jobs/{live}", ".lane canvas"),
    View("job-loss", "/jobs/{live}", ".tip >> visible=true", look_at_a_loss),
    View("job-workers", "/jobs/{live}#workers", "[data-worker]"),
    View("job-logs", "/jobs/{live}#logs", ".log-row"),
    View("job-events", "/jobs/{live}#events", ".event"),
    View("job-checkpoints", "/jobs/{live}#checkpoints", "[data-checkpoint]"),
    View("job-spec", "/jobs/{live}#spec", ".code"),
    View("job-code", "/jobs/{live}#code", "[role=tabpanel]"),
    View("job-cancel", "/jobs/{live}", "dialog[open]", press("Cancel")),
    View("job-clone", "/jobs/{live}", "dialog[open]", press("Clone")),
    View("job-toast", "/jobs/{live}", ".toast", pause_in_vain),
    View("job-queued", "/jobs/{queued}", "[data-status=queued]"),
    View("job-queued-workers", "/jobs/{queued}#workers", "[role=tabpanel]"),
    View("job-queued-logs", "/jobs/{queued}#logs", "[role=tabpanel]"),
    View("job-queued-checkpoints", "/jobs/{queued}#checkpoints", "[role=tabpanel]"),
    View("job-waiting", "/jobs/{waiting}", "#workers-note:has-text('Wants 8')"),
    View("job-paused", "/jobs/{paused}", "[data-status=paused]"),
    View("job-failed", "/jobs/{failed}", "[data-failure]"),
    View("job-failed-logs", "/jobs/{failed}#logs", ".log-row mark", find_in_logs),
    View("job-succeeded", "/jobs/{done}", "[aria-label='Final digest']"),
    View("job-stale", "/jobs/{live}", "[data-banner=stale]", see_it_live, stage="gone"),
)


def fill(service: Service, cluster: SimulatedCluster, page: Page) -> dict[str, str]:
    """One job in every state worth a look."""
    ids = {
        "done": service.submit("tabular", steps=150, pace=0.01),
        "failed": service.submit("segmenter", pace=0.01, fail_at=83),
        "paused": service.submit("char-lm", steps=2000, pace=0.05),
        "live": service.submit("digits-cnn", has_past=True, pace=2.0, workers={"initial": 2, "min": 1, "max": 8}),
    }

    def reach(name: str, status: str) -> None:
        page.goto(f"{service.url}/jobs/{ids[name]}")
        expect(page.locator(f".job-head [data-status={status}]")).to_be_visible(timeout=60_000)

    reach("paused", "running")
    expect(page.locator(".lane canvas")).to_have_count(4)
    service.call("POST", f"/jobs/{ids['paused']}/pause")
    reach("paused", "paused")
    reach("done", "succeeded")
    reach("failed", "failed")
    reach("live", "running")
    expect(page.get_by_role("button", name="Scaled down")).to_be_visible()
    cluster.set_slots(6)
    ids["waiting"] = service.submit("char-lm-large", pace=4.0, workers={"initial": 8, "min": 2, "max": 16})
    reach("waiting", "running")
    ids["queued"] = service.submit("next-in-line", workers={"initial": 4, "min": 4, "max": 16})
    return ids


def take_picture(page: Page, view: View, width: str, scheme: str) -> None:
    """Of a view in a state, into build/screenshots."""
    page.screenshot(path=PICTURES / f"{view.name}-{width}-{scheme}.png", full_page="dialog" not in view.shown)


Look = Callable[[Page, View, str, str], None]
"""At a page in a state, by width and colour scheme."""


def walk(
    browser: Browser,
    service: Service,
    cluster: SimulatedCluster,
    look: Look,
    schemes: Sequence[Scheme] = SCHEMES,
) -> None:
    """Every view in every width and scheme; the service is dead afterwards."""
    with closing(browser.new_context()) as stranger, closing(browser.new_context()) as person:
        person.request.post(f"{service.url}/api/v1/session", data={"token": service.token})

        def show(stage: Stage, jobs: dict[str, str], before: Callable[[], None] = lambda: None) -> None:
            for view in (view for view in VIEWS if view.stage == stage):
                page = (person if view.is_signed_in else stranger).new_page()
                page.set_viewport_size(WIDTHS["wide"])
                page.goto(service.url + view.address.format(**jobs))
                view.enter(page)
                before()
                look_all_over(page, view, look, schemes)
                page.close()

        show("empty", {})
        page = person.new_page()
        jobs = fill(service, cluster, page)
        page.close()
        show("full", jobs)
        show("gone", jobs, service.kill)


def look_all_over(page: Page, view: View, look: Look, schemes: Sequence[Scheme]) -> None:
    for width, size in WIDTHS.items():
        shown = page.locator(view.shown).first
        if page.viewport_size != size:
            page.set_viewport_size(size)
            page.mouse.move(0, 0)
            page.wait_for_timeout(200)
            if not shown.is_visible():
                view.enter(page)  # what hangs on the pointer's place is lost with it
        expect(shown).to_be_visible()
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            look(page, view, width, scheme)
