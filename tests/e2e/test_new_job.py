"""A job is submitted from the page: filled in, written as YAML, with a folder, or again with changes."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.e2e.conftest import NewPage, Service
from tests.e2e.simulated_cluster import SimulatedCluster
from tests.e2e.steps import wait_until
from tests.e2e.ways import write_yaml


def test_a_job_is_filled_in_and_what_is_wrong_is_said_beside_the_field(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(service)
    page.get_by_role("button", name="New job").click()
    verdict = page.locator(".verdict")
    expect(verdict).to_have_text("The spec is valid: 2 workers (1 to 8), 256 samples a step in 8 microbatches.")
    page.get_by_label("name", exact=True).fill("Filled In")
    wrong = page.locator(".field", has=page.get_by_label("name", exact=True)).locator(".error")
    expect(wrong).to_contain_text("lower-case letters")
    expect(page.get_by_label("name", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Submit").click()
    expect(verdict).to_have_text("See above: name")
    page.get_by_label("name", exact=True).fill("filled-in")
    page.get_by_label("workers.min").fill("3")
    wrong = page.locator(".field", has=page.get_by_label("workers.initial")).locator(".error")
    expect(wrong).to_have_text("must lie in workers.min..workers.max (3..8), got 2")
    page.get_by_label("workers.initial").fill("3")
    page.get_by_label("config.epochs").fill("7")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("labels").fill("team=vision")
    expect(verdict).to_contain_text("3 workers (3 to 8)")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New job").click()
    expect(page.get_by_label("config.epochs")).to_have_value("7")
    page.get_by_role("button", name="YAML").click()
    expect(page.get_by_label("Job spec in YAML")).to_have_value(re.compile("epochs: 7"))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="filled-in")).to_be_visible()
    spec = service.call("GET", "/jobs/filled-in")["spec"]
    assert spec["recipe"] == "image-classifier"
    assert spec["config"] == {"epochs": 7}
    assert (spec["workers"]["initial"], spec["workers"]["min"], spec["labels"]) == (3, 3, {"team": "vision"})
    page.get_by_role("link", name="Jobs").first.click()
    page.get_by_role("button", name="New job").click()
    expect(page.get_by_label("config.epochs")).to_have_value("20")


def test_a_new_job_begins_with_a_name_that_is_free(
    own_service: Service, own_cluster: SimulatedCluster, new_page: NewPage
) -> None:
    own_service.submit("digits", pace=1.0)
    page = new_page(own_service)
    expect(page.locator("[data-job]")).to_have_count(1)
    page.get_by_role("button", name="New job").click()
    name = page.get_by_label("name", exact=True)
    expect(name).to_have_value("digits-2")
    own_service.submit("digits-2", pace=1.0)
    page.get_by_label("config.epochs").fill("7")
    expect(name).to_have_value("digits-3")
    expect(page.locator(".verdict")).to_contain_text("The spec is valid")
    name.fill("digits")
    expect(page.locator(".field", has=name).locator(".error")).to_contain_text("is taken")
    expect(name).to_have_value("digits")


def test_a_job_is_written_as_yaml_and_a_wrong_spec_is_explained(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(service)
    spec = write_yaml(page, "name: by-hand\nrecipe: image-classifier\nworkers: {min: 3, max: 2}\nepochs: 5\n")
    problems = page.locator(".findings li")
    expect(problems.filter(has_text="at least workers.min")).to_contain_text("workers.max")
    expect(problems.filter(has_text="epochs")).to_be_visible()
    page.get_by_role("button", name="Form", exact=True).click()
    page.get_by_role("button", name="Drop the changes").click()
    expect(page.get_by_label("config.epochs")).to_be_visible()
    page.get_by_role("button", name="YAML").click()
    spec.fill("name: by-hand\nrecipe: image-classifier\nconfig: {epochs: 9}\n")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/job_"))
    expect(page.get_by_role("heading", name="by-hand")).to_be_visible()
    expect(page.locator(".lane canvas")).to_have_count(4)


def test_what_a_strategy_does_is_said_before_it_is_submitted(
    service: Service, cluster: SimulatedCluster, new_page: NewPage
) -> None:
    page = new_page(service)
    verdict = page.locator(".verdict")
    lossy = "name: remarked\nrecipe: image-classifier\nreproducible: false\n"
    spec = write_yaml(page, lossy + "aggregation: {compression: {method: topk}}\n")
    expect(verdict).to_contain_text("With topk a part of each gradient travels later")
    expect(verdict).to_contain_text("compression.on_loss: rollback goes back to the newest checkpoint instead")
    spec.fill(lossy + "aggregation: {compression: {method: fp16}}\n")
    expect(verdict).to_contain_text("Gradients are rounded to fp16 before they are added up.")
    expect(verdict).not_to_contain_text("travels later")
    spec.fill("name: remarked\nrecipe: image-classifier\nworkers: {initial: 3}\n")
    expect(verdict).to_contain_text("2 or 4 workers have equally many")
    spec.fill("name: remarked\nrecipe: image-classifier\nworkers: {initial: 4}\n")
    expect(verdict).to_contain_text("4 workers (1 to 8)")
    expect(verdict.locator("p")).to_have_count(1)


def test_a_folder_is_uploaded_from_the_page_and_run_again_with_changes(
    service: Service, cluster: SimulatedCluster, new_page: NewPage, tmp_path: Path
) -> None:
    folder = tmp_path / "My Model"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("def train(run): ...\n")
    (folder / "lib" / "net.py").write_text("LAYERS = 3\n")
    (folder / ".env").write_text("SECRET=1\n")
    page = new_page(service)
    page.get_by_role("button", name="New job").click()
    page.get_by_role("button", name="A folder of mine").click()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_label("Folder of the program").set_input_files(folder)
    expect(page.locator(".folder-picker")).to_contain_text("My Model is uploaded: 2 files")
    expect(page.get_by_label("entrypoint")).to_have_value("train.py:train")
    expect(page.get_by_label("name", exact=True)).to_have_value("my-model")
    page.get_by_label("config", exact=True).fill("pace: 0.1\nlayers: [64, 64]")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="my-model")).to_be_visible()
    page.get_by_role("tab", name="Code").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("def train(run)")
    expect(page.get_by_role("tabpanel")).to_contain_text("net.py")
    expect(page.get_by_role("tabpanel")).not_to_contain_text(".env")
    spec = service.call("GET", "/jobs/my-model")["spec"]
    assert spec["config"] == {"pace": 0.1, "layers": [64, 64]}

    page.get_by_role("button", name="Clone").click()
    clone = page.get_by_role("dialog", name="Run my-model again?")
    clone.get_by_label("Changes of the spec").fill("config.pace")
    clone.get_by_role("button", name="Submit").click()
    expect(clone.get_by_role("alert")).to_contain_text("is not of the form config.lr=0.1")
    clone.get_by_label("Changes of the spec").fill("config.pace=0.05\nworkers.initial=9")
    clone.get_by_role("button", name="Submit").click()
    expect(clone.get_by_role("alert")).to_contain_text("workers.initial")
    clone.get_by_label("Changes of the spec").fill("config.pace=0.05\nworkers.initial=3")
    clone.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="my-model-2")).to_be_visible()
    again = service.call("GET", "/jobs/my-model-2")["spec"]
    assert again["package"] == spec["package"]
    assert (again["config"]["pace"], again["workers"]["initial"]) == (0.05, 3)


def test_what_is_typed_while_a_folder_is_on_its_way_stays(service: Service, new_page: NewPage, tmp_path: Path) -> None:
    folder = tmp_path / "Theirs"
    folder.mkdir()
    (folder / "train.py").write_text("def train(run): ...\n")
    page = new_page(service)
    held: list[Route] = []
    may_pass = False
    page.route("**/api/v1/packages/*", lambda route: route.continue_() if may_pass else held.append(route))
    page.get_by_role("button", name="New job").click()
    page.get_by_role("button", name="A folder of mine").click()
    page.get_by_label("Folder of the program").set_input_files(folder)
    expect(page.locator(".folder-picker")).to_contain_text("Uploading")
    page.get_by_label("name", exact=True).fill("mine")
    page.get_by_label("workers.max").fill("3")
    wait_until(page, lambda: bool(held))
    may_pass = True
    held[0].continue_()
    expect(page.locator(".folder-picker")).to_contain_text("Theirs is uploaded: 1 file")
    expect(page.get_by_label("entrypoint")).to_have_value("train.py:train")
    expect(page.get_by_label("name", exact=True)).to_have_value("mine")
    expect(page.get_by_label("workers.max")).to_have_value("3")
