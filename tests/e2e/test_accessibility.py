"""axe-core finds nothing to complain about in any view and state, wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.conftest import ROOT, Service
from tests.e2e.gallery import SCHEMES, Scheme, View, walk
from tests.e2e.simulated_cluster import SimulatedCluster

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async (rules) => {
    const options = { resultTypes: ["violations"], ...(rules && { runOnly: { type: "rule", values: rules } }) };
    const { violations } = await axe.run(document, options);
    return violations.flatMap((rule) =>
        rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`));
}"""
OF_COLOUR = ["color-contrast", "link-in-text-block"]
"""All that another colour scheme can change."""
OF_WIDTH = [*OF_COLOUR, "button-name", "link-name", "label", "scrollable-region-focusable", "target-size"]
"""And what another width can, too."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "long"])
def test_axe_finds_no_violation_in_any_view(
    browser: Browser, own_service: Service, own_cluster: SimulatedCluster, is_long: bool
) -> None:
    """The short form leaves out rare views and dark ones, and looks only at how wide narrow ones are."""
    found: dict[str, list[str]] = {}
    source = AXE.read_text()

    def look(page: Page, view: View, width: str, scheme: str) -> None:
        complaints: list[Any] = []
        if is_long or width == "wide":
            if page.evaluate("typeof axe") == "undefined":
                page.evaluate(source)
            rules = OF_COLOUR if scheme == "dark" else OF_WIDTH if width == "narrow" else None
            complaints += page.evaluate(RUN, rules)
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            complaints.append(f"the page is {too_wide} px wider than the window")
        if page.evaluate(
            "[...document.querySelectorAll('dialog[open]')].some((one) => one.scrollWidth > one.clientWidth)"
        ):
            complaints.append("the dialog cuts off what it says")
        if complaints:
            found[f"{view.name} {width} {scheme}"] = complaints

    def wanted(view: View) -> Sequence[Scheme]:
        if is_long:
            return SCHEMES
        return () if view.is_rare else ("light",)

    walk(browser, own_service, own_cluster, look, wanted)
    assert found == {}
