"""Whatever a user, a program or a cluster says is text on the page: in a real browser nothing of it is ever run."""

from __future__ import annotations

import pytest
from playwright.sync_api import Dialog, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster

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


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_shown_and_not_run(
    service: Service, cluster: SimulatedCluster, new_page: NewPage, kind: str
) -> None:
    text = HOSTILE[kind]
    name = f"hostile-{list(HOSTILE).index(kind)}"
    job_id = service.submit(name, pace=0.02, steps=120, fail_at=110, say=text)
    service.call("PATCH", f"/jobs/{job_id}", {"labels": {"team": text[:60]}})
    page = new_page(service)

    def refuse(dialog: Dialog) -> None:
        dialog.dismiss()
        pytest.fail(f"a dialog opened: {dialog.message}")

    page.on("dialog", refuse)
    expect(page.locator(f"[data-job={job_id}]")).to_be_visible()
    page.get_by_label("Search jobs").fill(text[:60])
    for tab in TABS:
        page.goto(f"{service.url}/jobs/{job_id}#{tab}")
        panel = page.get_by_role("tabpanel")
        if tab in SHOWN:
            expect(panel).to_contain_text("struck")
        expect(panel).to_be_visible()
        page.evaluate(FAILED_IMAGE)
        assert page.evaluate("window.struck") is None, f"it ran on {tab}"
        assert page.locator("main script, main iframe, main a[href^='javascript:' i]").count() == 0
