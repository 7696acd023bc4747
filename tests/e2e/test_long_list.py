"""A list of many jobs draws those near the picture, and is nevertheless the whole list."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import NewPage, Service, running_service

pytestmark = pytest.mark.long

NAMES = [f"job-{number}" for number in reversed(range(150))]
"""As the list has them."""
NEWEST = "newest"
VIEWPORT = {"width": 1280, "height": 700}


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("long-list") / "home") as started:
        for name in reversed(NAMES):
            started.submit(name)
        yield started


def rows_in_sight(page: Page) -> dict[int, str]:
    """The name of each row whose middle is in the picture, by its place in the table."""
    return {
        int(place): name
        for place, name in page.evaluate("""() => [...document.querySelectorAll('[data-job]')]
            .filter((row) => { const box = row.getBoundingClientRect(), middle = (box.top + box.bottom) / 2;
                               return middle > 0 && middle < innerHeight; })
            .map((row) => [row.ariaRowIndex ?? row.getAttribute('aria-rowindex'), row.querySelector('a').textContent])
        """)
    }


def test_every_job_comes_into_sight_in_its_place_and_few_are_drawn(full_service: Service, new_page: NewPage) -> None:
    page = new_page(full_service, viewport=VIEWPORT)
    drawn = page.locator("[data-job]")
    expect(drawn.first).to_contain_text(re.compile(f"{NAMES[0]}|{NEWEST}"))
    names = NAMES if NAMES[0] in drawn.first.inner_text() else [NEWEST, *NAMES]  # where the other test was before
    expect(page.locator("table.jobs")).to_have_attribute("aria-rowcount", str(len(names) + 1))
    seen: dict[int, str] = {}
    while True:
        assert drawn.count() < len(names) / 2 + 40
        in_sight = rows_in_sight(page)
        assert in_sight, "the picture shows a hole"
        seen |= in_sight
        if not page.evaluate("""() => { const before = scrollY; scrollBy(0, 500); return scrollY > before; }"""):
            break
        page.wait_for_timeout(100)
    assert seen == dict(enumerate(names, 2))


def test_who_works_in_a_row_keeps_his_place_wherever_the_list_goes(full_service: Service, new_page: NewPage) -> None:
    page = new_page(full_service, viewport=VIEWPORT)
    held = page.get_by_role("link", name=NAMES[2], exact=True)
    held.focus()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.get_by_role("link", name=NAMES[-1], exact=True)).to_be_in_viewport()
    full_service.submit(NEWEST)
    expect(page.locator("table.jobs")).to_have_attribute("aria-rowcount", str(len(NAMES) + 2))
    expect(page.get_by_role("link", name=NAMES[-1], exact=True)).to_be_in_viewport()
    expect(held).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=NAMES[2])).to_be_visible()
