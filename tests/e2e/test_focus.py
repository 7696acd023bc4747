"""Who works by the keyboard goes on where they were: what was pressed keeps the focus, or what took its place."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import open_job
from tests.e2e.ways import submit_a_wrong_spec


def is_lost(page: Page) -> bool:
    return bool(page.evaluate("document.activeElement === document.body"))


def test_what_acts_on_a_job_keeps_the_focus(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("by-keys", pace=0.1)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator(".job-head [data-status=running]")).to_be_visible()
    fewer, more = page.get_by_label("One worker fewer"), page.get_by_label("One worker more")
    fewer.press("Enter")
    expect(fewer).to_be_disabled()  # that was the least
    expect(fewer).to_be_focused()
    more.press("Enter")
    more.press("Enter")
    scale = page.get_by_role("button", name="Scale", exact=True)
    scale.press("Enter")
    expect(page.locator("#workers-note")).to_contain_text("2 → 3")
    expect(scale).to_be_disabled()
    expect(scale).to_be_focused()
    page.get_by_label("Workers", exact=True).focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    page.get_by_role("button", name="Pause", exact=True).press("Enter")
    expect(page.locator(".job-head [data-status=paused]")).to_be_visible()
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_be_focused()
    resume.press("Enter")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    expect(page.locator(".job-head [data-status=running]")).to_be_visible()

    page.get_by_role("tab", name="Workers").click()
    expect(page.locator("[data-worker]")).to_have_count(3)
    worker = page.locator("[data-worker]").first
    killed = worker.get_attribute("data-worker")
    worker.get_by_role("button", name="Kill").press("Enter")
    page.get_by_role("dialog", name="Kill").get_by_role("button", name="Kill it").press("Enter")
    expect(page.get_by_role("status").get_by_text(f"{killed} is killed")).to_be_visible()
    expect(worker.get_by_role("button", name="Kill")).to_be_focused()
    cluster.kill(job_id, rank=0)  # what was asked for; the row goes with it
    expect(page.locator(f"[data-worker={killed}]")).to_have_count(0)
    expect(page.locator("[data-worker] :focus")).to_have_count(1)  # in the row beside it
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    page.get_by_role("button", name="Cancel the job").press("Enter")
    expect(page.locator(".job-head [data-status=cancelled]")).to_be_visible()
    assert not is_lost(page)


def test_a_refused_form_is_gone_on_with(service: Service, cluster: SimulatedCluster, new_page: NewPage) -> None:
    job_id = service.submit("refuses", steps=20, pace=0.01)
    page = new_page(service)
    open_job(page, service, job_id)
    expect(page.locator("[data-status=succeeded]")).to_be_visible()
    page.get_by_role("button", name="Clone").press("Enter")
    dialog = page.get_by_role("dialog", name="Run refuses again?")
    dialog.get_by_label("Changes").fill("workers.initial=none")
    dialog.get_by_role("button", name="Submit").press("Enter")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Clone")).to_be_focused()

    page.get_by_role("tab", name="Checkpoints").click()
    card = page.locator("[data-checkpoint]").first
    card.get_by_role("button", name="Pin").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("storage")  # nothing was really written there
    expect(card.get_by_role("button", name="Pin")).to_be_focused()
    page.get_by_role("alert").get_by_role("button", name="Close").press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_what_takes_the_place_of_what_was_pressed_has_the_focus(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    job_id = service.submit("fails-by-keys", pace=0.02, fail_at=20)
    page = new_page(service)
    open_job(page, service, job_id)
    page.get_by_role("link", name="Logs, at the failing line").press("Enter")
    expect(page.locator(".log-focus")).to_be_in_viewport()
    expect(page.get_by_role("tabpanel")).to_be_focused()
    page.goto(service.url)
    submit_a_wrong_spec(page)
    page.get_by_role("button", name="Form", exact=True).click()
    page.get_by_role("button", name="Drop the changes").press("Enter")
    expect(page.locator(".job-form :focus")).to_have_count(1)
    page.keyboard.press("Escape")

    page.get_by_role("button", name="New job").focus()
    page.mouse.click(2, 2)  # beside everything: there the focus is wanted nowhere
    page.wait_for_timeout(100)
    page.get_by_role("button", name="New job").evaluate("one => one.remove()")
    assert is_lost(page)


@pytest.mark.long
def test_a_node_is_cordoned_and_taken_back_by_keys(
    own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(own_service)
    page.goto(f"{own_service.url}/cluster")
    node = page.locator("[data-node]").first
    node.get_by_role("button", name="Cordon").press("Enter")
    expect(node.locator(".state")).to_have_text("cordoned")
    uncordon = node.get_by_role("button", name="Uncordon")
    expect(uncordon).to_be_focused()
    uncordon.press("Enter")
    expect(node.locator(".state")).to_have_text("ready")
    expect(node.get_by_role("button", name="Cordon")).to_be_focused()
    node.get_by_role("button", name="Drain").press("Enter")
    page.get_by_role("dialog", name="Drain").get_by_role("button", name="Drain").press("Enter")
    expect(node.locator(".state")).to_have_text(re.compile("drain"))
    expect(node.get_by_role("button", name="Uncordon")).to_be_focused()


def test_signing_in_and_out_is_gone_on_with_in_the_field(service: Service, new_page: NewPage) -> None:
    page = new_page(service, is_signed_in=False)
    field = page.get_by_label("Token")
    expect(field).to_be_focused()
    page.keyboard.type("rbt_wrong")
    page.get_by_role("button", name="Sign in").press("Enter")
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(field).to_be_focused()
    field.fill(service.token)
    field.press("Enter")
    page.get_by_role("button", name="Sign out").press("Enter")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(field).to_be_focused()
