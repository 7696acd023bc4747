"""Submitting, finding and listing; and the page at the root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from service import requests
from service.models import StoredReply
from tests.integration.service.test_query_plans import recorded

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

SPEC = {"name": "digits", "recipe": "image-classifier"}
YAML = {"Content-Type": "application/yaml; charset=utf-8"}


async def test_yaml_and_json_make_the_same_job(bench: Bench) -> None:
    text = b"name: from-yaml\nrecipe: image-classifier\nworkers: {initial: 2, max: 4}\nconfig: {lr: 1e-3}\n"
    text += b"labels: {on: friday, 1: one}\n"
    response = await bench.client.post("/api/v1/jobs", content=text, headers=YAML)
    assert response.status_code == 201, response.text
    assert response.headers["location"] == f"/api/v1/jobs/{response.json()['id']}"
    same = {"workers": {"initial": 2, "max": 4}, "config": {"lr": 0.001}, "labels": {"on": "friday", "1": "one"}}
    from_json = await bench.submit("from-json", **same)
    assert {**response.json()["spec"], "name": ""} == {**from_json["spec"], "name": ""}
    assert from_json["spec"]["batch"]["num_microbatches"] == 8, "the record names what `auto` meant"


async def test_a_dry_run_resolves_and_stores_nothing(bench: Bench) -> None:
    resolved = await bench.post("/jobs", 200, SPEC, dry_run=True)
    assert resolved["spec"]["workers"] == {"initial": 1, "min": 1, "max": 8, "standby": 0, "autoscale": "off"}
    assert resolved["remarks"] == []
    lossy = {"reproducible": False, "aggregation": {"compression": {"method": "topk"}}}
    _, kept, saved, lost = (await bench.post("/jobs", 200, {**SPEC, **lossy}, dry_run=True))["remarks"]
    assert "a part of each gradient travels later" in kept
    assert "Before each checkpoint, every 30 s" in saved
    assert "compression.on_loss: rollback" in lost
    assert (await bench.get("/jobs"))["items"] == []


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_a_recipe_does_not_take_is_refused(bench: Bench, dry_run: bool) -> None:
    wrong = {**SPEC, "config": {"epochs": "many", "epoch": 3}}
    refused = await bench.post("/jobs", 422, wrong, dry_run=dry_run)
    assert refused["errors"] == [
        {"path": "config.epochs", "message": "image-classifier takes a whole number here, not 'many'"},
        {"path": "config.epoch", "message": "image-classifier has no such key; did you mean 'epochs'?"},
    ]
    unknown = await bench.post("/jobs", 422, {**SPEC, "recipe": "image-clasifier"}, dry_run=dry_run)
    assert [one["path"] for one in unknown["errors"]] == ["recipe"]
    assert (await bench.get("/jobs"))["items"] == []


async def test_a_folder_that_nobody_uploaded_is_refused(bench: Bench) -> None:
    spec = {"name": "own", "entrypoint": "train.py:train"}
    assert (await bench.post("/jobs", 200, {**spec, "working_dir": None}, dry_run=True))["spec"]["package"] is None
    refused = await bench.post("/jobs", 422, {**spec, "working_dir": "."})
    (finding,) = refused["errors"]
    assert finding["path"] == "working_dir"
    assert "Client.upload_folder" in finding["message"]
    assert "`package`" in finding["message"]


async def test_the_same_key_gives_the_same_reply(bench: Bench) -> None:
    key = {"Idempotency-Key": "key-1"}
    first = await bench.client.post("/api/v1/jobs", json=SPEC, headers=key)
    again = await bench.client.post("/api/v1/jobs", json=SPEC, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    other = await bench.client.post("/api/v1/jobs", json={**SPEC, "seed": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert len((await bench.get("/jobs"))["items"]) == 1


async def test_old_replies_are_forgotten_some_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ROWS", 3)

    async def keys() -> list[str]:
        async with bench.context.database.read() as session:
            return list(await session.scalars(select(StoredReply.key).order_by(StoredReply.key)))

    for number in range(8):
        key = {"Idempotency-Key": f"key-{number}"}
        await bench.client.post("/api/v1/jobs", json={**SPEC, "name": f"job-{number}"}, headers=key)
        bench.clock.advance(3600)
    bench.clock.advance(17 * 3600)  # the first one was stored 25 hours ago
    with recorded(about="stored_replies") as recorder:
        await bench.loop._clean_up()
    assert await keys() == [f"key-{number}" for number in range(1, 8)]
    if bench.context.database.is_sqlite:
        for plan in recorder.plans(bench.settings.home / "rubato.db"):
            assert any("ix_stored_replies_created_at" in step for step in plan), plan
    bench.clock.advance(5 * 3600)
    bench.loop._cleaned_at = 0
    with recorded(about="stored_replies") as recorder:
        await bench.loop._clean_up()
    assert await keys() == ["key-6", "key-7"]
    assert sum(statement.startswith("DELETE") for statement, _ in recorder.statements) == 2


async def test_a_name_is_free_again_once_its_job_has_ended(bench: Bench) -> None:
    first = await bench.submit()
    taken = await bench.client.post("/api/v1/jobs", json=SPEC)
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    await bench.post("/jobs/digits/cancel", 202)
    second = await bench.submit()
    assert (await bench.job("digits"))["id"] == second["id"], "a name means its newest job"
    assert (await bench.job(first["id"]))["status"] == "cancelled"


async def test_pages_join_newest_first_and_filters_hold(bench: Bench) -> None:
    names = [f"job-{index}" for index in range(7)]
    for name in names:
        await bench.submit(name)
    await bench.post("/jobs/job-3/cancel", 202)
    found: list[str] = []
    cursor = None
    while True:
        parameters = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = await bench.get("/jobs", **parameters)
        found += [item["name"] for item in page["items"]]
        assert "spec" not in page["items"][0]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == names[::-1]
    assert [item["name"] for item in (await bench.get("/jobs", status="cancelled, paused"))["items"]] == ["job-3"]
    assert [item["name"] for item in (await bench.get("/jobs", q="B-5"))["items"]] == ["job-5"]
    assert (await bench.get("/jobs", q="%"))["items"] == [], "a wildcard of the database is only a character"


async def test_the_page_answers_at_all_its_addresses(bench: Bench) -> None:
    for path in ("/", "/jobs", "/jobs/job_x", "/jobs/a/b"):
        response = await bench.client.get(path)
        assert response.status_code == 200
        assert "is not built" in response.text
    dist = bench.settings.web_dist
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text("<title>the page</title>")
    (dist / "assets" / "main-1a2b.js").write_text("1;" * 5_000)
    (dist / "favicon.svg").write_text("<svg/>")
    page = await bench.client.get("/jobs/job_x")
    assert "the page" in page.text
    assert page.headers["cache-control"] == "no-cache"
    asset = await bench.client.get("/assets/main-1a2b.js")
    assert "immutable" in asset.headers["cache-control"]
    assert "javascript" in asset.headers["content-type"]
    assert asset.headers["content-encoding"] == "gzip"
    assert asset.text == "1;" * 5_000
    whole = await bench.client.get("/assets/main-1a2b.js", headers={"Accept-Encoding": "identity"})
    assert len(whole.content) == 10_000
    assert (await bench.client.get("/favicon.svg")).headers["content-type"].startswith("image/svg")
    missing = await bench.client.get("/assets/gone.js")
    assert (missing.status_code, "immutable" in missing.headers.get("cache-control", "")) == (404, False)
    assert (await bench.client.get("/nothing.txt")).status_code == 404
    assert (await bench.client.get("/docs")).status_code == 200


@pytest.mark.parametrize(
    ("path", "accept", "is_page"),
    [
        ("/nonsense", "text/html,application/xhtml+xml", True),
        ("/jobs-of/mine", "text/html", True),
        ("/nonsense", "*/*", False),
        ("/api/v1/nonsense", "text/html", False),
        ("/cluster/v1/nonsense", "text/html", False),
    ],
)
async def test_a_browser_that_is_lost_gets_the_page_and_a_program_the_problem(
    bench: Bench, path: str, accept: str, is_page: bool
) -> None:
    response = await bench.client.get(path, headers={"Accept": accept})
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html" if is_page else "application/problem+json")


async def test_what_signed_in_people_send_is_refused_not_an_error(bench: Bench) -> None:
    await bench.submit("source")
    spec = {"name": "huge", "recipe": "image-classifier"}
    big = int("9" * 400)
    for section in (
        {"resources_per_worker": {"cpu": big}},
        {"resources_per_worker": {"memory": "9" * 400 + "TB"}},
        {"limits": {"max_duration": big}},
        {"config": {"rate": big}},
    ):
        response = await bench.client.post("/api/v1/jobs", json={**spec, **section})
        assert response.status_code in (400, 422), response.text
    cloned = {"overrides": {"checkpoint": 5}, "from_checkpoint": "a"}
    assert (await bench.client.post("/api/v1/jobs/source/clone", json=cloned)).status_code == 422
    await bench.client.post("/api/v1/projects", json={"name": "empty"})
    assert (await bench.client.delete("/api/v1/projects/empty%00")).status_code == 404


async def test_recipes_are_told_with_what_their_config_may_set(bench: Bench) -> None:
    recipes = {recipe["name"]: recipe for recipe in (await bench.get("/recipes"))["items"]}
    assert set(recipes) == {"image-classifier", "char-lm", "measure-links"}
    assert "handwritten digits" in recipes["image-classifier"]["description"]
    keys = {key["name"]: key for key in recipes["char-lm"]["config"]}
    assert keys["context"] == {"name": "context", "type": "int", "default": 32, "doc": "Characters the model sees."}
    assert keys["steps"]["default"] is None
    assert isinstance(keys["lr"]["default"], float)
