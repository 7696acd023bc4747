"""How many workers are worth it, asked where a job is filled in."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from rubato.wire.codec import to_json
from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.ways import PROFILE, ask_for_a_plan, choose_a_profile, write_yaml


def test_a_job_is_planned_before_it_is_submitted(
    service: Service, cluster: SimulatedCluster, new_page: NewPage, tmp_path: Path
) -> None:
    page = new_page(service)
    ask_for_a_plan(page)
    predict = page.get_by_role("button", name="Predict")
    expect(predict).to_be_disabled()
    choose_a_profile(page, to_json(PROFILE))
    predict.click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("8 workers with whole gradients")
    expect(plan.locator("tr.recommended")).to_have_count(1)
    expect(plan.locator("tr.recommended")).to_contain_text("of a step is")
    expect(plan.get_by_role("cell", name="auto, recommended")).to_have_count(1)
    expect(plan.get_by_label("Strategy, by workers")).to_have_count(0)
    plan.get_by_text("Not considered").click()
    refused = plan.locator(".refused")
    expect(refused).to_contain_text("its bits depend on the number of workers")
    expect(refused).to_contain_text("streaming_diloco")
    bandwidth = page.get_by_label("Network of a worker, Gbit/s")
    bandwidth.fill("")
    expect(page.locator(".plan .field", has=bandwidth).locator(".error")).to_contain_text("in Gbit/s")
    expect(bandwidth).to_have_attribute("aria-invalid", "true")
    expect(predict).to_be_disabled()
    bandwidth.fill("0.001")
    predict.click()
    expect(plan).to_contain_text("One worker: ")
    measured_by = page.get_by_label("Network measured by job")
    measured_by.fill("nobody")
    expect(page.get_by_label("Latency, ms")).to_be_disabled()
    predict.click()
    expect(page.locator(".plan [role=alert]")).to_contain_text("nobody")
    measured_by.fill("")
    page.get_by_label("workers.max").fill("4")
    expect(plan).to_be_hidden()
    expect(page.locator(".verdict")).to_contain_text("(1 to 4)")
    predict.click()
    expect(plan).to_be_visible()
    page.screenshot(path=tmp_path / "plan.png")
    other = tmp_path / "other.json"
    other.write_text("not JSON")
    page.get_by_label("Profile").set_input_files(other)
    expect(page.locator(".plan [role=alert]")).to_contain_text("JSON")
    expect(predict).to_be_disabled()


SPEC = "name: a\nrecipe: image-classifier\nreproducible: false\naggregation: {algorithm: tree}\n"


def test_another_strategy_is_recommended_and_the_workers_of_each_are_drawn(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(service)
    write_yaml(page, SPEC)
    page.get_by_text("How many workers are worth it?").click()
    choose_a_profile(page, to_json(PROFILE))
    page.get_by_label("Network of a worker, Gbit/s").fill("1")
    page.get_by_label("Noise scale, samples").fill("1e6")
    page.get_by_role("button", name="Predict").click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("The spec has tree")
    expect(plan).to_contain_text("Say aggregation.algorithm: auto.")
    drawn = plan.get_by_label("Strategy, by workers")
    expect(drawn).to_have_value("auto")
    by_workers = plan.get_by_role("region", name="auto, by workers")
    expect(by_workers.get_by_role("cell", name="auto, recommended")).to_have_count(1)
    expect(by_workers.get_by_role("columnheader", name="Compresses")).to_be_visible()
    drawn.select_option("tree")
    expect(plan.get_by_role("region", name="tree, by workers").locator("tbody tr").first).to_contain_text("tree")
    expect(plan.get_by_role("region", name="tree, by workers").locator("tr.recommended")).to_have_count(0)
    expect(plan.get_by_role("region", name="Batches").locator("tr.recommended")).to_have_count(1)
