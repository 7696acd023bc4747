from __future__ import annotations

import pytest

from tests.unit.cli.fake_service import FakeService, Reply, Rubato, job


def test_update_sends_only_what_was_given(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job(etag='"abc"'))
    service.on("PATCH", "/jobs/digits", job(max_workers=6, spec={"scheduling": {"priority": 80}}, etag='"def"'))
    done = rubato(
        *("update", "digits", "--priority", "80", "--max", "6", "--label", "team=vision", "--label", "old="),
        *("--set", "limits.queue_timeout=1h", "--set", "limits.max_duration=", "--if-match", '"abc"'),
    )
    assert done.code == 0, done.err
    said = " ".join(done.err.split())
    assert "(limits.queue_timeout, limits.max_duration, labels.team, labels.old, scheduling.priority, " in said
    assert "workers.max): 1 to 6 workers, 2 wanted, priority 80." in said
    request = service.requests[-1]
    assert request.json == {
        "scheduling": {"priority": 80},
        "workers": {"max": 6},
        "labels": {"team": "vision", "old": None},
        "limits": {"queue_timeout": "1h", "max_duration": None},
    }
    assert request.headers["If-Match"] == '"abc"'


def test_update_to_what_is_there_already_says_so(service: FakeService, rubato: Rubato) -> None:
    for method in ("GET", "PATCH"):
        service.on(method, "/jobs/digits", job(etag='"abc"', spec={"scheduling": {"priority": 50}}))
    done = rubato("update", "digits", "--priority", "50")
    said = "digits is that already, and nothing changed: 1 to 4 workers, 2 wanted, priority 50.\n"
    assert (done.code, done.err) == (0, said)


def test_update_without_a_change_is_a_wrong_use(service: FakeService, rubato: Rubato) -> None:
    assert rubato("update", "digits").code == 2
    assert service.requests == []


def test_update_tells_a_refusal(service: FakeService, rubato: Rubato) -> None:
    problem = {"title": "t", "detail": "somebody changed it", "code": "precondition_failed"}
    service.on("GET", "/jobs/digits", job())
    service.on("PATCH", "/jobs/digits", Reply(problem, status=412))
    done = rubato("update", "digits", "--priority", "1")
    assert (done.code, "somebody changed it" in done.err) == (1, True)


@pytest.mark.parametrize("flag", [(), ("--from-checkpoint", "latest")])
def test_clone_submits_with_other_values(service: FakeService, rubato: Rubato, flag: tuple[str, ...]) -> None:
    service.on("POST", "/jobs/digits/clone", job(id="job_2", name="mine"))
    done = rubato("clone", "digits", "--name", "mine", "--set", "config.lr=1e-2", *flag)
    assert (done.code, done.out) == (0, "job_2\n")
    request = service.requests[-1]
    assert request.json == {
        "overrides": {"name": "mine", "config": {"lr": 0.01}},
        "from_checkpoint": flag[1] if flag else None,
    }
    assert request.headers["Idempotency-Key"]


@pytest.mark.parametrize(("value", "sent"), [('""', ""), ("null", None)])
def test_clone_asks_what_an_empty_value_is_to_mean(
    service: FakeService, rubato: Rubato, value: str, sent: object
) -> None:
    service.on("POST", "/jobs/digits/clone", job(id="job_2"))
    refused = rubato("clone", "digits", "--set", "config.lr=")
    assert (refused.code, service.requests) == (2, [])
    assert "config.lr='\"\"' is an empty text, config.lr=null takes" in " ".join(refused.err.split())
    section = rubato("clone", "digits", "--set", "config=")
    assert (section.code, "set as config.KEY=VALUE" in " ".join(section.err.split())) == (2, True)
    assert rubato("clone", "digits", "--set", f"config.lr={value}").code == 0
    assert service.requests[-1].json["overrides"] == {"config": {"lr": sent}}


def test_delete_deletes_the_job_that_was_read(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job(status="succeeded", etag='"abc"'))
    service.on("DELETE", "/jobs/job_1", Reply(content=b"", status=204))
    done = rubato("delete", "digits", "--keep-checkpoints")
    assert (done.code, "digits (job_1) is deleted" in done.err) == (0, True), done.err
    request = service.requests[-1]
    assert (request.query, request.headers["If-Match"]) == ({"keep_checkpoints": "true"}, '"abc"')


def test_delete_tells_a_refusal(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits", job(etag='"abc"'))
    problem = {"title": "t", "detail": "digits is running; cancel it first", "code": "conflict"}
    service.on("DELETE", "/jobs/job_1", Reply(problem, status=409))
    done = rubato("delete", "digits")
    assert (done.code, "cancel it first" in done.err) == (1, True)
