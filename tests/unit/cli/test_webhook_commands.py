from __future__ import annotations

from typing import Any

from tests.unit.cli.fake_service import FakeService, Reply, Rubato

WEBHOOK = {"id": "whk_1", "name": "team", "url": "https://a.example/x", "events": ["status", "failure"]}
DELIVERY: dict[str, Any] = {"id": "dlv_1", "type": "job.status", "job_id": "job_1", "status": "delivered", "tries": 1}
DELIVERY |= {"last_status": 204, "created_at": "t", "error": ""}


def test_the_secret_of_a_new_webhook_alone_is_on_stdout(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/projects/vision/webhooks", Reply({**WEBHOOK, "secret": "whsec_x"}, status=201))
    done = rubato(
        *("webhook", "add", "team", "https://a.example/x", "--on", "status", "--on", "failure", "--project", "vision")
    )
    assert (done.code, done.out) == (0, "whsec_x\n")
    assert "rubato webhook test team --project vision" in done.err
    body = {"name": "team", "url": "https://a.example/x", "events": ["status", "failure"]}
    assert service.requests[-1].json == body
    assert rubato("webhook", "add", "team", "https://a.example/x", "--on", "everything").code == 2


def test_webhooks_and_deliveries_are_listed(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/projects/default/webhooks", {"items": [WEBHOOK], "next_cursor": None})
    assert rubato("webhook", "list").out.splitlines()[1].split() == ["team", "status,failure", "https://a.example/x"]
    service.on("GET", "/projects/default/webhooks/team/deliveries", {"items": [DELIVERY] * 3, "next_cursor": None})
    assert len(rubato("webhook", "deliveries", "team", "-n", "2", "--json").json) == 2
    assert "dlv_1" in rubato("webhook", "deliveries", "team", "--status", "failed").out
    assert service.requests[-1].query["status"] == "failed"


def test_a_test_says_what_became_of_it(service: FakeService, rubato: Rubato) -> None:
    path = "/projects/default/webhooks/team/test"
    service.on("POST", path, Reply(DELIVERY, status=202))
    done = rubato("webhook", "test", "team")
    assert (done.code, "answered with 204" in done.err) == (0, True)
    assert service.requests[-1].query == {"wait": "20.0"}
    service.on("POST", path, Reply({**DELIVERY, "status": "failed", "error": "It answered with 500."}, status=202))
    done = rubato("webhook", "test", "team")
    assert (done.code, "It answered with 500." in done.err) == (1, True)
    service.on("POST", path, Reply({**DELIVERY, "status": "pending"}, status=202))
    assert "rubato webhook deliveries team" in rubato("webhook", "test", "team").err


def test_a_webhook_is_deleted(service: FakeService, rubato: Rubato) -> None:
    service.on("DELETE", "/projects/default/webhooks/team", Reply(status=204, content=b""))
    assert rubato("webhook", "delete", "team").code == 0
