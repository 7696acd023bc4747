"""Stories of the page in a real browser, against the real service and a simulated cluster."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import open_job, wait_until


def test_a_person_signs_in_by_token_and_out(own_service: Service, new_page: NewPage) -> None:
    page = new_page(own_service, is_signed_in=False)
    page.goto(f"{own_service.url}/login?code=used")
    expect(page.get_by_role("alert")).to_contain_text("was used before or has expired")
    page.get_by_label("Token").fill("rbt_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).not_to_be_empty()
    page.get_by_label("Token").fill(own_service.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    expect(page).to_have_url(f"{own_service.url}/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_submitted_job_appears_and_trains_without_a_reload(
    own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(own_service)
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    job_id = own_service.submit("digits-1", steps=500, pace=0.1)
    row = page.locator(f"[data-job={job_id}]")
    expect(row.locator("[data-status=running]")).to_be_visible()
    expect(row.get_by_label(re.compile("^2/2 workers"))).to_be_visible()
    bar = row.get_by_role("progressbar")
    wait_until(page, lambda: int(bar.get_attribute("aria-valuenow") or 0) >= 1)
    page.get_by_label("Search jobs").fill("nothing like it")
    expect(page.get_by_text("No job matches this filter.")).to_be_visible()
    page.get_by_label("Search jobs").fill("digits")
    row.get_by_role("link", name="digits-1").click()
    expect(page).to_have_url(re.compile(f"/jobs/{job_id}$"))
    expect(page.locator(".lane canvas")).to_have_count(4)
    page.go_back()
    expect(row).to_be_visible()
    expect(page.get_by_label("Search jobs")).to_have_value("digits")
    page.reload()
    expect(page).to_have_url(f"{own_service.url}/?q=digits")
    expect(row).to_be_visible()


@pytest.mark.short
def test_scaling_by_the_stepper_shows_the_wish_and_then_the_measured_pause(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-2", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator("[data-status=running]")).to_be_visible()
    scale = page.get_by_role("button", name="Scale", exact=True)
    expect(scale).to_be_disabled()
    page.get_by_label("One worker more").click()
    page.get_by_label("One worker more").click()
    scale.click()
    note = page.locator("#workers-note")
    expect(note).to_contain_text("2 → 4, joining…")
    marker = page.locator("[data-kind=up]").first
    expect(marker.locator(".marker-pause")).to_have_text(re.compile(r"^\d+\sms$"))
    expect(note).to_have_attribute("data-note", "bounds")
    formed = [
        one for one in service.call("GET", f"/jobs/{job_id}/events")["items"] if one["kind"] == "generation.formed"
    ]
    measured = f"{round(formed[-1]['data']['paused_seconds'] * 1000)} ms"
    expect(marker.locator(".marker-pause")).to_have_text(measured)

    def is_told() -> bool:
        marker.get_by_role("button").hover()  # the chart moves on under the pointer
        return any("Scaled up 2 → 4 workers" in tip for tip in page.get_by_role("tooltip").all_inner_texts())

    wait_until(page, is_told)
    page.get_by_label("Workers", exact=True).fill("1")
    page.get_by_label("Workers", exact=True).press("Enter")
    expect(page.get_by_role("button", name=re.compile("^Scaled down 4 → 1 workers, paused"))).to_be_visible()
    page.get_by_role("tab", name="Workers").click()
    expect(page.locator("[data-worker]")).to_have_count(1)


def test_missing_capacity_is_explained(own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage) -> None:
    own_cluster.set_slots(3)
    job_id = own_service.submit("digits-3", pace=0.1)
    page = new_page(own_service)
    open_job(page, own_service, job_id)
    expect(page.locator("[data-status=running]")).to_be_visible()
    own_service.call("POST", f"/jobs/{job_id}/scale", {"workers": 5})
    expect(page.locator("#workers-note")).to_contain_text("Wants 5, has 3: 0 slots free")


def test_a_killed_worker_leaves_a_marker_that_tells_what_it_cost(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-4", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator(".lane canvas")).to_have_count(4)
    cluster.kill(job_id, rank=0)
    expect(page.locator("[data-lane=w1]")).to_have_attribute("data-end", "lost")
    page.get_by_role("application", name="Timeline").focus()
    for key in ("End", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#timeline-told")).to_contain_text("w1 (rank 0) was killed by SIGKILL")
    expect(page.locator(".tile", has_text="Goodput")).to_contain_text("%")
    marker = page.locator("[data-kind=failure]").first
    expect(marker.get_by_role("button")).to_have_accessible_name(
        re.compile(r"Recovered from a loss 2 → 1 workers, w1 \(rank 0\) lost: SIGKILL, paused \d+\sms, 3 microbatches")
    )


@pytest.mark.short
def test_a_failed_job_says_where_why_and_what_to_do(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("fails", pace=0.02, fail_at=83)
    page = new_page(service)
    open_job(page, service, job_id)
    card = page.locator("[data-failure=user_code_error]")
    expect(card).to_be_visible()
    for text in ("In the job's own code", "code 1", "83", "RuntimeError: Sizes of tensors", "What to do"):
        expect(card).to_contain_text(text)
    expect(page.get_by_role("button", name="Scale", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Logs, at the failing line").click()
    expect(page.locator(".log-focus")).to_be_in_viewport()
    expect(page.locator(".log-focus")).to_contain_text("RuntimeError: Sizes of tensors")
    expect(page.get_by_role("button", name="rank 1", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Find in logs").fill("runtimeerror")
    expect(page.locator(".log-row")).to_have_count(1)
    expect(page.locator(".log-row mark")).to_have_text("RuntimeError")


def test_tabs_and_timeline_are_gone_through_by_keys_and_leave_those_of_the_browser_alone(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-keys", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    timeline = page.get_by_role("application", name="Timeline")
    expect(timeline).to_be_visible()
    page.evaluate("window.taken = []; addEventListener('keydown', (e) => taken.push(e.defaultPrevented))")
    for press, taken in (("Alt+ArrowLeft", False), ("ArrowLeft", True)):
        timeline.dispatch_event("keydown", {"key": "ArrowLeft", "altKey": press.startswith("Alt"), "bubbles": True})
        assert page.evaluate("taken.pop()") is taken, press
    selected = page.locator("[role=tab][aria-selected=true]")
    for key, name in (("End", "Code"), ("ArrowRight", "Overview"), ("ArrowLeft", "Code"), ("Home", "Overview")):
        selected.press(key)
        expect(selected).to_have_text(name)
        expect(selected).to_be_focused()
    selected.dispatch_event("keydown", {"key": "ArrowLeft", "altKey": True, "bubbles": True})
    assert page.evaluate("taken.pop()") is False
    expect(selected).to_have_text("Overview")


def test_a_job_is_paused_resumed_and_cancelled(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("digits-7", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator(".job-head [data-status=running]")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".job-head [data-status=paused]")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".job-head [data-status=running]")).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-head [data-status=cancelled]")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)


def test_while_the_list_loads_it_says_no_numbers_and_nothing_moves_when_they_come(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    service.submit("counted", pace=0.1)
    page = new_page(service, viewport={"width": 390, "height": 844})
    held: list[Route] = []
    for path in ("cluster", "events?*"):
        page.route(f"**/api/v1/{path}", lambda route: held.append(route))
    page.reload()
    chips = page.get_by_role("group", name="Filter by status").get_by_role("button")
    expect(chips).to_have_text(["all", "active"])
    button = page.get_by_role("button", name="New job")
    before = button.bounding_box()
    wait_until(page, lambda: len({route.request.url for route in held}) == 2)
    for route in held:
        route.continue_()
    expect(page.get_by_text("slots in use")).to_be_visible()
    expect(chips.first).to_have_text(re.compile(r"all \d+"))
    assert button.bounding_box() == before


def test_attempts_are_drawn_over_each_other(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("digits-attempts", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator(".lane canvas")).to_have_count(4)
    expect(page.get_by_role("group", name="Attempts compared")).to_have_count(0)
    service.call("POST", f"/jobs/{job_id}/pause")
    expect(page.locator(".job-head [data-status=paused]")).to_be_visible()
    service.call("POST", f"/jobs/{job_id}/resume")
    expect(page.get_by_role("group", name="Attempts compared").get_by_role("button")).to_have_count(2)
    loss = page.get_by_role("region", name="loss chart")
    expect(loss.locator(".legend li")).to_have_count(0)
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_role("button", name="Attempt 2").click()
    expect(loss.locator(".legend li")).to_have_count(0)
    page.get_by_role("button", name="Attempt 1").click()
    expect(loss.locator(".legend li")).to_have_text([re.compile(r"^Attempt 2\d"), re.compile(r"^Attempt 1\d")])
    # Areas of several would cover each other.
    expect(page.locator(".lane canvas")).to_have_count(3)
    loss.get_by_role("application").press("Home")
    expect(loss.locator("output")).to_have_text(re.compile(r"^0:00: Attempt 2 \d.*, Attempt 1 \d"))
    page.get_by_role("button", name="Attempt 1").click()
    page.get_by_role("button", name="Attempt 2").click()
    expect(page.locator(".lane canvas")).to_have_count(4)


def test_so_it_is_from_the_list(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("digits-row", pace=0.1)
    page = new_page(service)
    row = page.locator(f"[data-job={job_id}]")
    expect(row.locator("[data-status=running]")).to_be_visible()
    row.get_by_role("button", name="Pause digits-row").click()
    expect(row.locator("[data-status=paused]")).to_be_visible()
    row.get_by_role("button", name="Resume digits-row").click()
    expect(row.locator("[data-status=running]")).to_be_visible()
    row.get_by_role("button", name="Cancel digits-row").click()
    page.get_by_role("dialog", name="Cancel digits-row?").get_by_role("button", name="Cancel the job").click()
    expect(row.locator("[data-status=cancelled]")).to_be_visible()
    expect(row.get_by_role("button")).to_have_count(0)


def test_a_pause_that_takes_too_long_is_forced(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("digits-forced", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator(".job-head [data-status=running]")).to_be_visible()
    cluster.hold(job_id)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause at once").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause at once").click()
    expect(page.get_by_text("go on from its newest checkpoint")).to_be_visible()
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_text("forced a pause")).to_be_visible()


def test_a_succeeded_job_shows_its_digest_and_checkpoints(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("digits-whole", steps=250, pace=0.01)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator("[data-status=succeeded]")).to_be_visible()
    expect(page.get_by_label("Final digest")).to_contain_text("9f3c1b07d2a84e6f" * 4)
    page.get_by_role("tab", name="Checkpoints").click()
    expect(page.locator("[data-checkpoint]")).to_have_count(3)
    link = page.locator("[data-checkpoint] a").first
    assert re.fullmatch(r"/api/v1/checkpoints/ckpt_\w+/files/[\w.-]+", link.get_attribute("href") or "")
    page.get_by_role("tab", name="Spec").click()
    expect(page.locator(".code")).to_contain_text("entrypoint: image_classifier.py:train")


def test_a_waiting_job_says_why_and_shows_what_it_will_run(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("waits", lr=0.1, workers={"initial": 40, "min": 40, "max": 40})
    page = new_page(service)
    open_job(page, service, job_id)
    card = page.get_by_role("region", name="Why it waits")
    expect(card).to_contain_text("Place in the queue")
    expect(card).to_contain_text("It starts as soon as 40 workers can be placed")
    card.get_by_role("button", name="Change priority or workers").click()
    dialog = page.get_by_role("dialog", name="Change ")
    dialog.get_by_label("Priority").fill("90")
    dialog.get_by_label("Most workers").fill("39")
    dialog.get_by_label("Labels").fill("team=vision")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("workers")  # fewest are 40: refused, and what was typed stays
    dialog.get_by_label("Most workers").fill("80")
    service.call("PATCH", f"/jobs/{job_id}", {"labels": {"by": "another"}})
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Somebody changed the job meanwhile")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Change", exact=True).click()
    expect(dialog.get_by_label("Labels")).to_have_value("by=another")
    dialog.get_by_label("Priority").fill("90")
    dialog.get_by_label("Labels").fill("team=vision")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog).to_be_hidden()
    expect(card).to_contain_text("90 of 100")
    found = service.call("GET", f"/jobs/{job_id}")
    assert (found["labels"], found["spec"]["scheduling"]["priority"]) == ({"team": "vision"}, 90)
    assert found["min_workers"] == 40
    page.get_by_role("tab", name="Spec").click()
    given = page.locator("[data-given=true]")
    expect(given.filter(has_text="min: 40")).to_be_visible()
    expect(given.filter(has_text="seed")).to_have_count(0)
    page.get_by_role("tab", name="Code").click()
    expect(page.locator("[data-file='image_classifier.py']")).to_contain_text("entrypoint")
    expect(page.locator(".code-body")).to_contain_text("import rubato")
    page.get_by_role("tab", name="Overview").click()
    card.get_by_role("button", name="Change priority or workers").click()
    dialog.get_by_label("Labels").fill("team=audio")
    service.call("POST", f"/jobs/{job_id}/cancel")
    expect(card).to_be_hidden()
    expect(dialog.get_by_label("Labels")).to_have_value("team=audio")  # the form outlives the card it was opened from


def test_two_jobs_are_compared_from_the_list_and_by_their_address(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    quick = service.submit("quick", steps=200, pace=0.01, lr=0.1)
    live = service.submit("still-learning", pace=0.05, lr=0.01)
    page = new_page(service)
    for name in ("quick", "still-learning"):
        page.get_by_label(f"Compare {name}", exact=True).check()
    compare = page.get_by_role("region", name="Chosen jobs").get_by_role("link", name="Compare")
    compare.click()
    expect(page).to_have_url(f"{service.url}/compare?jobs={quick},{live}")
    page.go_back()
    expect(page.get_by_label("Compare quick", exact=True)).to_be_checked()
    page.get_by_label("Search jobs").fill("nothing like it")
    page.get_by_role("button", name="Show all jobs").click()
    compare.click()
    expect(page.locator(".lane canvas")).to_have_count(1)
    legend = page.locator(".legend")
    expect(legend.get_by_role("link")).to_have_text(["quick", "still-learning"])
    table = page.get_by_role("region", name="What differs")
    expect(table.get_by_role("row", name="config.lr")).to_contain_text(re.compile(r"0\.1\s*0\.01"))
    expect(table.get_by_role("row", name="batch.global_size")).to_have_count(0)
    expect(table.get_by_role("row", name="Result digest").get_by_role("cell")).to_have_text(
        [re.compile(r"^\w{12}…$"), "–"]
    )
    row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Steps", exact=True))
    steps = row.get_by_role("cell").last
    before = steps.inner_text()
    expect(steps).not_to_have_text(before)

    page.get_by_role("button", name="accuracy").click()
    page.get_by_role("button", name="Log").click()
    expect(page).to_have_url(f"{service.url}/compare?jobs={quick},{live}&metric=loss&metric=accuracy&log=1")
    expect(page.locator(".lane canvas")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("button", name="accuracy")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".lane canvas")).to_have_count(2)
    expect(legend.first.get_by_role("link")).to_have_text(["quick", "still-learning"])  # else it moves under the click
    page.get_by_role("link", name="Compare without quick").click()
    expect(legend.first.get_by_role("link")).to_have_text(["still-learning"])
    expect(page.get_by_role("heading", name="Compare with")).to_be_visible()
    page.get_by_label("Find a job by its name").fill("quic")
    page.get_by_role("link", name="quick").click()
    expect(legend.first.get_by_role("link")).to_have_text(["still-learning", "quick"])


def test_a_job_that_never_ran_has_no_line_and_nothing_is_asked_in_vain(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    ran = service.submit("ran", steps=50, pace=0.01)
    never = service.submit("never-ran", workers={"initial": 64, "min": 64, "max": 64})
    service.call("POST", f"/jobs/{never}/cancel")
    page = new_page(service)
    refused: list[str] = []
    page.on("response", lambda answer: None if answer.ok else refused.append(answer.url))
    page.goto(f"{service.url}/compare?jobs={ran},{never}")
    expect(page.locator(".legend").get_by_role("link")).to_have_text(["ran"])
    expect(
        page.get_by_role("region", name="What differs").get_by_role("link", name="never-ran", exact=True)
    ).to_be_visible()
    page.goto(f"{service.url}/compare?jobs={never}")
    expect(page.locator(".lane-none")).to_have_text("None of these jobs has measured anything yet.")
    assert refused == []


def test_an_unknown_job_is_a_sentence_not_a_blank_page(service: Service, new_page: NewPage) -> None:
    page = new_page(service)
    page.goto(f"{service.url}/jobs/job_none")
    expect(page.get_by_role("heading", name="Cannot show job_none")).to_be_visible()


def test_theme_keyboard_and_narrow_screens(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("digits-9", has_past=True, pace=0.1)
    page = new_page(service, viewport={"width": 360, "height": 780}, color_scheme="dark")
    open_job(page, service, job_id)
    expect(page.locator(".lane canvas")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Theme: system. Change").click()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: light. Change")).to_be_visible()
    page.get_by_role("tab", name="Overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Workers")).to_be_focused()
    expect(page.locator("[data-worker]").first).to_be_visible()
    expect(page.get_by_role("button", name="Kill").first).to_be_in_viewport(ratio=1)
    open_job(page, service, job_id, "#code")
    expect(page.get_by_role("tab", name="Code")).to_be_in_viewport(ratio=0.9)
    expect(page.get_by_role("tab", name="Overview")).not_to_be_in_viewport()


def test_a_slow_worker_is_told_beside_the_others(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("uneven", pace=0.2)
    page = new_page(service)
    open_job(page, service, job_id)
    ranks = page.get_by_role("list", name="Compute a step, by rank").get_by_role("listitem")
    expect(ranks).to_have_text(["w1 rank 0176 ms 16 × 11 ms", "w2 rank 1336 ms 16 × 21 ms 1.9× the others"])
    page.get_by_role("tab", name="Workers").click()
    slow = page.locator('[data-worker="w2"]')
    expect(slow).to_contain_text("21 ms1.9× the others")  # on two lines
    expect(slow).to_contain_text("NVIDIA H100")
    expect(slow).to_contain_text("300 ms ago")
    fast = page.locator('[data-worker="w1"]')
    expect(fast).to_contain_text("11 ms")
    expect(fast).not_to_contain_text("the others")
