"""What a person does on the page with real jobs on a real Ray: `make e2e` runs these, CI does not, for they wait."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from rubato.client import Client
from rubato.packaging import pack_folder
from tests.e2e.conftest import event_positions
from tests.e2e.real_home import SLOW_MS, RealHome, marker, real_home, scale_by_stepper, wait_for_step
from tests.ray_node import ray_node
from tests.relay import Relay
from tests.running_home import PROGRAMS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FAILS = """\
import rubato
import torch


def train(run: rubato.Run) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=data)
    for step in run.steps(steps=100):
        for inputs, targets in step:
            if step.index == 5:
                raise RuntimeError("the shards of part 7 are gone")
            step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
"""
CUT_S = 60


@pytest.fixture(scope="module")
def home(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHome]:
    with real_home(tmp_path_factory.mktemp("stories") / "home") as running:
        running.up()
        yield running


@pytest.fixture(scope="module")
def client(home: RealHome) -> Iterator[Client]:
    with home.client() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, home: RealHome, client: Client) -> Iterator[Page]:
    """Signed in; its jobs are cancelled at the end, so that the next story finds free slots."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.request.post(f"{home.url}/api/v1/session", data={"token": home.home.read_token()})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(home.url)
    yield opened
    context.close()
    for job in client.jobs():
        if not job.is_final:
            client.cancel(job.id, force=True)
            client.wait(job.id)
    assert complaints == []


def submit_by_form(page: Page, name: str, **fields: str) -> str:
    """A job of the recipe, by the form; its id."""
    page.get_by_role("button", name="New job").click()
    page.get_by_label("name", exact=True).fill(name)
    page.get_by_label("config.epochs").fill("")
    page.get_by_label("config.steps").fill("100000")
    for label, value in fields.items():
        page.get_by_label(label.replace("__", "."), exact=True).fill(value)
    expect(page.locator(".verdict")).to_contain_text("The spec is valid")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(status(page, "running")).to_be_visible(timeout=SLOW_MS)
    return page.url.rpartition("/")[2]


def status(page: Page, name: str) -> Locator:
    return page.locator(f".job-head [data-status={name}]")


def test_a_job_is_submitted_by_the_form_paused_and_resumed(page: Page, client: Client) -> None:
    job_id = submit_by_form(page, "by-form", workers__initial="1")
    wait_for_step(page, 20)
    page.get_by_role("button", name="Pause").click()
    expect(status(page, "paused")).to_be_visible(timeout=SLOW_MS)
    paused_at = client.job(job_id).step
    page.get_by_role("button", name="Resume").click()
    expect(status(page, "running")).to_be_visible(timeout=SLOW_MS)
    wait_for_step(page, paused_at + 10)
    rows = [point.step for point in client.metrics(job_id)]
    assert rows == list(range(1, len(rows) + 1)), "no step twice, none missing"


def test_a_folder_of_mine_fails_and_the_card_says_where(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "train.py").write_text(FAILS)
    page.get_by_role("button", name="New job").click()
    page.get_by_role("button", name="A folder of mine").click()
    page.get_by_label("Folder of the program").set_input_files(folder)
    expect(page.locator(".verdict")).to_contain_text("The spec is valid")
    page.get_by_role("button", name="Submit").click()
    card = page.locator("[data-failure]")
    expect(card).to_be_visible(timeout=SLOW_MS)
    for text in ("In the job's own code", "the shards of part 7 are gone", "train.py", "What to do"):
        expect(card).to_contain_text(text)
    page.get_by_role("link", name="Logs, at the failing line").click()
    expect(page.locator(".log-focus")).to_contain_text("the shards of part 7 are gone")


def test_two_jobs_are_compared_while_they_train(page: Page) -> None:
    submit_by_form(page, "wide", config__width="64", workers__initial="1")
    wait_for_step(page, 20)
    page.get_by_role("link", name="Jobs").first.click()
    submit_by_form(page, "narrow", config__width="8", workers__initial="1")
    wait_for_step(page, 20)
    page.get_by_role("link", name="Jobs").first.click()
    for name in ("wide", "narrow"):
        page.get_by_label(f"Compare {name}", exact=True).check()
    page.locator(".chosen a").click()
    expect(page.locator(".compare .lane canvas").first).to_be_visible()
    difference = page.get_by_role("row", name="config.width")
    expect(difference).to_contain_text("64")
    expect(difference).to_contain_text("8")


def test_a_node_is_drained_and_the_job_goes_on_at_another(
    page: Page, home: RealHome, client: Client, tmp_path: Path
) -> None:
    (own,) = [node["node_id"] for node in client.operations.nodes()]
    job_id = submit_by_form(page, "moves", workers__initial="2")
    wait_for_step(page, 10)
    with ray_node(home, tmp_path, slots=2):
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator("[data-node]")).to_have_count(2, timeout=SLOW_MS)
        node = page.locator(f"[data-node='{own}']")
        node.get_by_role("button", name="Drain").click()
        page.get_by_role("dialog", name="Drain").get_by_role("button", name="Drain").click()
        expect(node.locator(".state")).to_have_text("drained", timeout=SLOW_MS)
        members = [worker for worker in client.workers(job_id) if worker.rank is not None]
        assert {worker.raw["node_id"] for worker in members} & {own} == set()
        node.get_by_role("button", name="Uncordon").click()
        expect(node.locator(".state")).to_have_text("ready")
        page.goto(f"{home.url}/jobs/{job_id}")
        expect(status(page, "running")).to_be_visible()
        wait_for_step(page, client.job(job_id).step + 10)
        client.cancel(job_id, force=True)
        client.wait(job_id)


def test_after_a_minute_without_network_nothing_is_missing_and_nothing_doubled(
    page: Page, home: RealHome, client: Client
) -> None:
    job_id = submit_by_form(page, "cut-off", workers__initial="1")
    relay = Relay(int(home.url.rpartition(":")[2]))
    try:
        page.goto(f"http://127.0.0.1:{relay.port}/jobs/{job_id}#events")
        expect(page.locator(".event").first).to_be_visible()
        with relay.is_cut():
            banner = page.locator("[data-banner=stale]")
            expect(banner).to_contain_text(re.compile(r"Live updates lost \d+\ss ago"), timeout=CUT_S * 1000)
            client.scale(job_id, 2)  # by somebody else, meanwhile
            page.wait_for_timeout(CUT_S * 1000)
        expect(banner).to_have_count(0, timeout=30_000)
        expect(page.locator(".event[data-kind='generation.formed']")).to_have_count(2, timeout=30_000)
        told = [event.position for event in client.events(job_id)]
        expect(page.locator(f".event[data-position='{told[-1]}']")).to_be_visible()
        shown = event_positions(page)
        assert shown == list(range(len(shown), 0, -1))
        page.get_by_role("tab", name="Overview").click()
        wait_for_step(page, client.job(job_id).step)
    finally:
        relay.close()


def test_a_function_of_ray_train_is_watched_scaled_by_a_restart_and_cancelled(
    page: Page, home: RealHome, client: Client, tmp_path: Path
) -> None:
    packed = pack_folder(PROGRAMS, tmp_path / "package.zip")
    client.upload(packed)
    hold = tmp_path / "hold"
    hold.touch()  # it trains on for as long as the file is there
    job = client.submit(
        {
            "name": "of-ray-train",
            "backend": "ray_train",
            "entrypoint": "ray_train.py:train_func",
            "package": packed.sha256,
            "config": {"epochs": 1, "hold": str(hold)},
            "workers": {"initial": 1, "min": 1, "max": 2},
            "env": {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"},
        }
    )
    page.goto(f"{home.url}/jobs/{job.id}")
    expect(status(page, "running")).to_be_visible(timeout=SLOW_MS)
    wait_for_step(page, 5)
    expect(page.get_by_role("button", name="Checkpoint", exact=True)).to_have_count(0)  # Ray Train makes its own
    expect(page.locator("#workers-note")).to_contain_text("Scaling restarts the job from its newest checkpoint (step ")
    scale_by_stepper(page, 2)
    expect(marker(page, r"^Scaled up 1 → 2 workers, paused \d").last).to_be_visible(timeout=SLOW_MS)
    wait_for_step(page, client.job(job.id).step + 5)
    page.get_by_role("tab", name="Workers").click()
    expect(page.locator(".state-active")).to_have_count(2)
    expect(page.get_by_role("button", name="Kill", exact=True)).to_have_count(0)
    page.get_by_role("tab", name="Checkpoints").click()
    expect(page.locator("[data-checkpoint]").first).to_contain_text("Kept by Ray Train")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(status(page, "cancelled")).to_be_visible(timeout=SLOW_MS)


def test_a_person_signs_out_and_the_address_asks_to_sign_in(page: Page, home: RealHome) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{home.url}/cluster")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_workers_are_looked_at_and_killed_and_the_job_is_run_again_and_deleted(page: Page, home: RealHome) -> None:
    job_id = home.submit("--name", "operated", "--workers", "2", "--config", "steps=1000000")
    page.goto(f"{home.url}/jobs/{job_id}#workers")
    rows = page.locator("[data-worker]")
    expect(page.locator(".state-active")).to_have_count(2, timeout=SLOW_MS)
    rows.nth(1).get_by_role("button", name="Stacks").click()
    stacks = page.get_by_role("dialog", name="Stacks of")
    expect(stacks.locator("pre")).to_contain_text("MainThread", timeout=SLOW_MS)
    stacks.get_by_role("button", name="Close").click()
    expect(stacks).to_have_count(0)
    name = rows.nth(1).get_attribute("data-worker")
    rows.nth(1).get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill it").click()
    expect(page.locator(f'[data-worker="{name}"]')).to_have_count(0, timeout=SLOW_MS)
    expect(page.locator(".state-active")).to_have_count(2, timeout=SLOW_MS)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-head [data-status=cancelled]")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Clone").click()
    page.get_by_label("Name", exact=True).fill("once-more")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="once-more")).to_be_visible()
    page.goto(f"{home.url}/jobs/{job_id}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the job").click()
    expect(page.locator("[data-job]").filter(has_text="once-more")).to_be_visible()
    expect(page.locator(f"[data-job={job_id}]")).to_have_count(0)
    with home.client() as client:
        client.cancel("once-more", force=True)
