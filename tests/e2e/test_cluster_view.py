"""The machines as the page shows them: who holds which slot, who waits and why, and taking a node out of service."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster


def test_a_node_is_cordoned_and_drained_and_the_queue_says_what_it_waits_for(
    own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage
) -> None:
    running = own_service.submit("digits-1", steps=5000, pace=0.1, workers={"initial": 2, "min": 1, "max": 2})
    page = new_page(own_service)
    expect(page.locator(f"[data-job={running}] [data-status=running]")).to_be_visible()
    page.get_by_role("link", name="Cluster").click()
    expect(page).to_have_url(re.compile("/cluster$"))
    nodes = page.locator("[data-node]")
    expect(nodes).to_have_count(2)
    expect(page.locator(".slots .slot-job")).to_have_count(2)
    free = page.locator(".slots .slot-free").count()
    assert free > 0
    other = own_service.submit("digits-2", steps=5000, pace=0.1, workers={"initial": 1, "min": 1, "max": 1})
    expect(page.locator(".slots .slot-job")).to_have_count(3)
    colours = page.locator(".slots .slot-job").evaluate_all(
        "all => all.map(one => `${one.title} ${getComputedStyle(one).backgroundColor}`)"
    )
    assert len({colour.split(" ", 1)[1] for colour in colours}) == len(set(colours)) == 2
    own_service.call("POST", f"/jobs/{other}/cancel")
    expect(page.locator(".slots .slot-free")).to_have_count(free)
    expect(page.get_by_text("nobody waits")).to_be_visible()

    for node in nodes.all():
        node.get_by_role("button", name="Cordon").click()
        expect(node.locator(".state")).to_have_text("cordoned")
    expect(page.locator(".slots .slot-shut")).to_have_count(free)
    waiting = own_service.submit("patient", workers={"initial": 1, "min": 1, "max": 1})
    row = page.get_by_role("table", name="Jobs that wait").get_by_role("row", name="patient")
    expect(row).to_contain_text("take no new workers")
    expect(row.locator("code")).to_have_text("rubato node uncordon")
    box = page.locator(".scroll-x", has=page.get_by_role("table", name="Jobs that wait"))
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")

    node = nodes.first
    node.get_by_role("button", name="Uncordon").click()
    expect(node.locator(".state")).to_have_text("ready")
    expect(page.get_by_text("nobody waits")).to_be_visible()
    node.get_by_role("link", name="patient").click()
    expect(page).to_have_url(re.compile(f"/jobs/{waiting}$"))
    page.go_back()

    node.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog", name="Drain").get_by_role("button", name="Drain").click()
    expect(node.locator(".state")).to_have_text(re.compile("drain"))


SLOWER_THAN_RENEWED = """const answered = window.fetch;
window.fetch = async (url, options) => {
    if (String(url).endsWith("/cluster")) {
        await new Promise((resolve) => setTimeout(resolve, 2600));
        options?.signal?.throwIfAborted();
    }
    return answered(url, options);
};"""


def test_a_service_slower_than_the_page_asks_is_shown_late_and_not_never(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(service)
    page.add_init_script(SLOWER_THAN_RENEWED)
    page.goto(f"{service.url}/cluster")
    expect(page.locator("[data-node]")).to_have_count(2)
