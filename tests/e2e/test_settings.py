"""Tokens, and what belongs to a project: made, shown once, taken away."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.ways import WITH_DELIVERIES, answer


def test_the_first_token_of_a_home_is_made_with_its_user(own_service: Service, new_page: NewPage) -> None:
    page = new_page(own_service)
    page.goto(f"{own_service.url}/settings")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    dialog.get_by_label("What it is for").fill("laptop")
    newcomer = dialog.get_by_label("Name of the new user")  # there is nobody else whose it could be
    expect(newcomer).to_be_visible()  # once the users have been read
    dialog.get_by_role("button", name="Create").click()
    expect(newcomer).to_be_focused()  # nothing was sent without
    newcomer.fill("Not A Name")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    newcomer.fill("ada")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("rubato project grant PROJECT ada editor")
    secret = dialog.locator(".told-once").inner_text()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("[data-token=laptop]")).to_contain_text("ada")
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{own_service.url}/api/v1/me", headers=headers).json()["user"] == "ada"

    page.get_by_role("button", name="New token").click()
    dialog.get_by_label("What it is for").fill("edge")
    cluster = dialog.get_by_label("Cluster of the agent")
    expect(cluster).to_have_count(0)
    dialog.get_by_label("Who uses it").select_option("the agent of a cluster")
    expect(dialog.get_by_label("Whose it is")).to_have_count(0)
    cluster.fill("edge")
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("[data-token=edge]")).to_contain_text("service account cluster edge")


@pytest.mark.parametrize(
    ("token", "consequence"),
    [("cluster", "counts as offline"), ("scraper", "scraping stops"), ("admin", "you are signed out at once")],
)
def test_revoking_a_token_of_the_service_says_what_it_costs(
    service: Service, new_page: NewPage, token: str, consequence: str
) -> None:
    page = new_page(service)
    page.goto(f"{service.url}/settings")
    page.locator(f"[data-token={token}]").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog", name=f"Revoke {token}?")).to_contain_text(consequence)


def test_a_token_is_made_shown_once_and_revoked(service: Service, new_page: NewPage) -> None:
    service.call("POST", "/users", {"name": "ada"})
    page = new_page(service)
    page.get_by_role("link", name="Settings").click()
    expect(page).to_have_url(re.compile("/settings$"))
    expect(page.locator(".about").first).to_contain_text("administrator")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    dialog.get_by_label("What it is for").fill("nightly")
    dialog.get_by_label("How long").select_option("7 days")
    dialog.get_by_role("button", name="Create").click()
    owner = dialog.get_by_label("Whose it is")
    expect(owner).to_be_focused()  # this page was signed in by the home's own, which is nobody's: one must choose
    expect(owner.get_by_role("option", name="yours")).to_have_count(0)
    owner.select_option("ada")
    dialog.get_by_role("button", name="Create").click()
    secret = dialog.locator(".told-once").inner_text()
    expect(dialog).to_contain_text("not shown again")

    def status() -> int:
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.get(f"{service.url}/api/v1/me", headers=headers).status_code

    assert status() == 200
    dialog.get_by_role("button", name="Done").click()
    row = page.locator("[data-token=nightly]")
    expect(row).to_contain_text("ada")
    expect(page.locator(".told-once")).to_have_count(0)
    assert secret not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog", name="Revoke nightly?").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    assert status() == 401


def test_secrets_and_webhooks_of_a_project(service: Service, new_page: NewPage) -> None:
    page = new_page(service, viewport={"width": 360, "height": 780})
    page.goto(f"{service.url}/settings")
    card = page.get_by_role("region", name="Project default")
    card.get_by_role("button", name="Open default").click()
    expect(card.locator(".about")).to_contain_text("no limit")

    card.get_by_role("button", name="Set a secret").click()
    dialog = page.get_by_role("dialog", name="Set a secret")
    dialog.get_by_label("Name").fill("HUB_TOKEN")
    dialog.get_by_label("Value").fill("hush-hush")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(dialog).to_be_hidden()
    row = card.locator("[data-secret=HUB_TOKEN]")
    expect(row).to_contain_text("admin")
    assert "hush-hush" not in page.content()
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog", name="Remove HUB_TOKEN?").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)

    card.get_by_role("button", name="New webhook").click()
    dialog = page.get_by_role("dialog", name="New webhook")
    dialog.get_by_label("Name").fill("chat")
    dialog.get_by_label("Address").fill("http://127.0.0.1/hook")
    dialog.get_by_label("a job fails").check()
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()  # an address inside, and no https: refused, and said why
    expect(dialog.get_by_label("Name")).to_have_value("chat")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_became_of_the_messages_to_a_webhook_is_listed(service: Service, new_page: NewPage) -> None:
    page = new_page(service)
    page.goto(f"{service.url}/settings")
    answer(WITH_DELIVERIES)(page)
    page.get_by_role("button", name="Open default").click()
    page.get_by_role("button", name="Deliveries").click()
    dialog = page.get_by_role("dialog", name="Deliveries of chat")
    rows = dialog.locator("[data-delivery]")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text(re.compile("next try at .*: It answered with status 503"))
    expect(rows.nth(1)).to_contain_text("delivered (status 200)")
    expect(rows.nth(2)).to_contain_text("given up: It answered with status 410")
    page.route("**/webhooks/chat/deliveries?*", lambda route: route.fulfill(json={"items": [], "next_cursor": None}))
    dialog.get_by_role("button", name="Read again").click()
    expect(dialog).to_contain_text("None was sent in the last days")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
