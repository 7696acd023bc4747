"""Every view and state of the page, as one table: the accessibility test walks it, and the pictures show it.

A new view is one row of VIEWS: its name, its address, and what a person does to get into the state (tests/e2e/ways.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from rubato.wire.codec import to_json
from tests.e2e.conftest import Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import of_person, wait_until
from tests.e2e.ways import (
    CLUSTER,
    NODES,
    PROFILE,
    WITH_A_SECRET,
    WITH_DELIVERIES,
    answer,
    ask_for_a_plan,
    bring_a_folder,
    bring_a_profile,
    change_by_hand,
    choose_two,
    compare_attempts,
    cut,
    cut_a_minute_later,
    fill_in_wrongly,
    find_in_logs,
    hold_back,
    look_at_a_loss,
    lose_the_way,
    pause_in_vain,
    press,
    refuse,
    search_in_vain,
    see,
    spend_the_link,
    submit_a_wrong_spec,
    then,
)

WIDTHS: dict[str, ViewportSize] = {
    "wide": {"width": 1280, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
ONE = {"initial": 1, "min": 1, "max": 8}
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
Stage = Literal["empty", "full", "gone"]
"""Of the service: without a job, with one in every status, killed while it is watched."""


Who = Literal["stranger", "newcomer", "viewer", "admin"]
"""Who looks: somebody without a session, one without a role in any project, one who may watch the default one."""


def stay(page: Page) -> None:
    """The address alone is the state."""


def rare(name: str, address: str, shown: str, enter: Callable[[Page], None] = stay, who: Who = "admin") -> View:
    """A row of VIEWS that is much like another one."""
    return View(name, address, shown, enter, who=who, is_rare=True)


@dataclass(frozen=True)
class View:
    name: str
    address: str
    """`{live}` and the like are jobs of `fill`."""
    shown: str
    """A selector of what stands where the state is reached."""
    enter: Callable[[Page], None] = stay
    stage: Stage = "full"
    who: Who = "admin"
    is_rare: bool = False
    """Much like another one: left to the pictures and the long test."""


VIEWS = (
    View("sign-in", "/", "#token", who="stranger", stage="empty"),
    View("sign-in-link-spent", "/", "#token-error:not(:empty)", spend_the_link, "empty", "stranger", is_rare=True),
    View("jobs-none", "/", ".empty", stage="empty"),
    View("jobs", "/", "[data-job]"),
    rare("jobs-loading", "/", ".bone", hold_back("/events")),
    rare("jobs-no-match", "/", "text=No job matches this filter.", search_in_vain),
    View("jobs-chosen", "/", ".chosen a", choose_two),
    View("new-job", "/", ".verdict :not(.soft)", press("New job")),
    View("new-job-wrong", "/", "[aria-invalid=true]", fill_in_wrongly),
    View("new-job-folder", "/", ".folder-picker", bring_a_folder),
    View("plan", "/", "text=Network of a worker", ask_for_a_plan),
    rare("new-job-yaml-wrong", "/", ".findings", submit_a_wrong_spec),
    rare("plan-answer", "/", "[aria-label=Plan]", bring_a_profile(to_json(PROFILE))),
    rare("plan-wrong", "/", ".plan [role=alert]:not(:empty)", bring_a_profile({"layers": 3})),
    rare("new-job-loading", "/", "dialog >> text=Loading", then(hold_back("/recipes"), press("New job"))),
    rare("new-job-unread", "/", "dialog .empty .error", then(cut("**/recipes"), press("New job"))),
    rare("new-job-by-hand", "/", "text=Drop the changes", change_by_hand),
    rare("jobs-cancel", "/", "dialog[open]", press("Cancel digits-cnn")),
    rare("jobs-viewer", "/", "[data-job]", who="viewer"),
    View("compare", "/compare?jobs={live},{done},{paused}", ".compare .lane canvas"),
    rare("compare-metrics", "/compare?jobs={live},{done}&metric=loss&metric=accuracy&x=time", ".lane:nth-of-type(2)"),
    View("compare-one", "/compare?jobs={failed}", ".pick-list li"),
    rare("compare-none", "/compare", ".pick-list li"),
    rare("compare-unknown", "/compare?jobs=job_none,{live}", ".compare:has([data-missing]) .lane canvas"),
    rare("compare-no-metric", "/compare?jobs={live},{done}&metric=bleu", ".lane-none"),
    rare("compare-stale", "/compare?jobs={live},{done}", ".banner-bad", cut("**/api/v1/jobs/**", ".lane canvas")),
    rare("compare-loading", "/compare?jobs={live},{done}", ".loading", hold_back("/jobs/")),
    rare("compare-unread", "/compare?jobs={live},{done}", ".empty .error", cut("**/metrics/chart?max_points=2000*")),
    View("cluster", "/cluster", "[data-node]"),
    rare("cluster-none", "/cluster", ".empty", answer({"**/api/v1/cluster": {"clusters": [], "queue": []}})),
    View(
        "cluster-marked",
        "/cluster",
        ".state-drained",
        answer({"**/api/v1/cluster": {"clusters": [CLUSTER], "queue": []}, "**/clusters/default/nodes": NODES}),
    ),
    rare("cluster-loading", "/cluster", ".loading", hold_back("/api/v1/cluster")),
    rare("cluster-unread", "/cluster", ".empty .error", cut("**/api/v1/cluster")),
    rare("cluster-stale", "/cluster", ".banner-bad", cut("**/api/v1/cluster", "[data-node]")),
    rare("cluster-viewer", "/cluster", "[data-node]", who="viewer"),
    View("cluster-drain", "/cluster", "dialog[open]", press("Drain")),
    View("settings", "/settings", "[data-token]"),
    rare("settings-token", "/settings", "dialog[open]", press("New token")),
    View("settings-project", "/settings", ".part", press("Open default")),
    rare("settings-unread", "/settings", ".empty .error", cut("**/api/v1/projects?*")),
    rare("settings-revoke", "/settings", "dialog[open]", press("Revoke")),
    rare("settings-secret", "/settings", "dialog[open]", press("Open default", "Set a secret")),
    rare("settings-webhook", "/settings", "dialog[open]", press("Open default", "New webhook")),
    rare(
        "settings-deliveries",
        "/settings",
        "[data-delivery=failed]",
        then(answer(WITH_DELIVERIES), press("Open default", "Deliveries")),
    ),
    rare(
        "settings-secret-remove",
        "/settings",
        "dialog[open]",
        then(answer(WITH_A_SECRET), press("Open default", "Remove")),
    ),
    rare(
        "settings-webhook-remove",
        "/settings",
        "dialog[open]",
        then(answer(WITH_DELIVERIES), press("Open default", "Remove")),
    ),
    rare("settings-stale", "/settings", ".banner-bad", cut_a_minute_later("**/api/v1/projects?*", "[data-token]")),
    rare("settings-viewer", "/settings", ".part", press("Open default"), who="viewer"),
    rare("settings-newcomer", "/settings", "text=No project yet", who="newcomer"),
    View("nothing-here", "/", "text=Nothing here", lose_the_way),
    View("unreachable", "/", "text=The service does not answer", cut("**/api/v1/me")),
    rare("broken", "/cluster", "text=The page made a mistake", answer({"**/nodes": {"items": 5}})),
    View("job-unknown", "/jobs/job_none", "text=Cannot show"),
    View("job-live", "/jobs/{live}", ".lane canvas"),
    rare("job-loss", "/jobs/{live}", ".tip >> visible=true", look_at_a_loss),
    rare("job-viewer", "/jobs/{live}", "text=You may watch the jobs of default", who="viewer"),
    View("job-attempts", "/jobs/{paused}", ".lane .legend", compare_attempts),
    rare("job-loading", "/jobs/{live}", ".bone", hold_back("/jobs/")),
    rare("job-refused", "/jobs/{live}", ".banner-bad", refuse("**/jobs/*/events")),
    View("job-workers", "/jobs/{live}#workers", "[data-worker]"),
    rare("job-workers-viewer", "/jobs/{live}#workers", "[data-worker]", who="viewer"),
    rare("job-workers-loading", "/jobs/{live}#workers", ".loading", hold_back("/workers")),
    rare("job-workers-unread", "/jobs/{live}#workers", ".empty .error", cut("**/workers")),
    View("job-stacks", "/jobs/{live}#workers", "dialog[open]", press("Stacks")),
    rare("job-kill", "/jobs/{live}#workers", "dialog[open]", press("Kill")),
    View("job-logs", "/jobs/{live}#logs", ".log-row"),
    rare("job-logs-loading", "/jobs/{live}#logs", "[aria-label='Loading logs']", hold_back("/logs")),
    rare("job-logs-unread", "/jobs/{live}#logs", ".empty .error", cut("**/logs?*")),
    rare("job-logs-no-match", "/jobs/{live}#logs", "text=No line matches", find_in_logs("nothing like it")),
    View("job-events", "/jobs/{live}#events", ".event"),
    View("job-checkpoints", "/jobs/{live}#checkpoints", "[data-checkpoint]"),
    rare("job-checkpoints-loading", "/jobs/{live}#checkpoints", ".loading", hold_back("/checkpoints")),
    rare("job-checkpoints-unread", "/jobs/{live}#checkpoints", ".empty .error", cut("**/checkpoints?*")),
    rare("job-checkpoint-clone", "/jobs/{live}#checkpoints", "dialog[open]", press("New job from here")),
    rare("job-checkpoint-delete", "/jobs/{live}#checkpoints", "dialog[open]", press("Delete")),
    View("job-spec", "/jobs/{live}#spec", ".code"),
    View("job-code", "/jobs/{live}#code", "[role=tabpanel]"),
    rare("job-code-loading", "/jobs/{live}#code", ".loading", hold_back("/code")),
    rare("job-code-unread", "/jobs/{live}#code", ".empty .error", cut("**/code")),
    View("job-cancel", "/jobs/{live}", "dialog[open]", press("Cancel")),
    rare("job-clone", "/jobs/{live}", "dialog[open]", press("Clone")),
    rare("job-change", "/jobs/{queued}", "dialog[open]", press("Change priority or workers")),
    View("job-toast", "/jobs/{live}", ".toast", pause_in_vain),
    View("job-queued", "/jobs/{queued}", "[data-status=queued]"),
    rare("job-queued-workers", "/jobs/{queued}#workers", "[role=tabpanel]"),
    rare("job-queued-logs", "/jobs/{queued}#logs", "[role=tabpanel]"),
    rare("job-queued-checkpoints", "/jobs/{queued}#checkpoints", "[role=tabpanel]"),
    rare("job-waiting", "/jobs/{waiting}", "#workers-note:has-text('Wants 8')"),
    View("job-paused", "/jobs/{paused}", "[data-status=paused]"),
    View("job-starting", "/jobs/{starting}", "[data-status=starting]"),
    rare("job-recovering", "/jobs/{recovering}", "[data-status=recovering]"),
    rare("job-pausing", "/jobs/{pausing}", "[data-status=pausing]"),
    rare("job-pause-at-once", "/jobs/{pausing}", "dialog[open]", press("Pause at once")),
    rare("job-stopping", "/jobs/{stopping}", "[data-status=stopping]"),
    rare("job-cancelled", "/jobs/{cancelled}", "[data-status=cancelled]"),
    View("job-failed", "/jobs/{failed}", "[data-failure]"),
    rare("job-failed-logs", "/jobs/{failed}#logs", ".log-row mark", find_in_logs("runtimeerror")),
    View("job-succeeded", "/jobs/{done}", "[aria-label='Final digest']"),
    rare("job-delete", "/jobs/{done}", "dialog[open]", press("Delete")),
    View("job-stale", "/jobs/{live}", "[data-banner=stale]", see("canvas"), stage="gone"),
    View("jobs-stale", "/", "[data-banner=stale]", see("[data-job]"), stage="gone", is_rare=True),
    View("job-logs-stale", "/jobs/{live}#logs", "[data-banner=stale]", see(".log-row"), stage="gone", is_rare=True),
)


def fill(service: Service, cluster: SimulatedCluster, page: Page) -> dict[str, str]:
    """One job in every state worth a look."""
    ids = {
        "done": service.submit("tabular", steps=150, pace=0.01),
        "failed": service.submit("segmenter", pace=0.01, fail_at=83),
        "paused": service.submit("char-lm", steps=2000, pace=0.05),
        "live": service.submit("digits-cnn", has_past=True, pace=2.0, workers={"initial": 2, "min": 1, "max": 8}),
        "starting": service.submit("about-to-begin", is_stuck=True, workers=ONE),
        "recovering": service.submit("lost-its-nodes", pace=0.05, lose_all_at=60, workers=ONE),
        "pausing": service.submit("slow-to-pause", pace=4.0, is_deaf=True, workers=ONE),
        "stopping": service.submit("slow-to-stop", pace=4.0, is_deaf=True, workers=ONE),
        "cancelled": service.submit("not-wanted", pace=0.05, steps=2000, workers=ONE),
    }

    def reach(name: str, status: str) -> None:
        page.goto(f"{service.url}/jobs/{ids[name]}")
        expect(page.locator(f".job-head [data-status={status}]")).to_be_visible(timeout=60_000)

    def ask(name: str, verb: str, status: str) -> None:
        service.call("POST", f"/jobs/{ids[name]}/{verb}")
        reach(name, status)

    reach("paused", "running")
    expect(page.locator(".lane canvas")).to_have_count(4)
    ask("paused", "pause", "paused")
    ask("paused", "resume", "running")
    expect(page.get_by_role("group", name="Attempts compared")).to_be_visible()
    ask("paused", "pause", "paused")
    for name, verb, status in (
        ("pausing", "pause", "pausing"), ("stopping", "cancel", "stopping"), ("cancelled", "cancel", "cancelled"),
    ):  # fmt: skip
        reach(name, "running")
        ask(name, verb, status)
    reach("starting", "starting")
    reach("recovering", "recovering")
    reach("done", "succeeded")
    reach("failed", "failed")
    reach("live", "running")
    expect(page.get_by_role("button", name="Scaled down")).to_be_visible()
    cluster.set_slots(9)  # neither of these two has its 8 once those that hang are given up, beside the two of `live`
    wait_until(page, lambda: service.call("GET", "/cluster")["clusters"][0]["slots_total"] == 9)
    ids["waiting"] = service.submit("char-lm-large", pace=4.0, workers={"initial": 8, "min": 2, "max": 16})
    reach("waiting", "running")
    ids["queued"] = service.submit("next-in-line", workers={"initial": 8, "min": 8, "max": 16})
    return ids


Look = Callable[[Page, View, str, str], None]
"""At a page in a state, by width and colour scheme."""
Wanted = Callable[[View], Sequence[Scheme]]
"""In which colour schemes a view is looked at, if at all."""


def walk(
    browser: Browser, service: Service, cluster: SimulatedCluster, look: Look, wanted: Wanted = lambda _: SCHEMES
) -> None:
    """Every view that is wanted, in every width; the service is dead afterwards."""
    tokens = {
        "newcomer": of_person(service, "nora", None),
        "viewer": of_person(service, "vera", "viewer"),
        "admin": service.token,
    }
    with ExitStack() as contexts:
        people: dict[str, BrowserContext] = {}
        for who in ("stranger", *tokens):
            people[who] = contexts.enter_context(closing(browser.new_context()))
            if who in tokens:
                people[who].request.post(f"{service.url}/api/v1/session", data={"token": tokens[who]})

        def open_all(stage: Stage, jobs: dict[str, str]) -> Iterator[tuple[Page, View]]:
            for view in VIEWS:
                if view.stage != stage or not wanted(view):
                    continue
                page = people[view.who].new_page()
                page.set_viewport_size(WIDTHS["wide"])
                page.goto(service.url + view.address.format(**jobs))
                view.enter(page)
                yield page, view

        def show(opened: Iterable[tuple[Page, View]]) -> None:
            for page, view in opened:
                look_all_over(page, view, look, wanted(view))
                page.close()

        show(open_all("empty", {}))
        page = people["admin"].new_page()
        jobs = fill(service, cluster, page)
        page.close()
        show(open_all("full", jobs))
        watched = list(open_all("gone", jobs))
        service.kill()
        show(watched)


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
