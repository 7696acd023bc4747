"""Whatever a user, a program or a cluster says is text on the page: in a real browser nothing of it is ever run."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import NodeReport, SyncRequest
from rubato.wire.codec import to_json
from tests.e2e.conftest import NewPage, Service, running_service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.ways import PROFILE
from tests.simulated_controller import bearer

STRIKE = "window.struck = true"
HOSTILE = {
    "script": f"<script>{STRIKE}</script>",
    "image": f"<img src=x onerror='{STRIKE}'>",
    "svg": f"<svg/onload={STRIKE.replace(' ', '')}>",
    "out of an attribute": f"\" autofocus onfocus='{STRIKE}' x=\"",
    "address": f"javascript:{STRIKE.replace(' ', '')}//<a href='javascript:{STRIKE}'>here</a>",
    "frame": f"<iframe srcdoc='<script>parent.{STRIKE}</script>'></iframe>",
    "end of a script": f"</script><script>{STRIKE}</script>",
    "colours": f"\x1b[31m<b onmouseover='{STRIKE}'>red</b>\x1b]8;;javascript:{STRIKE}\x07link\x1b]8;;\x07",
}
TABS = ("overview", "workers", "logs", "events", "checkpoints", "spec")
SHOWN = ("overview", "logs", "events", "spec")
"""Where the text must be, else nothing was tried."""
FAILED_IMAGE = """() => new Promise(done => {
    const image = new Image();
    image.onerror = done;
    image.src = "/no-such-image-" + Math.random();
})"""
"""Handlers of images that were put there before it have had their turn."""


SHORT = ("script", "out of an attribute")
"""Not `long`: those that most would break out by."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.long) for kind in HOSTILE]
)
def test_hostile_text_is_shown_and_not_run(
    service: Service, cluster: SimulatedCluster, new_page: NewPage, kind: str
) -> None:
    text = HOSTILE[kind]
    name = f"hostile-{list(HOSTILE).index(kind)}"
    job_id = service.submit(name, pace=0.02, steps=120, fail_at=110, say=text)
    service.call("PATCH", f"/jobs/{job_id}", {"labels": {"team": text[:60]}})
    page = new_page(service)
    page.on("dialog", _refuse)
    expect(page.locator(f"[data-job={job_id}]")).to_be_visible()
    page.get_by_label("Search jobs").fill(text[:60])
    for tab in TABS:
        page.goto(f"{service.url}/jobs/{job_id}#{tab}")
        panel = page.get_by_role("tabpanel")
        if tab in SHOWN:
            expect(panel).to_contain_text("struck")
        expect(panel).to_be_visible()
        _assert_text_only(page, tab)
    page.goto(f"{service.url}/jobs/{job_id}")
    for title in ("Traceback", "Last lines"):
        expect(page.locator("[data-failure] .output", has_text=title)).to_contain_text("struck")
    page.get_by_role("group", name="Metrics shown").get_by_role("button").filter(has_text="struck").click()
    expect(page.locator(".lane-title").filter(has_text="struck")).to_be_visible()
    _assert_text_only(page, "a chart")
    # Beside a job whose spec says nothing of it, and one that there is not.
    service.submit(f"{name}-rival", pace=0.01, steps=5)
    query = urlencode({"jobs": f"{name},{name}-rival,{text.replace(',', '')}", "metric": text[:60]})
    page.goto(f"{service.url}/compare?{query}")
    for place in ("[data-missing]", ".compare-table code", ".lane-title"):
        expect(page.locator(place).filter(has_text="struck").first).to_be_visible()
    _assert_text_only(page, "a comparison")


def test_nor_is_what_a_plan_is_asked_with(service: Service, new_page: NewPage, tmp_path: Path) -> None:
    page = new_page(service)
    page.on("dialog", _refuse)
    page.get_by_role("button", name="New job").click()
    page.get_by_text("How many workers are worth it?").click()
    alert = page.locator(".plan [role=alert]")
    for number, text in enumerate(HOSTILE.values()):
        profile = tmp_path / f"{number}.json"
        profile.write_text(json.dumps({text: number}))
        page.get_by_label("Profile").set_input_files(profile)
        page.get_by_role("button", name="Predict").click()
        expect(alert).to_contain_text("struck")
        _assert_text_only(page, f"profile {number}")
    profile.write_text(json.dumps(to_json(PROFILE)))
    page.get_by_label("Profile").set_input_files(profile)
    for text in HOSTILE.values():
        page.get_by_label("Network measured by job").fill(text)
        page.get_by_role("button", name="Predict").click()
        expect(alert).to_contain_text("struck")
        _assert_text_only(page, f"the plan after {text}")


@pytest.mark.long
def test_nor_are_addresses_of_webhooks(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_page: NewPage
) -> None:
    monkeypatch.setenv("RUBATO_WEBHOOKS", "true")
    with running_service(tmp_path / "home") as service:
        for number, text in enumerate(_printable()):
            address = f"https://hooks.example/?{text.replace(' = ', '=').replace(' ', '/')}"
            service.call("POST", "/projects/default/webhooks", {"name": f"hook-{number}", "url": address})
        page = new_page(service)
        page.on("dialog", _refuse)
        page.goto(f"{service.url}/settings")
        page.get_by_role("button", name="Open default").click()
        expect(page.locator("[data-webhook]").filter(has_text="struck")).to_have_count(len(HOSTILE))
        _assert_text_only(page, "webhooks")


def test_nor_is_what_projects_tokens_nodes_and_files_are_called(own_service: Service, new_page: NewPage) -> None:
    texts = _printable()
    own_service.call("POST", "/users", {"name": "ada"})
    for number, text in enumerate(texts):
        own_service.call("POST", "/projects", {"name": f"theirs-{number}", "description": text})
        own_service.call("POST", "/tokens", {"name": text[:63], "user": "ada"})
    nodes = tuple(
        NodeReport(node_id=f"node-{number}", address=text[:60], cpu=2, hostname=text)
        for number, text in enumerate(texts)
    )
    sync = SyncRequest(agent_id="agent-1", wire_version=WIRE_VERSION, nodes=nodes, wait=0)
    address = f"{own_service.url}/cluster/v1/clusters/default/sync"
    assert httpx.post(address, json=to_json(sync), headers=bearer(own_service.cluster_token)).status_code == 200
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("train.py", f"def train():\n    {texts!r}\n")
        for text in texts:
            archive.writestr(text.replace("/", "_").replace(":", "_"), text)
    digest = hashlib.sha256(package.getvalue()).hexdigest()
    packages, headers = f"{own_service.url}/api/v1/packages/{digest}", bearer(own_service.token)
    assert httpx.put(packages, content=package.getvalue(), headers=headers).status_code == 201
    job = own_service.call("POST", "/jobs", {"name": "theirs", "entrypoint": "train.py:train", "package": digest})

    page = new_page(own_service)
    page.on("dialog", _refuse)
    for path, place, count in (
        ("/settings", page.locator("section.project"), len(texts)),
        ("/settings", page.locator("[data-token]"), len(texts)),
        ("/cluster", page.locator("[data-node]"), len(texts)),
        (f"/jobs/{job['id']}#code", page.locator("[data-file]"), len(texts)),
        (f"/jobs/{job['id']}#code", page.get_by_role("tabpanel"), 1),
    ):
        page.goto(own_service.url + path)
        expect(place.filter(has_text="struck")).to_have_count(count)
        _assert_text_only(page, path)


def _printable() -> list[str]:
    return ["".join(letter for letter in text if letter.isprintable()) for text in HOSTILE.values()]


def _refuse(dialog: Dialog) -> None:
    dialog.dismiss()
    pytest.fail(f"a dialog opened: {dialog.message}")


def _assert_text_only(page: Page, place: str) -> None:
    page.evaluate(FAILED_IMAGE)
    assert page.evaluate("window.struck") is None, f"it ran on {place}"
    assert page.locator("main script, main iframe, main a[href^='javascript:' i]").count() == 0
