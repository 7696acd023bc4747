from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, event, formed, job, log_with, stream


def test_submit_packs_uploads_and_submits_in_this_order(service: FakeService, rubato: Rubato, tmp_path: Any) -> None:
    stored: set[str] = set()

    def have(request: Request) -> Reply:
        return Reply(status=200 if request.path in stored else 404)

    def take(request: Request) -> Reply:
        stored.add(request.path)
        return Reply(status=201)

    service.on("HEAD", "/packages/*", have)
    service.on("PUT", "/packages/*", take)
    service.on("POST", "/jobs", lambda request: Reply(job(spec=request.json), 201))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text("def train(run): ...\n\n\ntrain_func = train\n")
    (tmp_path / "job.yaml").write_text("name: digits\nentrypoint: train.py\nworking_dir: work\nenv: {KEY: null}\n")
    arguments = (
        "submit",
        f"{tmp_path}/job.yaml",
        "--workers",
        "3",
        "--set",
        "workers.max=4",
        "--env",
        "KEY=v",
        "--config",
        "lr=1e-3",
    )
    done = rubato(*arguments, "--json")
    assert done.code == 0
    assert done.json["id"] == "job_1"
    sent = service.asked("POST", "/jobs")[0]
    (path,) = stored
    assert sent.json == {
        "name": "digits",
        "entrypoint": "train.py",
        "workers": {"initial": 3, "max": 4},
        "env": {"KEY": "v"},
        "config": {"lr": 0.001},
        "package": path.rsplit("/", 1)[1],
    }
    assert sent.headers["Idempotency-Key"]
    assert [request.method for request in service.requests] == ["HEAD", "PUT", "POST"]
    again = rubato(*arguments)
    assert again.out.strip() == "job_1"
    assert "rubato logs digits -f" in again.err
    assert "rubato scale digits 4" in again.err
    assert "which the service has already" in again.err
    assert [request.method for request in service.requests[3:]] == ["HEAD", "POST"]


@pytest.mark.parametrize(
    ("low", "high", "wanted", "said"), [(1, 8, 2, "4"), (1, 8, 4, "8"), (1, 2, 1, "2"), (1, 2, 2, "1"), (3, 3, 3, None)]
)
def test_submit_names_a_count_of_workers_that_the_job_may_have(
    service: FakeService, rubato: Rubato, low: int, high: int, wanted: int, said: str | None
) -> None:
    made = job(min_workers=low, max_workers=high, desired_workers=wanted)
    service.on("POST", "/jobs", Reply(made, 201))
    done = rubato("submit", "--recipe", "image-classifier")
    assert re.findall(r"rubato scale digits (\d+) ", done.err) == ([said] if said else [])


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_submit_sends_nothing_where_the_function_is_missing(
    service: FakeService, rubato: Rubato, tmp_path: Any, flags: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("def fit(run): ...\n")
    done = rubato("submit", f"{tmp_path}/train.py:trane", *flags)
    assert (done.code, service.requests) == (1, [])
    assert "train.py has no function 'trane'; its functions are fit" in done.err


def test_a_project_that_is_not_there_is_told_with_what_makes_it(service: FakeService, rubato: Rubato) -> None:
    finding = {"path": "project", "message": "there is no project 'vision'; you may submit to default"}
    problem = {"code": "invalid_spec", "detail": "The job spec is not valid.", "errors": [finding]}
    service.on("POST", "/jobs", Reply(problem, 422))
    done = rubato("submit", "--recipe", "image-classifier", "--set", "project=vision")
    assert (done.code, "`rubato project add vision` makes it" in done.err) == (1, True), done.err
    assert "you may submit to default" in done.err


def test_submit_shows_every_mistake_before_anything_is_sent(
    service: FakeService, rubato: Rubato, tmp_path: Any
) -> None:
    (tmp_path / "job.yaml").write_text("name: Bad Name\nentrypoint: t.py\nworkers: {min: 3, max: 2}\nepochs: 4\n")
    done = rubato("submit", f"{tmp_path}/job.yaml")
    assert (done.code, done.out, service.requests) == (1, "", [])
    for words in ("workers.max", "epochs: unknown field"):
        assert words in done.err


def test_submit_of_a_folder_that_is_not_there(service: FakeService, rubato: Rubato, tmp_path: Any) -> None:
    (tmp_path / "job.yaml").write_text("name: digits\nentrypoint: train.py\nworking_dir: work\n")
    done = rubato("submit", f"{tmp_path}/job.yaml")
    assert (done.code, service.requests) == (1, [])
    assert "work is no folder; it is relative to the spec file" in " ".join(done.err.split())


def test_submit_packs_the_folder_of_a_spec_that_names_a_file_and_no_folder(
    service: FakeService, rubato: Rubato, tmp_path: Any
) -> None:
    service.on("HEAD", "/packages/*", Reply(status=404))
    service.on("PUT", "/packages/*", Reply(status=201))
    service.on("POST", "/jobs", lambda request: Reply(job(spec=request.json, scaling_restarts=True), 201))
    (tmp_path / "job.yaml").write_text("name: digits\nbackend: ray_train\nentrypoint: train.py:train_func\n")
    missing = rubato("submit", f"{tmp_path}/job.yaml")
    assert (missing.code, service.requests) == (1, [])
    assert f"there is no file train.py in {tmp_path}" in missing.err
    (tmp_path / "train.py").write_text("def train(run): ...\n\n\ntrain_func = train\n")
    done = rubato("submit", f"{tmp_path}/job.yaml")
    assert service.asked("POST", "/jobs")[0].json["package"]
    assert re.search(f"Packed {tmp_path}: 2 files, \\d+ B, uploaded", done.err)
    assert "rubato scale" not in done.err, "scaling restarts a Ray Train job"
    service.on("POST", "/jobs", lambda request: Reply({"spec": request.json}))
    assert rubato("submit", f"{tmp_path}/job.yaml", "--dry-run").err == f"Would pack {tmp_path}.\n"


def test_submit_dry_run_prints_the_resolved_spec(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/jobs", lambda request: Reply({"spec": {**request.json, "seed": 0}}))
    done = rubato("submit", "--recipe", "image-classifier", "--dry-run", "--name", "d")
    assert done.json == {"name": "d", "recipe": "image-classifier", "seed": 0}
    assert service.requests[0].query == {"dry_run": "true"}
    assert done.err == ""
    unusual = rubato(
        "submit", "--recipe", "image-classifier", "--dry-run", "--name", "d", "--set", "reproducible=false"
    )
    assert "The bits of the weights follow the number of workers" in " ".join(unusual.err.split())


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103)])
def test_submit_and_follow_to_the_end(service: FakeService, rubato: Rubato, status: str, code: int) -> None:
    ended = job(
        status=status, message="because", result={"step": 500, "digest": "abc"}, failure={"rank": 1, "reason": "hang"}
    )
    service.on("POST", "/jobs", Reply(job(status="queued"), 201))
    service.on("GET", "/jobs/job_1", ended)
    lost = event(8, "worker.lost", "w2 was killed by SIGKILL", step=100)
    service.on("GET", "/jobs/job_1/events", log_with([], stream(job(), lost, formed(9, 2, 1, 101))))
    done = rubato("submit", "--recipe", "image-classifier", "--follow")
    assert (done.code, done.out.strip()) == (code, "job_1")
    assert "w2 was killed by SIGKILL (step 100)" in done.err
    assert "2 → 1 worker at step 101, paused 41 ms (scale up)" in done.err
    assert ("digest abc" if status == "succeeded" else "reason: hang") in done.err


def test_ctrl_c_while_following_leaves_the_job_alone(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    service.on("POST", "/jobs", Reply(job(), 201))
    service.on("GET", "/jobs/job_1", job())
    monkeypatch.setattr("rubato.client.Client.follow", interrupted)
    done = rubato("submit", "--recipe", "image-classifier", "--follow")
    assert done.code == 101
    assert "Detached; the job goes on" in done.err
    assert service.asked("POST", "/jobs/job_1/cancel") == []
