"""A list of many jobs draws those near the picture, and is nevertheless the whole list."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.conftest import NewPage, Service

JOBS = 150
VIEWPORT = {"width": 1280, "height": 700}


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


def test_every_job_comes_into_sight_in_its_place_and_few_are_drawn(own_service: Service, new_page: NewPage) -> None:
    for number in range(JOBS):
        own_service.submit(f"job-{number}")
    page = new_page(own_service, viewport=VIEWPORT)
    drawn = page.locator("[data-job]")
    expect(drawn.first).to_contain_text(f"job-{JOBS - 1}")
    expect(page.locator("table.jobs")).to_have_attribute("aria-rowcount", str(JOBS + 1))
    seen: dict[int, str] = {}
    while True:
        assert drawn.count() < JOBS / 2 + 40
        in_sight = rows_in_sight(page)
        assert in_sight, "the picture shows a hole"
        seen |= in_sight
        if not page.evaluate("""() => { const before = scrollY; scrollBy(0, 500); return scrollY > before; }"""):
            break
        page.wait_for_timeout(100)
    assert seen == {2 + place: f"job-{JOBS - 1 - place}" for place in range(JOBS)}


def test_who_works_in_a_row_keeps_his_place_wherever_the_list_goes(own_service: Service, new_page: NewPage) -> None:
    for number in range(JOBS):
        own_service.submit(f"job-{number}")
    page = new_page(own_service, viewport=VIEWPORT)
    held = page.get_by_role("link", name=f"job-{JOBS - 3}", exact=True)
    held.focus()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.get_by_role("link", name="job-0", exact=True)).to_be_in_viewport()
    own_service.submit("newest")
    expect(page.locator("table.jobs")).to_have_attribute("aria-rowcount", str(JOBS + 2))
    expect(page.get_by_role("link", name="job-0", exact=True)).to_be_in_viewport()
    expect(held).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"job-{JOBS - 3}")).to_be_visible()
